"""The mechanisms, one package each: the top floor, reached through `dprecipe.contract.table` alone.

They never import each other. What mechanisms that add noise to sums share is in `dprecipe.noisy_sum`.
"""
