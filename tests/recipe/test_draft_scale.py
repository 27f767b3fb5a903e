"""Measurements of a public draft on its sample: by other code, and only where it may."""

from __future__ import annotations

import csv
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dprecipe.cli.main import app
from dprecipe.contract.starter import Measured, Task
from dprecipe.mechanisms.dpsgd.starter import LOGIT_NOISE, MANY
from dprecipe.planning.make import plan
from dprecipe.recipe.draft_scale import INDICATOR, LEAST, MAX_SCALED, measure_scaling, read_label
from dprecipe.recipe.read import read, read_text
from dprecipe.recipe.starters import make_starter

AGES = [18.0, 30.0, 35.0, 90.0, 31.0, 33.0]
SAMPLE = {
    "age": [f"{age:g}" for age in AGES],
    "ward": ["a", "b", "a", "a", "a", "b"],
    "late": ["no", "", "yes", "no", "no", "yes"],
    "dose": ["5", "5", "5", "5", "5", "5.001"],
}
COLUMNS: dict[str, dict[str, Any]] = {
    "age": {"kind": "numeric", "min": 0, "max": 100},
    "ward": {"kind": "category", "values": ["a", "b"]},
    "late": {"kind": "boolean", "missing": {"fill": False, "indicator": True}},
    "dose": {"kind": "numeric", "min": 0, "max": 10},
}


def test_features_are_measured_as_a_run_reads_them() -> None:
    found = measure_scaling(COLUMNS, SAMPLE, [])
    assert found is not None
    ages = [age / 100 for age in AGES]
    doses = [float(text) / 10 for text in SAMPLE["dose"]]
    features: list[list[float]] = [
        ages, [1, 0, 1, 1, 1, 0], [0, 1, 0, 0, 0, 1], [0] * 6,  # none of the declared wards
        [0, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0], doses,
    ]  # fmt: skip
    assert found.means == pytest.approx([statistics.mean(one) for one in features], abs=5e-4)
    spread = statistics.pstdev(ages)
    assert found.deviations == pytest.approx([spread, *[INDICATOR] * 5, LEAST], abs=5e-4)
    scaled = [
        [(value - mean) / std for value in one]
        for one, mean, std in zip(features, found.means, found.deviations, strict=True)
    ]
    lengths = [1 + sum(value**2 for value in row) for row in zip(*scaled, strict=True)]
    assert found.measured.norm == pytest.approx(math.sqrt(statistics.mean(lengths)))
    assert found.measured == Measured(7, found.measured.norm, 0.0, 0.0)


def test_a_recipe_lists_no_more_constants_than_can_be_read() -> None:
    columns = {f"c{number}": {"kind": "boolean"} for number in range(MAX_SCALED + 1)}
    sample = {name: ["yes", "no"] for name in columns}
    assert measure_scaling(columns, sample, []) is None
    del columns["c0"]
    assert measure_scaling(columns, sample, []) is not None


@pytest.mark.parametrize(
    ("texts", "declared", "expected"),
    [
        (["0", "75", "100", "140", "NA"], {"range": [0, 100]}, [-1.0, 0.5, 1.0, 1.0]),
        (["1,5", "2,5"], {"range": [0.5, 2.5], "decimal": ","}, [0.0, 1.0]),
        (["0", "3"], {"count": {"max": 9}}, [0.0, 3.0]),
        (["1", "2"], {"values": ["1", "2"]}, []),
    ],
)
def test_a_label_is_measured_in_the_units_of_its_loss(
    texts: list[str], declared: dict[str, Any], expected: list[float]
) -> None:
    assert read_label(texts, declared) == pytest.approx(expected)


def draft_text(label: str, size: int | None, measured: Measured, epsilon: float | None = None) -> str:
    data = (
        "data:\n  train: {source: csv, path: a.csv, columns: {x: {kind: boolean}}, "
        f"label: {{column: y, values: [a, b]}}}}\n  size: {size}\n"
    )
    return make_starter("dpsgd", "csv", "s", data, task=Task((label,), 3, size, measured, epsilon=epsilon))


def clip_and_rate(
    label: str, size: int | None, measured: Measured, epsilon: float | None = None
) -> tuple[float, float]:
    text = draft_text(label, size, measured, epsilon)
    norm, rate = text.partition("norm: ")[2], text.partition("lr: ")[2]
    return float(norm.partition("}")[0]), float(rate.partition("}")[0])


def test_steps_are_as_long_as_features_and_errors() -> None:
    """A plain step is stable below 2 over the largest curvature, which is at most norm² (times 1/2 for classes, times
    the rate for counts)."""
    for norm in (1.5, 4.0, 9.0):
        for label, curvature in (("range", 1.0), ("values", 0.5), ("count", 3.0)):
            _, rate = clip_and_rate(label, 500, Measured(9, norm, 3.0, 0.2))
            assert 0.4 / curvature < rate * norm**2 < 2 / curvature
    short, long = (clip_and_rate("range", 500, Measured(9, 3.0, 0.0, spread))[0] for spread in (0.1, 0.4))
    assert long == pytest.approx(4 * short, rel=0.1)
    few, some, many = (clip_and_rate("range", size, Measured(9, 3.0, 0.0, 0.2))[0] for size in (100, 500, 9_000))
    assert few < some < many == pytest.approx(5 * few, rel=0.1)
    assert clip_and_rate("range", None, Measured(9, 3.0, 0.0, 0.0))[0] > 0


@pytest.mark.parametrize("length", [1.5, 4.0, 9.0])
@pytest.mark.parametrize(("size", "epsilon"), [(300, 0.1), (3_000, 0.07), (9_000, 0.02), (20_000, 0.01), (100, 3.0)])
def test_the_noise_of_all_steps_does_not_drown_a_logit(size: int, epsilon: float, length: float) -> None:
    """Each step adds rate · multiplier · clip norm / batch to a weight; independent steps add up as squares."""
    measured = Measured(20, length, 0.0, 0.0)
    planned = plan(read_text(draft_text("values", size, measured, epsilon)))
    assert planned.budget.epsilon == epsilon
    norm, rate = clip_and_rate("values", size, measured, epsilon)
    batch = size if size < MANY else size // 20
    step = rate * planned.solved["mechanism.noise.multiplier"] * norm / batch
    assert 0.5 * LOGIT_NOISE < length * step * math.sqrt(planned.length.steps) < 1.2 * LOGIT_NOISE


def test_steps_are_shorter_of_few_records_and_a_small_epsilon_alone() -> None:
    measured = Measured(20, 4.0, 0.0, 0.3)
    usual = clip_and_rate("values", None, measured)
    assert clip_and_rate("values", None, measured, 0.1) == usual  # of an unknown number nothing follows
    for size, epsilon in ((500, None), (500, 3.0), (20_000, 0.1), (3_000_000, 0.01)):
        assert clip_and_rate("values", size, measured, epsilon) == usual
    ratios = [one / other for one, other in zip(clip_and_rate("values", 500, measured, 0.1), usual, strict=True)]
    assert ratios == pytest.approx([ratios[0]] * 2, rel=0.1)
    assert ratios[0] < 0.4
    assert clip_and_rate("range", 500, measured, 0.1) == clip_and_rate("range", 500, measured)


@pytest.mark.parametrize("public", [True, False])
def test_a_private_file_is_not_measured(public: bool, tmp_path: Path) -> None:
    """Two files of the same names and kinds, and of other numbers, give the same private draft."""
    texts = []
    for factor in (1, 7):
        file, draft = tmp_path / "f.csv", tmp_path / f"d{factor}.yaml"
        with file.open("w", newline="") as opened:
            rows = [[row * factor % 97 + 0.5, "ab"[row % 2], row * factor % 31 + 0.25] for row in range(60)]
            csv.writer(opened).writerows([["x", "k", "y"], *rows])
        how = ("--public",) if public else ("--private", "--no-input")
        done = CliRunner().invoke(app, ["init", str(draft), "--from", str(file), "--label", "y", *how])
        assert done.exit_code == 0, done.output
        texts.append(draft.read_text("utf-8").replace(f"d{factor}", "d"))
    assert (texts[0] == texts[1]) != public
    if public:
        assert read(tmp_path / "d7.yaml").recipe.data.preprocess[-1].scale is not None


@pytest.mark.slow
def test_what_ranges_hide_is_learned(tmp_path: Path) -> None:
    """Nearly all features and labels lie in a small part of their ranges, which few far values make long."""
    draw = random.Random(1)
    rows = []
    for row in range(1200):
        x, far = draw.gauss(0, 1), 12 if row % 100 == 0 else 1
        rows.append([round(x * far, 3), round(x * far + draw.gauss(0, 0.5), 3)])
    with (tmp_path / "f.csv").open("w", newline="") as opened:
        csv.writer(opened).writerows([["x", "y"], *rows])
    for arguments in (
        ("init", "d.yaml", "--from", "f.csv", "--public", "--label", "y"),
        ("run", "d.yaml", "--out", "run"),
        ("predict", "run/release", "f.csv", "--out", "out.csv"),
    ):
        places = [str(tmp_path / one) if "." in one or "run/" in one or one == "run" else one for one in arguments[1:]]
        done = CliRunner().invoke(app, [arguments[0], *places])
        assert done.exit_code == 0, done.output
    with (tmp_path / "out.csv").open(newline="") as opened:
        answers = [float(row[-1]) for row in list(csv.reader(opened))[1:]]
    usual = [(y, answer) for (x, y), answer in zip(rows, answers, strict=True) if abs(x) < 3]
    error = statistics.mean((y - answer) ** 2 for y, answer in usual)
    assert error < 0.35 * statistics.pvariance([y for y, _ in usual]), error
