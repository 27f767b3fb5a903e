"""Noisy steps: `stepwise` is the run of mechanisms that take them, `noisy_steps` the loop, `noise` what is added."""
