"""The site of these pages: `pages` copies them for the generator, `recipes` and `schemas` make pages of their own,
`check` follows every link of the result, and `build` does all of it (`make docs`)."""
