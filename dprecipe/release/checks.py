"""The checks that this version makes on a program before it sees a record: exactly these, in these words."""

from __future__ import annotations

from collections.abc import Sequence

from dprecipe.mechanisms.plan import Plan
from dprecipe.release.facts import CheckResult
from dprecipe.release.schema import CheckFacts
from dprecipe.release.untrusted import one_line

_GRADIENTS = frozenset(
    {
        *("output", "loss_per_record", "records_independent", "losses_independent", "per_record_gradients"),
        *("gradients_independent", "larger_batches", "buffers_unmoved", "single_precision", "noise_scale"),
    }
)
CHECKS = {
    "dpsgd": frozenset({*_GRADIENTS, "clipped_sum", "clipped_sum_edges"}),
    "encoded": frozenset({*_GRADIENTS, "encoded_sum", "encoded_sum_edges"}),
    "pate": frozenset({"noise_scale", "parts_disjoint", "one_vote"}),
    "pnsgd": frozenset(
        {"noise_scale", "gradient_bound", "smoothness", "strong_convexity", "contraction", "projection", "lot_gradient"}
    ),
}
"""By mechanism."""
VOTES_FROM_A_FILE = frozenset({"noise_scale", "votes_add_up"})
"""Of teachers that were trained elsewhere: there is nothing of theirs to be tried."""

MAX_MEASURED, MAX_DEVICE = 400, 120
"""Characters of what a check measured, and of a device's name."""

TEXTS = {
    "output": "finite outputs, one row of logits for each record",
    "loss_per_record": "one finite loss for each record, nothing added up",
    "records_independent": "no record influences another's output",
    "losses_independent": "no record influences another's loss",
    "per_record_gradients": "per-record gradients equal those of a loop over single records",
    "gradients_independent": "no record influences another's gradient",
    "clipped_sum": "the clipped sum equals that of a loop over single records",
    "clipped_sum_edges": "an empty lot gives zero, a non-finite record adds zero, and a unit stays within the clip "
    "norm",
    "encoded_sum": "the encoded sum equals that of a loop over single records, and each code lies in its codeword's "
    "box",
    "encoded_sum_edges": "an empty lot gives zero, a non-finite record adds zero, and a unit adds one code",
    "larger_batches": "no output and no sum depends on how many records there are, up to what the engine takes at once",
    "buffers_unmoved": "no buffer moves in training, nor a weight by itself",
    "single_precision": "products and convolutions in single precision are not rounded to fewer bits",
    "noise_scale": "noise drawn by the gate has the planned law, scale and symmetry",
    "parts_disjoint": "each unit goes to one teacher, and none to another when units are added, removed or renamed",
    "one_vote": "a record that is replaced or removed changes the votes of its own teacher alone",
    "votes_add_up": "on every query each teacher votes once, for one of the declared classes",
    "gradient_bound": "no record's gradient is longer than L, and none moves it farther than Δ, however far its "
    "features and its target lie outside their bounds",
    "smoothness": "between two points of the set a gradient moves by at most β times their distance",
    "strong_convexity": "between two points of the set a gradient rises by at least ρ times their distance",
    "contraction": "a step without its noise brings two points no farther apart than M times their distance",
    "projection": "every point is moved to the nearest one of the set, and those of the set stay",
    "lot_gradient": "a step follows the mean of its records' gradients, and a short lot keeps its divisor",
}
"""What each of them shows. A certificate takes these words from here, so `verify` can compare them."""


def checks_of(plan: Plan) -> frozenset[str]:
    """The checks in every certificate of this plan: all of them, and no others."""
    return VOTES_FROM_A_FILE if plan.settings.get("teachers_from") == "file" else CHECKS[plan.mechanism]


def recorded(text: str, most: int) -> str:
    """What a run says of itself, as a certificate has it: one line without control characters, at most this long."""
    line = one_line(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def check_facts(found: CheckResult) -> CheckFacts:
    """A check as a certificate has it."""
    text = TEXTS.get(found.id, found.text)
    return CheckFacts(id=found.id, text=text, passed=found.passed, measured=recorded(found.measured, MAX_MEASURED))


def differences(stated: Sequence[CheckFacts], plan: Plan) -> list[str]:
    """Checks that are missing, do not belong to runs of this plan, stand twice, or did not pass."""
    expected, named = checks_of(plan), [check.id for check in stated]
    found = [f"checks: {name} was not made" for name in sorted(expected - set(named))]
    found += [f"checks: {name!a} is no check of such a run" for name in dict.fromkeys(named) if name not in expected]
    found += ["checks: one stands twice"] if len(set(named)) != len(named) else []
    return found
