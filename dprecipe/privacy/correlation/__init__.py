"""Noise whose steps are correlated, so that a step cancels part of the noise of earlier ones.

In units of the clip norm, step t releases y_t = x_t + m w_t, where x_t is the sum of clipped contributions, m the noise
multiplier and w = C⁻¹ z: z_t is fresh standard normal noise, C a lower-triangular Toeplitz matrix with 1 on its
diagonal. So C y = C x + m z, and a run costs what a Gaussian mechanism on C x costs (docs/explanation/accounting.md).
Here are C, how far one unit moves C x, and how much noise is left in the iterates.
"""
