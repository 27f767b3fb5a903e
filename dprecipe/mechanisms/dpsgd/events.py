"""The events of DP-SGD's steps; any mechanism of noisy sums may release them."""

from dprecipe.privacy.noisy_sums import (
    FixedSizeGaussian,
    Gaussian,
    PartitionedGaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
)

EVENTS = (
    Gaussian,
    PoissonGaussian,
    PartitionedGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
    FixedSizeGaussian,
)
