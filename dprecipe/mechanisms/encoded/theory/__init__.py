"""What a step of encoded gradients costs, for noise of any family.

Moments of the likelihood ratio, Rényi curves and privacy-loss distributions of a box of shifts: numpy and scipy, no
recipe, no torch. Gaussian noise needs none of it: there the step is an ordinary sampled Gaussian.
"""
