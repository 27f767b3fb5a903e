"""The command line.

One module a command, each thin: it reads arguments, calls `dprecipe.api` or what lies below it, and prints. Imports
stand inside functions, so that `--help` and `validate` load next to nothing. Commands of one mechanism lie in its own
folder; nothing here computes privacy.
"""
