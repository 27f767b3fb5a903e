"""A plan with a split: what it counts on is public, and what it says of the split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dprecipe.cli.plan import plan as show_plan
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import MECHANISMS, mechanism_of
from dprecipe.faults import DataFault, PlanRefused, RecipeError, UsageFault
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read, read_text
from dprecipe.release.claim import list_unprotected
from dprecipe.training.program.gather import gather_records

RULES = Path(__file__).parents[1] / "golden" / "rules"


def plan_of(name: str, *overrides: str) -> Plan:
    return plan(read(RULES / f"{name}.yaml", overrides))


def test_rates_and_lengths_are_planned_from_size_and_share() -> None:
    whole = plan_of("fine-split", "data.test=null", "data.size=7650")
    split = plan_of("fine-split")
    assert split.mechanism_plan.sampling_rate == whole.mechanism_plan.sampling_rate == 256 / 7650
    assert (split.length, split.guarantee.epsilon) == (whole.length, whole.guarantee.epsilon)
    assert (split.hides_duration, whole.hides_duration) == (True, False)


def test_the_plan_says_how_the_split_is_made_and_what_it_leaves_open() -> None:
    split = plan_of("fine-split")
    texts = {assumption.id: assumption.text for assumption in split.assumptions}
    assert "keyed hash of each record's 'patient' (BLAKE2b, seed 0)" in texts["split"]
    assert texts["size"] == (
        "the number of units in the training source, 9000, is public; how many of them are not held out is not public, "
        "and 7650 are planned for"
    )
    assert any(
        "on which side of the split a group of records with the same 'patient' is" in text
        for text in list_unprotected(split)
    )


def test_a_protected_size_and_a_split_together() -> None:
    count = "data.preprocess=[{dp_count: {share: 0.05}}]"
    both = plan_of("fine-split", "data.size={max: 9000}", count)
    assert both.mechanism_plan.sampling_rate == 256 / 7650
    (size,) = [assumption.text for assumption in both.assumptions if assumption.id == "size"]
    assert size.startswith("there are from 1 to 9000 units in the training source; how many is protected")


def test_no_logger_tells_how_long_a_run_on_one_side_takes() -> None:
    with pytest.raises(PlanRefused) as caught:
        plan_of("fine-split", "runtime.loggers=[{kind: mlflow, uri: 'http://host:1'}]")
    assert [finding.code for finding in caught.value.findings] == ["P195"]
    assert "data.test.split keeps secret" in caught.value.findings[0].message
    plan_of("fine-split", "runtime.loggers=[{kind: csv, values: private}]")


def test_only_mechanisms_that_need_no_number_of_units_take_a_split() -> None:
    assert {kind: mechanism_of(kind).can_split for kind in MECHANISMS} == {
        "dpsgd": True, "encoded": True, "pate": True, "pnsgd": False, "correlated": True,
    }  # fmt: skip


DIGITS = """
recipe: dprecipe/v1
name: digits
data:
  train: {source: digits, split: train}
  test: {split: {share: 0.2}}
  size: 1438
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5, neighbouring: zero_out_one}
training: {steps: 4, optimizer: {kind: sgd, lr: 0.5}}
"""


def test_a_run_reads_each_side_once_and_the_same_each_time() -> None:
    made = plan(read_text(DIGITS))
    first, again = gather_records(made, Path()), gather_records(made, Path())
    rows = [{row.tobytes() for row in first.sources[role].batch(slice(None))[0]} for role in ("train", "test")]
    assert 1140 < len(first.sources["train"]) < 1438 - 200
    assert len(first.sources["train"]) + len(first.sources["test"]) == 1438
    assert len(rows[0] & rows[1]) == 0
    for role in ("train", "test"):
        np.testing.assert_array_equal(
            first.sources[role].batch(slice(None))[0], again.sources[role].batch(slice(None))[0]
        )


def test_the_plan_tells_what_it_counts_on(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(RULES / "fine-split.yaml")
    printed = capsys.readouterr().out
    assert "a share of 0.15, by a hash; planned for 7,650 training units of 9,000, how many is not public" in printed


def test_a_wrong_size_is_reported_once_for_both_sides() -> None:
    with pytest.raises(DataFault) as fault:
        gather_records(plan(read_text(DIGITS.replace("size: 1438", "size: 1437"))), Path())
    assert fault.value.message.count("data.train does not have the number of records") == 1
    assert "1,438" not in fault.value.message


def test_training_records_from_python_are_not_divided() -> None:
    train = (np.zeros((1438, 64), np.float32), np.zeros(1438, np.int64))
    with pytest.raises(UsageFault, match="`train` replaces that source"):
        gather_records(plan(read_text(DIGITS)), Path(), {"train": train})


def test_a_share_alone_is_told_what_it_lacks() -> None:
    with pytest.raises(RecipeError) as error:
        read_text(DIGITS.replace("{split: {share: 0.2}}", "{split: 0.2}"))
    (finding,) = error.value.findings
    assert (finding.code, finding.path) == ("R103", "data.test.split")
    assert finding.message == "expected a block with `by`, `share`, `seed`, got 0.2"
