"""The best of several runs, as `dprecipe tune` makes it.

`draws` draws how many runs there are and with which values, once; `trials` makes one of them, and `score` what it pays
for its score; `pool` makes all, in several processes; `winner` chooses one and publishes it; `losers` keeps what is
kept of the others and deletes them; `run` is the whole, under one ledger. On several machines `cluster` starts or joins
Ray, `order` is what a worker is asked for and does, and where, `parcel` what comes back, and `ray_pool` makes all.
"""
