"""What `dprecipe plan` says of canaries: numbers of the recipe, and what theory expects."""

from __future__ import annotations

import pytest

from dprecipe.cli.plan import plan_lines
from dprecipe.cli.plan_canaries import describe_canaries
from dprecipe.contract.plan import Plan
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_text
from tests.recipe_texts import SMALL


def plan_of(text: str) -> Plan:
    return make_plan(read_text(text))


def test_a_plan_without_canaries_says_nothing_of_them() -> None:
    assert describe_canaries(plan_of(SMALL)) == []


@pytest.mark.parametrize("canary", ["gradient", "record"])
def test_a_plan_says_what_canaries_cost_and_show(canary: str) -> None:
    """1,437 records and 63 canaries in full batches; 650 weights, and μ = √20/z for 20 steps."""
    plan = plan_of(SMALL + f"audit: {{canaries: 63, canary: {canary}}}\n")
    rows = dict(describe_canaries(plan))
    assert (
        rows["canaries"]
        == f"63, each a {canary}, in the run by a secret coin: 31.5 of them in a batch of 1,500, as expected"
    )
    assert rows["they cost"].startswith("a batch has 4.20% fewer records")
    variance = 31.5 / (650 * plan.mechanism_plan.events[0].event.multipliers[0] ** 2)
    assert (f"about {variance:.2%} to the variance of the noise on a weight" in rows["they cost"]) is (
        canary == "gradient"
    )
    assert "at confidence 0.95" in rows["they show"]
    lines = "\n".join(plan_lines(plan))
    assert all(text in lines for text in rows.values())


def test_a_plan_names_both_sampling_rates() -> None:
    text = SMALL.replace("scheme: full_batch", "scheme: poisson, batch_size: 100")
    rows = dict(describe_canaries(plan_of(text + "audit: {canaries: 63}\n")))
    assert "the sampling rate is 0.0666667, and was 0.0695894 without" in rows["they cost"]
