"""The runtime, behind the wall: torch and Lightning.

Attempts, the gate, checks before a run, checkpoints, evaluation and publishing, for all mechanisms. It obeys the Plan
and never reads a recipe. What a step of one mechanism does lies in that mechanism's `train`.
"""
