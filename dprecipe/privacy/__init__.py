"""What every mechanism shares of accounting: events, accountants, calibration, the ledger.

Accountants compose what events give and know no kinds. All numbers returned are upper bounds. Mathematics that one
mechanism alone needs lies in its `theory`. No recipe is read here, and no noise is drawn.
"""
