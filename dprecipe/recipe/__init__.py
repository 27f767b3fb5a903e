"""The root of a recipe, reading one, and saying what is wrong with it.

A tree from `dprecipe.text` becomes a typed, frozen `Recipe`; every mistake becomes a finding with a place and a
remedy. Which combinations the mathematics covers is decided in `dprecipe.planning` and by the mechanisms.
"""
