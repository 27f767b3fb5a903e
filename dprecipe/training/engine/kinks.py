"""What rounding may do at the kinks of a network (of a ReLU, of a pool), where a gradient jumps."""

MOVED = 1e-6
"""Of a record's numbers: what passes through some layers in single precision is rounded by about as much."""
KINKS = 4.0
"""How many times as much as that moves a gradient, or a sum of them, another correct computation may differ."""
MAX_DIFFERENCE = 0.1
"""But by no more than this, of its size."""
