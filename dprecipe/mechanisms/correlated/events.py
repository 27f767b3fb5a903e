"""The events of correlated noise. A run charges passes; groups of bands can be read, compared and verified."""

from dprecipe.privacy.correlated_sums import BandedGaussian, CycleGaussian

EVENTS = (CycleGaussian, BandedGaussian)
