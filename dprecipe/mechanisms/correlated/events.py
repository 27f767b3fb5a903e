"""The events of correlated noise. A run charges passes in a fixed order, or groups of steps with bands."""

from dprecipe.privacy.correlated_sums import BandedGaussian, CycleGaussian

EVENTS = (CycleGaussian, BandedGaussian)
