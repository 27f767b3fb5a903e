"""The part of gradient encoding that imports torch: encode, sum, denoise, and fit codebooks to public gradients.

Codebooks as such, and what they cost, lie one folder up and never import this one.
"""
