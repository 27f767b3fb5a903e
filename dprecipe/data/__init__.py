"""The `data` block: sources, preprocessing, units, and records in memory.

Nothing is derived from the records: shapes, ranges, classes and sizes are declared in the recipe, and a file that is
otherwise is refused. Only `augment` imports torch. What a mechanism does with the records lies in its own folder; how
they reach a device lies in `dprecipe.training`.
"""
