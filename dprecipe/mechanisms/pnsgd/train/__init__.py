"""The part of PNSGD that runs: projected noisy steps whose iterates stay secret.

Closed-form losses, the descent on the CPU or on a device, the encrypted state, and the checks made before a private
record is seen. Constants and bounds lie one folder up.
"""
