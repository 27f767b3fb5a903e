"""The `model` block: the zoo, sizes without torch, and what a private model may not contain.

`schema`, `checks`, `layout` and `geometry` are plain arithmetic. `build`, `draw_free`, `load`, `modules` and `zoo`
import torch.
How a model is trained lies in `dprecipe.training`.
"""
