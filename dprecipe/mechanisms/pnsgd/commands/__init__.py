"""`dprecipe positions`: the guarantee of a record by its place in the order.

It tabulates and plots what `theory` computes, beside the bounds of the papers.
"""
