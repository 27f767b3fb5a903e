"""`dprecipe noise` and `dprecipe codebook`.

What a noise family costs at a recipe's budget, and codebooks from public gradients. They read the account of the
mechanism and change nothing in it.
"""
