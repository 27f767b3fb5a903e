"""The events of DP-SGD's steps; any mechanism of noisy sums may release them."""

from dprecipe.privacy.capped_sums import CappedDealtGaussian
from dprecipe.privacy.dealt_sums import DealtGaussian, PermutedGaussian
from dprecipe.privacy.grouped_sums import GroupedGaussian
from dprecipe.privacy.noisy_sums import (
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
)

EVENTS = (
    Gaussian,
    PoissonGaussian,
    GroupedGaussian,
    DealtGaussian,
    CappedDealtGaussian,
    PermutedGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
    FixedSizeGaussian,
)
