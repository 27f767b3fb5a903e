"""Measurements before anything is spent: memory, precision, noise, initial weights."""
