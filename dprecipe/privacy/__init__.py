"""What every mechanism shares of accounting: events, accountants, calibration, the ledger.

Accountants compose what events give and know no kinds. All numbers returned are upper bounds. Events of noisy sums
are here (`noisy_sums`, and `box` for noise that is not Gaussian); what one mechanism alone releases lies in its
`events`, and its mathematics in its `theory`. No recipe is read here, and no noise is drawn.
"""
