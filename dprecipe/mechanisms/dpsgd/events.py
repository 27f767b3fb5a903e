"""The events of DP-SGD's steps; any mechanism of noisy sums may release them."""

from dprecipe.privacy.grouped_sums import GroupedGaussian
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
    GroupedGaussian,
    PartitionedGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
    FixedSizeGaussian,
)
