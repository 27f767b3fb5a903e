"""Modules as they come from Python: how they are called, what they draw, and what they read of records.

Who trains them and who loads what was released call them alike. Everything here imports torch.
"""
