"""Canaries inside a run: synthetic units, each in the training set by a secret coin, and what the run tells of the
coins.

`contract` has the coins and says where a canary's gradient lies, `gradients` puts it into sums and scores what is
released, and `run` makes records up instead and compares guesses with the claim. What an auditor computes without a run
is in `dprecipe.privacy.audit`.
"""
