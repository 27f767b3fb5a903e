"""The part of PNSGD that runs: projected noisy steps whose iterates stay private.

Closed-form losses, the descent on the CPU or on a device, the encrypted state, and the probe on synthetic records.
Constants and bounds are one folder up.
"""
