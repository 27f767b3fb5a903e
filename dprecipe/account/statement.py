"""The public statement of an account: its facts and all its entries, which a stranger recomputes.

It holds no secret: the commitment to the data is keyed, and the key stays in the database. It shows how many runs there
were, when each began, under which name, and what each drew; none of that depends on the records.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from dprecipe.account.books import Books
from dprecipe.account.canonical import Fields, to_line
from dprecipe.account.check import Recount, recount
from dprecipe.account.facts import read_facts
from dprecipe.account.faults import AccountInvalid
from dprecipe.account.standing import AccountState
from dprecipe.privacy.rounding import round_up_finite

STATEMENT_SCHEMA = "dprecipe.account-statement/v1"
MAX_BYTES = 512 * 2**20
SUBJECT = "the statement"


def export_statement(books: Books) -> dict[str, Any]:
    """Returns the statement of an account at this moment, as JSON values."""
    entries = [json.loads(line) for _, line in books.read_lines()]
    return {
        "schema": STATEMENT_SCHEMA,
        "facts": books.facts.to_json(),
        "entries": entries,
        **summarise(AccountState(books.facts, books.totals)),
    }


def summarise(state: AccountState) -> dict[str, Any]:
    """Returns the totals of the entries. `epsilon_so_far` and `odometer` are rounded up; null if infinite."""
    return {
        "count": state.totals.count,
        "head": state.totals.head,
        "runs": state.totals.runs,
        "open_reservations": state.totals.opened,
        "spent": state.spent.to_json(),
        "epsilon_so_far": round_up_finite(state.epsilon),
        "odometer": round_up_finite(state.odometer),
    }


def verify_statement(content: Any, passed: Callable[[Recount], None] | None = None) -> Recount:
    """Recomputes a statement that a stranger wrote. Calls `passed` with the count after each entry; the count is
    confirmed only once this returns.

    Guarantees: the entries are a chain that begins with the facts, each follows by the rules, no cost is below that of
    its events, all that was reserved stayed within the cap at every moment, and the statement's totals follow.

    Raises:
        AccountInvalid: naming each thing that does not hold.
    """
    try:
        fields = Fields(content)
        fields.text("schema", re.escape(STATEMENT_SCHEMA))
        facts = read_facts(fields.mapping("facts"))
        lines = [to_line(entry) for entry in fields.items("entries")]
    except (ValueError, TypeError, ArithmeticError, RecursionError, AttributeError) as error:
        raise AccountInvalid(SUBJECT, [str(error)]) from None
    count = recount(facts, lines, SUBJECT, passed)
    expected = summarise(count.state)
    exact = {"epsilon_so_far": count.state.epsilon, "odometer": count.state.odometer}
    wrong = [
        name
        for name, value in expected.items()
        if not (_is_near(content.get(name), exact[name]) if name in exact else _is_same(content.get(name), value))
    ]
    extra = sorted(set(content) - set(expected) - {"schema", "facts", "entries"})
    if wrong or extra:
        raise AccountInvalid(
            SUBJECT,
            [f"{name}: expected {expected[name]}, computed from the entries" for name in wrong]
            + [f"{name}: unknown" for name in extra],
        )
    return count


def _is_same(said: Any, computed: Any) -> bool:
    return type(said) is type(computed) and bool(said == computed)


def _is_near(said: Any, exact: float) -> bool:
    """Returns True if `said` is the exact number, rounded up: another computer's functions may differ in the last
    digits."""
    if not math.isfinite(exact):
        return said is None
    return isinstance(said, float) and exact * (1 - 1e-9) <= said <= exact * (1 + 2e-5)
