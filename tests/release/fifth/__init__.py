"""A mechanism that the trunk has never heard of: noise is added once, to the weights of a model.

What is here is what a certificate needs of a mechanism: its block, its account, its plan, its events and its part.
"""

from dprecipe.contract.mechanism import Mechanism

MECHANISM = Mechanism(kind="fifth", package="fifth", summary="noise on the weights, once")
