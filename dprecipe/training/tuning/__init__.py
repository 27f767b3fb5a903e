"""The best of several runs, as `dprecipe tune` makes it.

`draws` draws how many runs there are and with which values, once; `trials` makes one of them; `pool` makes all, in
several processes; `winner` chooses one and publishes it; `run` is the whole, under one ledger.
"""
