"""The cost of noisy votes.

Bounds of an answer in the worst case and for the votes at hand, the Gaussian filter, smooth sensitivity and sanitised
costs: functions of numbers, no recipe, no torch, no files.
"""
