"""A run from its beginning to its end: folder, attempts, the gate and the ledger it writes, accounts, paid steps.

`start` begins; `attempt` is one attempt of any mechanism; `gate` admits each event.
"""
