"""The account of a data set: what all runs on the same people have spent, and may still spend, together.

Here: the facts of an account, its chained entries, the rule by which they follow each other, the databases that keep
them, and the statement that a stranger recomputes. Not here: the mathematics (`dprecipe/privacy/filters/`), and runs,
which ask for a reservation and settle it (`dprecipe/training/`). No torch; a database's client is imported on use.
"""
