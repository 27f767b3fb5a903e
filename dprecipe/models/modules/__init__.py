"""Modules passed from Python: how they are inspected and called, what they draw, and which values of records they read.

Training and loading a release call them in the same way. Everything here imports torch.
"""
