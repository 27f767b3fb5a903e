"""Sums that one unit moves within a box, with noise of any symmetric distribution that falls with distance.

The mathematics of every release whose noise is not Gaussian: codes of gradients, sums bounded in L1 norm, votes under
Laplace noise. `box` states the release, with the standard library alone; `curves` gives its Rényi curve,
`pairs` its privacy-loss distribution, and `recheck` computes both again by other means.
"""
