"""Sums of clipped gradients: one gradient for each unit.

Ways to compute them (layer by layer, by `vmap`, one by one), in full or reduced precision, on one device. The result
is a `ClippedSum`, which carries its sensitivity; noise is added by the gate, never here.
"""
