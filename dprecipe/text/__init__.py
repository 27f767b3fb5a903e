"""YAML text to a tree of values with places.

Strict loading (a JSON subset of YAML 1.2), `extends` and `--set`. It knows no key of a recipe; what the values mean
begins in `dprecipe.recipe`.
"""
