"""A score that every run pays for: how far a record moves it, what noise it has, and that it chooses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dprecipe.contract.plan import Plan
from dprecipe.data.load import read
from dprecipe.data.paid.release import release_right_answers
from dprecipe.data.records import Records
from dprecipe.faults import CertificateInvalid, RunFailed
from dprecipe.models.build import build
from dprecipe.models.file import describe_file, parse_description
from dprecipe.models.load import Released
from dprecipe.models.schema import Linear
from dprecipe.noise.entropy import Secrets
from dprecipe.release.certificate import to_bytes
from dprecipe.release.untrusted import ContentError
from dprecipe.release.verify import verify
from dprecipe.training.tuning.run import tune
from dprecipe.training.tuning.score import (
    SCORE,
    count_right_answers,
    find_score_event,
    prepare_alone,
    read_score,
)

Tuned = Callable[..., Plan]
PAID = ("data.test.access=private_internal", "tuning.score.noise_multiplier=8")


def test_the_noise_has_the_scale_of_the_event() -> None:
    """Mean and variance of 4,000 draws, within five deviations; and it is no rounded number."""
    stream = Secrets(1).stream("tuning", 0)
    draws = np.array([release_right_answers(300, 8.0, stream) for _ in range(4000)])
    assert abs(draws.mean() - 300) < 5 * 8 / 4000**0.5
    assert abs(draws.var() / 64 - 1) < 5 * (2 / 4000) ** 0.5
    assert len(np.unique(draws)) > 3900


@pytest.fixture
def held_out(tuned: Tuned, tmp_path: Path) -> tuple[Released, Records]:
    """A model that guesses, and 30 records as they were read."""
    plan = tuned(*PAID)
    torch.manual_seed(3)
    module = build(plan.model, (64,), 10, 0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    assert plan.data.test is not None
    records = read(plan.data.test, plan.data, tmp_path, "test")[0]
    few = replace(records, features=records.features[:30], labels=records.labels[:30])
    return Released(module, parse_description(json.dumps(describe_file(plan.model, plan.data)))), few


def test_where_any_of_several_names_may_apply_every_answer_has_to_be_right() -> None:
    module = build(Linear(kind="linear"), (2,), 2, 0)
    with torch.no_grad():
        module[1].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        module[1].bias.fill_(-0.5)
    content = {"schema": "dprecipe.model/v1", "model": {"kind": "linear"}, "shape": [2], "source_shape": [2]}
    model = Released(module, parse_description(json.dumps({**content, "several": ["a", "b"]})))
    features = np.array([[1, 1], [1, 0], [0, 0], [0, 1]], np.float32)
    assert count_right_answers(model, Records(features, np.array([3, 1, 0, 2]))) == 4
    assert count_right_answers(model, Records(features, np.array([3, 0, 1, 2]))) == 2


def take(records: Records, rows: list[int]) -> Records:
    return replace(records, features=records.features[rows], labels=records.labels[rows])


def count(model: Released, records: Records) -> int:
    return count_right_answers(model, prepare_alone(records, model))


def test_a_record_moves_the_count_by_one_at_most_and_some_do(held_out: tuple[Released, Records]) -> None:
    """All removals, and all replacements of one record by another: each in {-1, 0, 1}, and both ends are attained."""
    model, records = held_out
    whole, rows = count(model, records), list(range(len(records)))
    alone = [count(model, take(records, [row])) for row in rows]
    assert sum(alone) == whole
    assert {0, 1} == set(alone)
    for row in rows:
        assert whole - count(model, take(records, rows[:row] + rows[row + 1 :])) == alone[row]
    right, wrong = alone.index(1), alone.index(0)
    for old, new in ((right, wrong), (wrong, right)):
        replaced = take(records, [new if row == old else row for row in rows])
        assert count(model, replaced) - whole == alone[new] - alone[old]
    assert count(model, take(records, [])) == 0


def test_what_is_counted_of_a_record_does_not_depend_on_the_others(held_out: tuple[Released, Records]) -> None:
    """To the last bit: in another order, and among other records."""
    model, records = held_out
    there = prepare_alone(records, model).features
    turned = prepare_alone(take(records, list(range(len(records)))[::-1]), model).features
    assert np.array_equal(there, turned[::-1])
    assert np.array_equal(prepare_alone(take(records, [7]), model).features[0], there[7])


def test_the_event_is_the_one_that_every_run_is_charged(tuned: Tuned) -> None:
    paid = tuned(*PAID)
    event = find_score_event(paid)
    assert event is not None
    assert event.noise_scale == 8
    assert paid.tuning is not None
    assert find_score_event(tuned()) is None
    free = tuned().tuning
    assert free is not None
    with pytest.raises(RunFailed, match="no run is charged"):
        find_score_event(replace(paid, tuning=replace(paid.tuning, charge=free.charge)))


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"schema": "dprecipe.trial-score/v1", "right_answers": 3}', '{"schema": "x", "right_answers": 3.0}',
     '{"schema": "dprecipe.trial-score/v1", "right_answers": NaN}'],
)  # fmt: skip
def test_another_file_is_no_score(text: str, tmp_path: Path) -> None:
    (tmp_path / SCORE).write_text(text, "utf-8")
    with pytest.raises(ContentError):
        read_score(tmp_path)


@pytest.mark.slow
def test_a_paid_score_chooses_the_model_and_is_in_its_claim(tuned: Tuned, tmp_path: Path) -> None:
    plan = tuned(*PAID, "tuning.runs={kind: fixed, count: 3}", "training.steps=60")
    done = tune(plan, tmp_path / "run")
    verified = verify(done.release)
    assert verified.claim.epsilon == done.epsilon <= 3
    header, *rows = (done.folder / "private" / "trials.csv").read_text("utf-8").splitlines()
    assert header.endswith(",noisy_right_answers")
    best = max(rows, key=lambda row: float(row.rpartition(",")[2]))
    assert done.plan.tuning is not None
    assert best.startswith(",".join(str(value) for value in (done.plan.tuning.chosen or {}).values()))
    stated = verified.statement.predicate
    assert stated.tuning is not None
    assert stated.tuning.score_noise_multiplier == 8
    assert stated.data_access.evaluation.released is None
    assert "chose this model" in stated.data_access.evaluation.text
    released = "".join(path.read_text("utf-8", errors="replace") for path in done.release.iterdir())
    assert best.rpartition(",")[2] not in released
    file = done.release / "certificate.json"
    text = file.read_text("utf-8")
    for change in (
        lambda predicate: predicate["tuning"].update(score_noise_multiplier=4.0),
        lambda predicate: predicate["tuning"].update(score_noise_multiplier=None),
        lambda predicate: predicate["events"]["run_length"][0]["base"].pop(),
        lambda predicate: predicate["data_access"]["evaluation"].update(text="on public records"),
    ):
        content = json.loads(text)
        change(content["predicate"])
        file.write_bytes(to_bytes(content))
        with pytest.raises(CertificateInvalid):
            verify(done.release)
