"""Accounting of many runs on one data set, each chosen in view of what earlier runs released.

`cap` has the cap and what was spent of it, `cost` the cost of a run, `filter` what may still be spent and how much was,
`needed` the cap that a number of runs needs. docs/how-to/account.md has the theorems and their proofs.

No account is stored here, and nothing is read.
"""
