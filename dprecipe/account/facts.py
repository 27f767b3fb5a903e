"""The facts of an account: fixed when it is created, and never changed."""

from __future__ import annotations

import math
import re
import secrets
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from dprecipe.account.canonical import Fields, digest_of, tell_time, to_line
from dprecipe.faults import UsageFault
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.filters.cap import Cap

SCHEMA = "dprecipe.account/v1"
NAME = r"[^\W_](?:[\w .()+-]{0,78}[\w)])?"
"""A name of an account: letters and digits of any script, and a few signs between them; no line breaks, quotes or
slashes."""
UNIT = r"[^\x00-\x1f\x7f]{1,200}"
SAME = 1e-9
"""The largest relative difference between two computations of one number."""


@dataclass(frozen=True, slots=True)
class AccountFacts:
    """The facts of an account: its cap, whom it protects, and under which relation.

    `unit`: who is protected, as recipes write it (`record`, or the column that names the person).
    `max_epsilon_per_run`: the largest ε that one run may claim. `orders`: the Rényi orders at which everything
    is charged, fixed with the cap. `id`: 128 random bits.

    Formal guarantee: everything that is ever released by the runs of the account, whatever was decided along the way,
    is (epsilon, delta)-differentially private (docs/how-to/account.md has the theorem and its conditions).
    """

    name: str
    id: str
    created: str
    epsilon: float
    delta: float
    unit: str
    neighbouring: Neighbouring
    max_epsilon_per_run: float | None
    orders: tuple[float, ...]

    @property
    def cap(self) -> Cap:
        """The cap of the filter."""
        return _make_cap(self.epsilon, self.delta)

    @property
    def digest(self) -> str:
        """The digest of the facts, which the first entry names as that of the line before it."""
        return _digest_facts(self)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self), "neighbouring": self.neighbouring.value, "orders": [*self.orders]}


def new_facts(
    name: str,
    epsilon: float,
    delta: float,
    unit: str,
    neighbouring: Neighbouring,
    max_epsilon_per_run: float | None = None,
) -> AccountFacts:
    """Returns the facts of a new account.

    Raises:
        UsageFault: the name is not valid, or the numbers are no cap.
    """
    if not re.fullmatch(NAME, name):
        raise UsageFault(
            f"{name!r} can't be the name of an account", "use up to 80 letters, digits, blanks and . ( ) + - _"
        )
    if not re.fullmatch(UNIT, unit):
        raise UsageFault(f"{unit!r} can't be a unit", "write it as the recipes do: a column's name, or record")
    for option, value in (("--epsilon", epsilon), ("--max-per-run", max_epsilon_per_run)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageFault(f"{option}: expected a number above 0, got {value:g}", "choose a finite ε, such as 8")
    if not 0 < delta < 1:
        raise UsageFault(f"--delta: expected a number between 0 and 1, got {delta:g}", "choose one such as 1e-6")
    if max_epsilon_per_run is not None and max_epsilon_per_run > epsilon:
        raise UsageFault("--max-per-run is above --epsilon, so it is no limit", "leave it out, or lower it")
    try:
        orders = _make_cap(float(epsilon), float(delta)).orders
    except ValueError as error:
        raise UsageFault(f"no account can have this cap: {error}", "choose another ε or δ") from None
    limit = None if max_epsilon_per_run is None else float(max_epsilon_per_run)  # 8 is another text than 8.0
    return AccountFacts(
        name,
        secrets.token_hex(16),
        tell_time(),
        float(epsilon),
        float(delta),
        unit,
        neighbouring,
        limit,
        orders,
    )


def read_facts(content: Any) -> AccountFacts:
    """Reads the facts from an untrusted JSON object.

    Raises:
        ValueError: `AccountFacts.to_json` does not write such an object, or its orders are not those of its cap.
    """
    fields = Fields(content)
    fields.text("schema", re.escape(SCHEMA))
    facts = AccountFacts(
        name=fields.text("name", NAME),
        id=fields.text("id", r"[0-9a-f]{32}"),
        created=fields.moment("created"),
        epsilon=fields.number("epsilon"),
        delta=fields.number("delta"),
        unit=fields.text("unit", UNIT),
        neighbouring=Neighbouring(fields.text("neighbouring", "[a-z_]+")),
        max_epsilon_per_run=None if fields.is_null("max_epsilon_per_run") else fields.number("max_epsilon_per_run"),
        orders=fields.numbers("orders"),
    )
    fields.end()
    own = facts.cap.orders
    if len(own) != len(facts.orders) or not all(map(_is_same, own, facts.orders)):
        raise ValueError("the orders are not those of the cap")
    return facts


@lru_cache(maxsize=64)
def _make_cap(epsilon: float, delta: float) -> Cap:
    """Makes a cap, cached because its orders take a millisecond to find."""
    return Cap(epsilon, delta)


@lru_cache(maxsize=64)
def _digest_facts(facts: AccountFacts) -> str:
    return digest_of(to_line(facts.to_json()))


def _is_same(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=SAME)
