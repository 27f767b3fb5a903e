"""The shared vocabulary of a recipe.

Base models (frozen, strict, closed), and the blocks that every mechanism has: budget, training, runtime, release,
schedules. Blocks of `data`, `model` and `noise` lie in the packages of those names, each `mechanism` block in the
folder of its mechanism, and the root of a recipe in `dprecipe.recipe`.
"""
