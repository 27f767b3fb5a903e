"""Stages that pay: what is learned from private records before training, and what that costs.

`events` has an event for each kind of stage, `sensitivities` how far one unit moves what is released, `bounded_range`
the mathematics of the exponential mechanism. Events of stages compose with those of training by the accountants. What
computes the statistics, draws the noise and applies the constants is not here.
"""
