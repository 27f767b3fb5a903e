"""The checks of a program before it sees a private record.

On synthetic batches: records must not influence each other, sums must keep their bounds, buffers must not move. It
finds what no list of layers can. Failures stop the run before anything is spent.
"""
