"""What an audit of a program shows: verdicts and lower bounds, from counts that anyone can recompute them from.

`results` has the types; `verdicts` and `program` make them. `tails` has p-values, `counts` bounds from trials with and
without one record, `guesses` the bound from one run with many canaries, `naming` how many of them are named, `implied`
the claims of a step and what its bound says of a run, `power` the smallest fault that an audit of these sizes sees.

An audit can show a fault, never its absence. Nothing here enters the claim, and nothing here imports torch.
"""
