"""Canaries inside a run: synthetic units, each in the training set by a secret coin, and what the run tells of the
coins.

`placement` says where a canary's gradient lies, `gradients` puts it into sums and scores what is released, `records`
makes records up instead, `coins` keeps the coins, and `run` compares guesses with the claim. What an auditor computes
without a run is in `dprecipe.privacy.audit`.
"""
