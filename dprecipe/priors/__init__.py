"""Priors: images of random processes, made from a seed and byte for byte the same everywhere, and what is recorded of
the weights that were learned from them. No torch: learning is in `dprecipe.training.prior`.
"""
