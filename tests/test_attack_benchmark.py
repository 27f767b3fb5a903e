"""The attacker's bench, on synthetic models: the attack finds members of models that know their records by heart, and
no others; its rates count what they say. The page shows the committed results."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dprecipe

ROOT = Path(__file__).parents[1]
MODELS, SHADOWS, RECORDS = 40, 20, 400


@pytest.fixture
def lira(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import lira

    return lira


def attack(lira: ModuleType, memory: float, seed: int = 3) -> Any:
    """Of models whose margin of a record grows by `memory` standard deviations where it was in."""
    generator = np.random.default_rng(seed)
    coins = lira.draw_coins(MODELS, RECORDS, seed)
    level, spread = generator.normal(0, 3, RECORDS), generator.uniform(0.5, 2, RECORDS)
    margins = level + spread * (generator.normal(size=coins.shape) + memory * coins)
    return lira.assess(lira.Queried(margins, coins), SHADOWS, np.ones(RECORDS, np.bool_), (0.01, 0.1))


def test_the_attack_succeeds_on_models_that_memorise(lira: ModuleType) -> None:
    """The best attack on a shift of 3 has a true-positive rate of Φ(3 - 2.326) = 0.75 at 1 %, an area of Φ(3/√2) =
    0.983 and an advantage of 2 Φ(1.5) - 1 = 0.866."""
    found = attack(lira, 3.0)
    rare, common = found.attained
    assert rare.true_positives.low > 0.45
    assert rare.true_positives.value < 0.78
    assert common.true_positives.low > 0.9
    assert 0.97 < found.auc.low < found.auc.high < 0.99
    assert 0.8 < found.advantage.value < 0.88


def test_the_attack_fails_on_models_that_do_not(lira: ModuleType) -> None:
    found = attack(lira, 0.0)
    for each in found.attained:
        assert each.true_positives.low < each.false_positives.high
        assert each.false_positives.low < each.true_positives.high < 1.7 * each.aimed
    assert found.auc.low < 0.5 < found.auc.high
    assert abs(found.advantage.value) < 0.04


def test_nothing_of_the_counted_models_chooses_a_threshold(lira: ModuleType) -> None:
    """Whatever they hold, the thresholds stay: other scores in them move counts, and no chosen number."""
    coins = lira.draw_coins(MODELS, RECORDS, 1)
    margins = np.random.default_rng(1).normal(size=coins.shape)
    first = lira.Queried(margins, coins).take(slice(SHADOWS))
    scores = lira.score_each(first)
    threshold = lira.choose_threshold(scores, first.coins, 0.05)
    outside = scores[~first.coins]
    assert int((outside > threshold).sum()) == int(0.05 * len(outside))
    cheated = margins.copy()
    cheated[SHADOWS:] += 100 * ~coins[SHADOWS:]
    found = lira.assess(lira.Queried(cheated, coins), SHADOWS, np.ones(RECORDS, np.bool_), (0.05,))
    moved = lira.score(cheated[SHADOWS:], first) > threshold
    assert found.attained[0].false_positives.value == moved[~coins[SHADOWS:]].mean()


def test_intervals_hold_and_widen_where_records_of_a_model_go_together(lira: ModuleType) -> None:
    independent = lira.rate([5] * 20, [100] * 20)
    assert independent.value == 0.05
    assert (independent.low, independent.high) == pytest.approx((0.04087, 0.06048), abs=1e-4)  # Clopper & Pearson
    together = lira.rate([0] * 10 + [10] * 10, [100] * 20)
    assert together.value == 0.05
    assert together.high - together.low > 2 * (independent.high - independent.low)
    assert lira.rate([0, 0], [50, 50]) == (0.0, 0.0, pytest.approx(1 - 0.025**0.01))
    assert lira.rate([50, 50], [50, 50]) == (1.0, pytest.approx(0.025**0.01), 1.0)


def test_a_record_that_is_never_out_is_refused(lira: ModuleType) -> None:
    coins = np.ones((4, 3), np.bool_)
    with pytest.raises(ValueError, match="fewer than two shadow models"):
        lira.score(np.zeros(3), lira.Queried(np.zeros((4, 3)), coins))


def test_margins_are_the_log_odds_of_the_label(lira: ModuleType) -> None:
    logits, labels = np.array([[2.0, 0.0, -1.0], [0.0, 50.0, 0.0]]), np.array([0, 2])
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = [np.log(p / (1 - p)) for p in (chances[0, 0], chances[1, 2])]
    assert lira.margins_of(logits, labels) == pytest.approx(expected)


def test_no_claim_is_refuted_and_models_without_privacy_are_found_out() -> None:
    """Adult's linear model is too small to know its records; the others are found out."""
    results = json.loads((ROOT / "docs" / "images" / "attacks.json").read_text("utf-8"))
    certain = []
    for task in results["tasks"]:
        for group in ("all", "wrong"):
            found = [way[group] for way in task["ways"]]
            for each in found:
                assert not each["refuted"]
                assert not any(row["refuted"] for row in each["rates"])
            plain, *private = (each["auc"] for each in found)
            assert plain[1] > max(high for *_, high in private)
        certain.append(task["ways"][0]["wrong"]["rates"][-1]["true_positives"][1] > 0.9)
    assert sorted(certain) == [False, True, True, True]


def test_the_page_shows_the_committed_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import attack

    results = json.loads((ROOT / "docs" / "images" / "attacks.json").read_text("utf-8"))
    page = (ROOT / "docs" / "project" / "attacks.md").read_text("utf-8")
    assert attack.tabulate(results) in page


@pytest.mark.slow
def test_models_are_trained_attacked_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of the digits, without privacy and with it; a second call trains only what is missing."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import attack

    task = replace(attack.TASKS["digits"], epochs=40)
    pool, coins = attack.read_pool(task, None), attack.draw_coins(5, task.records, 1)
    wrong = coins[:, pool.wrong]
    model = attack.load_task(task, 8).recipe.model.model_dump(mode="json", by_alias=True, exclude_none=True)
    trained: list[Path] = []

    def learn(inside: NDArray[np.bool_], folder: Path) -> Path:
        trained.append(folder)
        return Path(attack.learn_plainly(task, model, pool, inside, folder))

    attack.train_models(learn, pool, coins[:4], tmp_path / "none.npz")
    kept = attack.train_models(learn, pool, coins, tmp_path / "none.npz")
    assert len(trained) == 5
    inside, outside = kept.accuracy
    assert inside > 0.97
    assert 0.7 < outside < 0.97
    margins = kept.queried.margins[:, pool.wrong]
    assert margins[wrong].mean() > 0 > margins[~wrong].mean()  # wrong labels are learned by heart

    plan = dprecipe.plan(attack.load_task(task, 8))
    private = attack.train_models(partial(attack.learn_private, plan, pool), pool, coins[:2], None)
    assert private.accuracy[1] > 0.8
    assert (private.queried.margins[:, pool.wrong] < 0).mean() > 0.8  # and here they are not
