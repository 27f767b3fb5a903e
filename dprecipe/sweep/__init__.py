"""`dprecipe sweep`: a run of a recipe for each combination of values and each seed, where looking at all scores costs
nothing or is charged to an account. Only the runs themselves import torch.
"""
