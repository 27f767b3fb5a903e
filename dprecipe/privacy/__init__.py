"""Privacy accounting that all mechanisms share: events, accountants, calibration, the ledger.

Accountants compose what events provide and know no kinds of events. All numbers returned are upper bounds. Events of
noisy sums are here (`noisy_sums`, and `box` for noise that is not Gaussian); the events of one mechanism alone are in
its `events`, and its mathematics in its `theory`. No recipe is read here, and no noise is drawn.
"""
