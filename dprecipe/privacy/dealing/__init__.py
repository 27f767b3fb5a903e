"""Likelihood ratios of epochs in which every unit takes part at most once: sums of log-normal terms.

A run whose noisy sums move by known amounts in one of several hidden scenarios is dominated by a mixture of shifted
Gaussians against an unshifted one, whatever is chosen adaptively, in both directions at once (docs/explanation/
accounting.md). For an epoch that mixture has one likelihood ratio, A = idle + weight Σ Xᵢ with Xᵢ = exp(μ zᵢ - μ²/2).
Here its law is put on a grid by mean-preserving spreads, which keep it an upper bound.
"""
