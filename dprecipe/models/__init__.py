"""The `model` block: the zoo, sizes without torch, and what a private model may not contain.

`schema`, `checks` and `layout` are plain arithmetic. `build`, `load`, `modules` and `zoo` import torch.
How a model is trained lies in `dprecipe.training`.
"""
