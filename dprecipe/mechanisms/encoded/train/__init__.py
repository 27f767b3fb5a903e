"""The part of gradient encoding that imports torch: encode, sum, denoise, and fit codebooks to public gradients.

Codebooks and their accounting are one folder up and never import this one.
"""
