"""Noise: families, their distributions, secret randomness, and draws from it.

numpy, and scipy where a formula needs it. `entropy` makes the ChaCha20 streams, `draws` the samples. What noise costs
lies in `dprecipe.privacy`; adding it to a sum on a device lies in `dprecipe.training.noise`, and only the gate of a
mechanism may ask for it.
"""
