"""What a mechanism is, and one folder for each.

`contract` says what a folder gives, `plan` what a run obeys, and `table` registers each mechanism in one line.
`noisy_sum` is shared by mechanisms that add noise to sums. Folders never import each other, and no package outside of
this one names a mechanism.
"""
