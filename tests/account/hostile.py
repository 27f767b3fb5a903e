"""Documents of strangers about accounts."""

from __future__ import annotations

import json
from pathlib import Path

from dprecipe.account.canonical import digest_of
from dprecipe.account.entries import AccountEntry, BindAct, SlotsAct
from dprecipe.account.facts import SlotsPart, new_facts
from dprecipe.account.statement import STATEMENT_SCHEMA
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonGaussian


def write_costly_statement(path: Path) -> None:
    """A chain whose group of slots takes minutes to recompute."""
    facts = new_facts("a", 2.0, 1e-5, "record", Neighbouring.ADD_OR_REMOVE_ONE, None, SlotsPart(1.0, 1e-6))
    charges = tuple(Charge(PoissonGaussian(0.01 + 1e-6 * n, 1.0 + 1e-5 * n), 1000) for n in range(400))
    head, entries = facts.digest, []
    for number, act in enumerate((BindAct("0" * 64), SlotsAct("g", "x", charges, 0.9, 1e-7))):
        line = AccountEntry(number, head, facts.created, act).to_line()
        head = digest_of(line)
        entries.append(json.loads(line))
    path.write_text(json.dumps({"schema": STATEMENT_SCHEMA, "facts": facts.to_json(), "entries": entries}))
