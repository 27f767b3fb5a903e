"""Certificates of DP-SGD's clip modes, phases and batches: what they say, and that a stranger can verify them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.release.verify import verify

CUT = "mechanism.sampling={scheme: truncated_poisson, batch_size: 64, max_batch_size: 128}"
FIXED = ("mechanism.sampling={scheme: fixed_size, batch_size: 64}", "budget.neighbouring=replace_one")
LAPLACE = ("mechanism.noise={family: laplace, multiplier: auto}", "mechanism.clip={mode: per_layer, norm: 2.0}")
MOVING = (
    "mechanism.sampling.batch_size={schedule: linear, from: 32, to: 64}",
    "mechanism.clip.norm={schedule: linear, from: 2.0, to: 1.0}",
)


def stated(release: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((release / "certificate.json").read_text("utf-8"))["predicate"]
    return content


@pytest.fixture
def predicate(
    tmp_path: Path, plan_of: Callable[..., Plan], finish: Callable[..., Any], facts_of: Callable[..., Any]
) -> Callable[..., dict[str, Any]]:
    def make(*overrides: str) -> dict[str, Any]:
        done = finish(tmp_path, plan_of(overrides=("training.steps=4", *overrides)), facts_of())
        verify(done.release)
        return stated(done.release)

    return make


@pytest.mark.slow
def test_adaptive_clipping_and_batches_with_a_cap(predicate: Callable[..., dict[str, Any]]) -> None:
    facts = predicate("mechanism.clip={mode: adaptive, norm: 0.5}", CUT)
    clipping, sampling = facts["mechanism"]["clipping"], facts["sampling"]
    assert (clipping["mode"], clipping["norm"], clipping["norm_kind"]) == ("adaptive", 0.5, "l2")
    count, z = clipping["count"], facts["mechanism"]["noise"]["multiplier"]
    assert (count["quantile"], count["noise"]) == (0.5, 3.2)
    assert 1 / count["gradient_multiplier"] ** 2 + 1 / 6.4**2 == pytest.approx(1 / z**2)
    assert facts["mechanism"]["noise"]["standard_deviation"] == pytest.approx(0.5 * count["gradient_multiplier"])
    assert (sampling["scheme"], sampling["largest_batch"]) == ("truncated_poisson", 128)
    assert facts["events"]["run_length"][0]["max_batch_size"] == 128


@pytest.mark.slow
def test_dealt_batches_with_a_limit(predicate: Callable[..., dict[str, Any]]) -> None:
    facts = predicate("mechanism.sampling={scheme: dealt, batch_size: 64, batch_limit: 128}")
    assert (facts["sampling"]["scheme"], facts["sampling"]["largest_batch"]) == ("dealt", 128)
    event = facts["events"]["run_length"][0]
    assert (event["kind"], event["batch_limit"], event["size"], event["taken"]) == (
        "capped_dealt_gaussian",
        128,
        1437,
        4,
    )


@pytest.mark.slow
def test_noise_of_its_own_for_each_group_of_layers(predicate: Callable[..., dict[str, Any]]) -> None:
    facts = predicate("mechanism.clip={mode: per_layer, norms: [0.5], noise: [2.0]}")
    clipping, noise = facts["mechanism"]["clipping"], facts["mechanism"]["noise"]
    event = facts["events"]["run_length"][0]
    assert event["kind"] == "grouped_gaussian"
    assert event["groups"] == [[clipping["noise"][0], 1]]
    assert noise["multiplier"] == pytest.approx(clipping["noise"][0])
    assert noise["scale"] == pytest.approx(0.5 * clipping["noise"][0])


def test_laplace_noise_layer_by_layer(predicate: Callable[..., dict[str, Any]]) -> None:
    facts = predicate(*LAPLACE)
    assert facts["mechanism"]["clipping"]["norm_kind"] == "l1"
    assert facts["mechanism"]["clipping"]["layers"] == [1.0]
    noise = facts["mechanism"]["noise"]
    assert noise["standard_deviation"] == pytest.approx(2**0.5 * noise["scale"])
    assert facts["events"]["run_length"][0]["kind"] == "poisson_laplace"


@pytest.mark.slow
def test_batches_of_one_size(predicate: Callable[..., dict[str, Any]]) -> None:
    facts = predicate(*FIXED)
    assert facts["claim"]["neighbouring"] == "replace_one"
    assert facts["assumptions"][0] == {"id": "sampling", "checked_by": "code"}


@pytest.mark.slow
def test_schedules_are_phases(predicate: Callable[..., dict[str, Any]]) -> None:
    facts = predicate(*MOVING)
    phases = facts["mechanism"]["phases"]
    assert [phase["expected_batch"] for phase in phases] == pytest.approx([32, 32 + 32 / 3, 64 - 32 / 3, 64])
    assert [phase["clip_norm"] for phase in phases] == pytest.approx([2, 5 / 3, 4 / 3, 1])
    assert [run["count"] for run in facts["events"]["run_length"]] == [1, 1, 1, 1]
