"""How many runs there are, with which values, and which of them wins."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.candidates import Point
from dprecipe.planning.trials import planner_of
from dprecipe.privacy.tuning.runs import make_runs
from dprecipe.training.tuning.draws import choose, draw, load_or_draw

Tuned = Callable[..., Plan]


def test_the_number_of_runs_has_the_planned_distribution(tuned: Tuned) -> None:
    """By the χ² statistic over 1 to 8 and all above; its 99.99 % quantile at 8 degrees of freedom is 31.8."""
    plan, count = tuned(), 4000
    drawn = Counter(min(len(draw(plan, Secrets(seed)).points), 9) for seed in range(count))
    chances = list(islice(make_runs("negative_binomial", 4.0, 0.5).chances(), 9))[1:]
    chances.append(1 - math.fsum(chances))
    statistic = sum((drawn[k] - count * p) ** 2 / (count * p) for k, p in enumerate(chances, 1))
    assert statistic < 31.8
    assert not drawn[0]


def test_every_run_draws_its_own_values_from_the_public_distribution(tuned: Tuned) -> None:
    plan = tuned("tuning.runs={kind: fixed, count: 2}")
    drawn = [draw(plan, Secrets(seed)) for seed in range(250)]
    points = [point for one in drawn for point in one.points]
    rates = [float(point["training.optimizer.lr"]) for point in points]
    norms = Counter(point["mechanism.clip.norm"] for point in points)
    assert len(rates) == 500
    assert len(set(rates)) > 480
    assert len({tie for one in drawn for tie in one.ties}) == 500
    below = sum(rate < math.sqrt(0.1 * 4.0) for rate in rates)
    assert abs(below - 250) < 5 * math.sqrt(125)
    assert abs(norms[0.5] - 250) < 5 * math.sqrt(125)
    assert norms.keys() == {0.5, 1.0}


def test_values_that_make_no_model_are_drawn_again(tuned: Tuned) -> None:
    """A run that is the only one would else end without a release."""
    plan = tuned("tuning.runs={kind: fixed, count: 50}")

    def accept(point: Point) -> bool:
        return point["mechanism.clip.norm"] == 1.0 and float(point["training.optimizer.lr"]) > 1

    drawn = draw(plan, Secrets(1), accept)
    assert all(map(accept, drawn.points))
    rates = {point["training.optimizer.lr"] for point in drawn.points}
    assert len(rates) == 50
    assert sum(float(rate) > 2 for rate in rates) in range(12, 39)
    assert len(draw(plan, Secrets(1), lambda point: False).points) == 50


def test_combinations_that_contradict_each_other_are_no_runs(tuned: Tuned) -> None:
    planner = planner_of(tuned("training.optimizer={kind: sgd, lr: 1.0, momentum: 0.9}").source)
    assert planner.makes_model({"training.optimizer.lr": 1.0, "mechanism.clip.norm": 0.5})
    assert not planner.makes_model({"training.optimizer.lr": 1.0, "mechanism.clip.norm": -0.5})


def test_what_was_drawn_is_drawn_once(tuned: Tuned, tmp_path: Path) -> None:
    plan, path = tuned(), tmp_path / "draws.json"
    first = load_or_draw(path, plan, Secrets())
    assert load_or_draw(path, plan, Secrets()) == first
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["points"].append({"training.optimizer.lr": 1.0}),
        lambda content: content["points"][0].update({"mechanism.clip.norm": 7.0}),
        lambda content: content["ties"].pop(),
        lambda content: content.update(plan="sha256:" + "0" * 64),
    ],
)
def test_another_file_of_draws_is_refused(change: Callable[[dict], object], tuned: Tuned, tmp_path: Path) -> None:
    plan, path = tuned(), tmp_path / "draws.json"
    load_or_draw(path, plan, Secrets())
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(RunFailed, match="damaged"):
        load_or_draw(path, plan, Secrets())


def test_the_best_wins_ties_are_random_and_runs_without_a_score_come_last() -> None:
    assert choose([0.1, 0.9, 0.5], [3, 2, 1], largest=True) == 1
    assert choose([0.1, 0.9, 0.5], [3, 2, 1], largest=False) == 0
    assert choose([0.5, 0.5, 0.1], [1, 2, 3], largest=True) == 1
    assert choose([0.5, 0.5, 0.1], [2, 1, 3], largest=True) == 0
    assert choose([None, 5.0, None], [3, 1, 2], largest=False) == 1
    assert choose([None, None], [1, 2], largest=True) == 1
