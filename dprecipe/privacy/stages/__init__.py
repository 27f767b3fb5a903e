"""Paid stages: learning from private records before training, and its cost.

`events` has an event for each kind of stage and the distance that one unit moves its release,
`bounded_range` the mathematics of the exponential mechanism. The accountants compose events of stages with those of
training. The code that computes the statistics, draws the noise and applies the constants is elsewhere.
"""
