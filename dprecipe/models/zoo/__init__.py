"""The modules that a recipe can name, built with torch.

Each treats every record by itself: nothing is normalised over a batch. Sizes and tensor names of the same modules,
without torch, lie in `dprecipe.models.layout`; tests hold them against the modules.
"""
