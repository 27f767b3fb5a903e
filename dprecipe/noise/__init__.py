"""Noise: families, their distributions, secret randomness, and draws from it.

Uses numpy, and scipy where a formula needs it. `entropy` makes the ChaCha20 streams, `draws` the samples. The cost of
noise is in `dprecipe.privacy`. `dprecipe.training.steps.noise` adds it to a sum on a device, and only the gate may ask
for it.
"""
