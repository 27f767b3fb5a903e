"""How ε grows over a run: for progress bars and plots."""

from __future__ import annotations

from collections.abc import Sequence

from dprecipe.privacy.accountants import epsilon
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, Event


def spent_curve(
    event: Event,
    counts: Sequence[int],
    delta: float,
    neighbouring: Neighbouring,
    accountant: str,
    spent: Sequence[Charge] = (),
) -> tuple[float, ...]:
    """ε at δ after each number of events in `counts`, on top of `spent`; in the order of `counts`.

    Guarantees: every value is an upper bound, the same that `accountants.epsilon` gives for those charges;
    where the bound of a larger count happens to be smaller, that one is taken, so the curve never falls.

    Raises:
        ValueError: unknown accountant, δ outside (0, 1), a negative count.
    """
    values = {count: epsilon([*spent, Charge(event, count)], delta, neighbouring, accountant) for count in set(counts)}
    least = float("inf")
    for count in sorted(values, reverse=True):  # more events can't cost less
        least = min(least, values[count])
        values[count] = least
    return tuple(values[count] for count in counts)
