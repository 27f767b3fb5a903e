"""Shared parts of mechanisms whose steps add noise to a sum over units.

The `sampling` block, the batch that an event draws, schedules cut into phases of constant value, and solving for
noise, length or budget. It knows no mechanism: clipping and encoding are in their own folders, the sums in
`dprecipe.training.engine`.
"""
