"""The part of correlated noise that imports torch: the runner.

Accounting and checks of the recipe are one folder up, and never import this package.
"""
