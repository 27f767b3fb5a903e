"""The command line.

One thin module per command: it reads the arguments, calls the library, and prints. Imports are inside functions, so
that `--help` and `validate` load next to nothing. A mechanism's own commands are in its folder. Nothing here computes
privacy.
"""
