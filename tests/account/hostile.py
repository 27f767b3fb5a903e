"""Documents of strangers about accounts."""

from __future__ import annotations

import json
from pathlib import Path

from dprecipe.account.canonical import digest_of
from dprecipe.account.entries import AccountEntry, BindAct, ReserveAct
from dprecipe.account.facts import new_facts
from dprecipe.account.statement import STATEMENT_SCHEMA
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import Spent
from dprecipe.privacy.noisy_sums import FixedSizeGaussian


def write_costly_statement(path: Path) -> None:
    """A chain with a reservation whose cost takes many seconds to recompute."""
    facts = new_facts("a", 2.0, 1e-5, "record", Neighbouring.REPLACE_ONE)
    charges = tuple(Charge(FixedSizeGaussian(1000 + n, 10, 1.0 + 1e-5 * n), 1) for n in range(400))
    cost = Spent((0.5,) * len(facts.orders))
    head, entries = facts.digest, []
    for number, act in enumerate((BindAct("0" * 64), ReserveAct("a", 1, "x", "n", charges, cost, None))):
        line = AccountEntry(number, head, facts.created, act).to_line()
        head = digest_of(line)
        entries.append(json.loads(line))
    path.write_text(json.dumps({"schema": STATEMENT_SCHEMA, "facts": facts.to_json(), "entries": entries}))
