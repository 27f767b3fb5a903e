"""Bounds on what the last iterate of a projected noisy descent reveals about one record.

Contraction, amplification by iteration and their combinations, place by place, and a cross-check by other means.
Functions of numbers: no recipe, no torch.
"""
