"""Attacks on the compiled program with synthetic records, before it sees a private one.

They can show a fault, never its absence.

`run` audits any mechanism: each runner's `audit` says what it found, as evidence, and `dprecipe.privacy.audit` judges
it. The other modules attack the programs of noisy sums: what of this can be shown is in docs/how-to/audit.md.
"""
