"""Turns a recipe into a plan.

`make` asks the mechanism for its account and puts the plan together; the other modules check what spans several
blocks of a recipe. Pure arithmetic: no data is read, no torch is imported, and the checks of a single mechanism are
in its own folder.
"""
