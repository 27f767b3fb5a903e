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
from dprecipe.privacy.filters.split import subtract_part

SCHEMA = "dprecipe.account/v1"
NAME = r"[^\W_](?:[\w .()+-]{0,78}[\w)])?"
"""A name of an account: letters and digits of any script, and a few signs between them; no line breaks, quotes or
slashes."""
UNIT = r"[^\x00-\x1f\x7f]{1,200}"
SAME = 1e-9
"""The largest relative difference between two computations of one number."""


@dataclass(frozen=True, slots=True)
class SlotsPart:
    """The part of a cap that is kept for groups of slots: the ε of all groups add up to at most `epsilon`, and their δ
    to at most `delta`."""

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class AccountFacts:
    """The facts of an account: its cap, whom it protects, and under which relation.

    `unit`: who is protected, as recipes write it (`record`, or the column that names the person).
    `max_epsilon_per_run`: the largest ε that one run may claim. `orders`: the Rényi orders at which everything
    is charged, fixed with the cap. `id`: 128 random bits. `slots`: the part of the cap for groups of slots, if any; the
    filter has the rest.

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
    slots: SlotsPart | None = None

    @property
    def cap(self) -> Cap:
        """The cap of the filter, for all runs that take no slots."""
        part = self.slots
        return _make_cap(self.epsilon, self.delta, *((0.0, 0.0) if part is None else (part.epsilon, part.delta)))

    def cap_of(self, slots: str | None) -> Cap:
        """Returns the cap at whose orders a run's cost is stated: the filter's; for a run that takes slots, and so
        costs the filter nothing, the whole cap. So little may be left for the filter that its orders say nothing."""
        return self.cap if slots is None else _make_cap(self.epsilon, self.delta, 0.0, 0.0)

    @property
    def digest(self) -> str:
        """The digest of the facts, which the first entry names as that of the line before it."""
        return _digest_facts(self)

    def to_json(self) -> dict[str, Any]:
        content = {"schema": SCHEMA, **asdict(self), "neighbouring": self.neighbouring.value, "orders": [*self.orders]}
        return {name: value for name, value in content.items() if name != "slots" or value is not None}


def new_facts(
    name: str,
    epsilon: float,
    delta: float,
    unit: str,
    neighbouring: Neighbouring,
    max_epsilon_per_run: float | None = None,
    slots: SlotsPart | None = None,
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
    if slots is not None and not (0 < slots.epsilon < epsilon and 0 < slots.delta < delta):
        raise UsageFault(
            "--slots-epsilon and --slots-delta: expected parts of the cap, above 0 and below --epsilon and --delta",
            "the filter has the rest; leave it a little, such as a thousandth of both",
        )
    part = (0.0, 0.0) if slots is None else (float(slots.epsilon), float(slots.delta))
    try:
        orders = Cap(epsilon, delta).orders and _make_cap(float(epsilon), float(delta), *part).orders
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
        None if slots is None else SlotsPart(*part),
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
        slots=_read_part(fields) if fields.has("slots") else None,
    )
    fields.end()
    own = facts.cap.orders
    if len(own) != len(facts.orders) or not all(map(_is_same, own, facts.orders)):
        raise ValueError("the orders are not those of the cap")
    return facts


def _read_part(fields: Fields) -> SlotsPart:
    inner = fields.inner("slots")
    part = SlotsPart(inner.number("epsilon"), inner.number("delta"))
    inner.end()
    if not (part.epsilon > 0 and part.delta > 0):
        raise ValueError("slots: a part of nothing")
    return part


@lru_cache(maxsize=64)
def _make_cap(epsilon: float, delta: float, slots_epsilon: float, slots_delta: float) -> Cap:
    """Makes a cap, cached because its orders take a millisecond to find."""
    return subtract_part(epsilon, delta, slots_epsilon, slots_delta)


@lru_cache(maxsize=64)
def _digest_facts(facts: AccountFacts) -> str:
    return digest_of(to_line(facts.to_json()))


def _is_same(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=SAME)
