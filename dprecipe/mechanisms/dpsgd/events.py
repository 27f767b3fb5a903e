"""What a step of DP-SGD releases: events that any mechanism of noisy sums may release."""

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
