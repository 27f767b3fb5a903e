"""The cost of training several times and releasing the best model: the number of runs, bounds, the event, planning.

`runs` has the distributions of the number of runs, `base` one run's δ(ε) in both directions and the Rényi bound of the
best, `selection` the profile bounds of the best, `score` the charge of a paid score, `profile` all bounds
for one tuned run, `events` the event, `plan` the noise of a run for a total budget, and `recheck` computes the
same a second time for the cross-check.
"""
