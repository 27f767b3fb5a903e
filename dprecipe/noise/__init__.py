"""Noise: families, their distributions, secret randomness, and draws from it.

numpy, and scipy where a formula needs it. `entropy` makes the ChaCha20 streams, `draws` the samples. What noise costs
lies in `dprecipe.privacy`; adding it to a sum on a device in `dprecipe.training.steps.noise`, and only the gate may ask
for it.
"""
