"""Several processes, on one machine or many, and what each of them keeps of weights and sums."""
