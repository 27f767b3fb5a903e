"""Score against ε of several runs, claim by claim: `dprecipe compare`. See docs/how-to/compare.md."""
