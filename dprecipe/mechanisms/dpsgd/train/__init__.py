"""The part of DP-SGD that imports torch: the program of its steps.

Accounting and checks of the recipe are one folder up, and never import this package.
"""
