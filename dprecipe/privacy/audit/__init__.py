"""Audits of a program: verdicts and lower bounds that anyone can recompute from the counts.

`results` has the types; `verdicts` (with p-values) and `program` make them. `counts` has bounds from trials with and
without one record, `any_program` those from one run with many canaries, `naming` the number of canaries to name,
`implied` the claims of a step and what its bound implies for a run, `power` the smallest fault that an audit of these
sizes detects.

An audit can show a fault, never its absence. Nothing here enters the claim, and nothing here imports torch.
"""
