"""`make bench-check`: what counts as moved, and how it ends. Nothing is timed here."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MACHINE = {"processor": "a processor", "cores": 2}
KNOWN = {
    "engine": {
        "commit": "abc",
        "date": "2026-11-23",
        "machine": MACHINE,
        "ratios": {
            "CNN: noise / sgd": {"median": 1.5, "low": 1.4, "high": 1.6, "rounds": 5},
            "MLP: noise / sgd": {"median": 2.0, "low": 1.9, "high": 2.1, "rounds": 5},
        },
    }
}
Compare = Callable[..., tuple[int, str]]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import check

    return check


@pytest.fixture
def compare(check: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    """What `check.py --measured` says of such ratios, and how it ends."""
    table = tmp_path / "ratios.json"
    table.write_text(json.dumps(KNOWN), "utf-8")

    def run(*options: str, quick: bool = False, **medians: float | None) -> tuple[int, str]:
        engine: dict[str, Any] = copy.deepcopy(KNOWN["engine"]) | {"quick": quick}
        for model, median in medians.items():
            engine["ratios"].pop(f"{model}: noise / sgd", None)
            if median is not None:
                spread = {"median": median, "low": median, "high": median, "rounds": 1}
                engine["ratios"][f"{model}: noise / sgd"] = spread
        (tmp_path / "engine.json").write_text(json.dumps(engine), "utf-8")
        code = check.main(["engine", "--measured", str(tmp_path), "--table", str(table), *options])
        return code, capsys.readouterr().out

    return run


def test_equal_tables_pass(compare: Compare) -> None:
    assert compare("--strict") == (0, "2 of 2 ratios are within their range\n")


@pytest.mark.parametrize("median", [1.69, 15.0, math.nan, math.inf])
def test_a_planted_regression_is_reported_and_fails_only_where_it_is_asked_to(compare: Compare, median: float) -> None:
    code, said = compare("--strict", CNN=median)
    assert code == 1
    assert f"| slower | engine | CNN: noise / sgd | 1.5 (1.4 to 1.6) | {median:.3g}" in said
    assert "MLP" not in said
    assert compare(CNN=median) == (0, said)


@pytest.mark.parametrize("median", [1.34, 1.5, 1.67])
def test_what_stays_within_the_range_and_its_margin_passes(compare: Compare, median: float) -> None:
    assert compare("--strict", CNN=median) == (0, "2 of 2 ratios are within their range\n")


def test_a_faster_and_a_new_ratio_are_reported_and_pass(compare: Compare) -> None:
    code, said = compare("--strict", CNN=1.2, GRU=3.0)
    assert code == 0
    assert "| faster | engine | CNN: noise / sgd |" in said
    assert "| new | engine | GRU: noise / sgd |" in said


def test_a_ratio_that_is_gone_fails_unless_the_measurement_was_quick(compare: Compare) -> None:
    code, said = compare("--strict", CNN=None)
    assert code == 1
    assert "| gone | engine | CNN: noise / sgd |" in said
    assert compare("--strict", quick=True, CNN=None) == (0, "1 of 1 ratios are within their range\n")


def test_an_update_becomes_the_table_and_a_quick_one_leaves_the_rest(compare: Compare, tmp_path: Path) -> None:
    compare("--update", quick=True, CNN=15.0, MLP=None)
    medians = {
        n: r["median"] for n, r in json.loads((tmp_path / "ratios.json").read_text("utf-8"))["engine"]["ratios"].items()
    }
    assert medians == {"CNN: noise / sgd": 15.0, "MLP: noise / sgd": 2.0}
    assert compare("--strict", CNN=15.0)[0] == 0


def test_a_wider_table_keeps_its_medians(compare: Compare, tmp_path: Path) -> None:
    compare("--widen", quick=True, CNN=3.0, MLP=0.5)
    assert {
        name: (each["low"], each["median"], each["high"], each["rounds"])
        for name, each in json.loads((tmp_path / "ratios.json").read_text("utf-8"))["engine"]["ratios"].items()
    } == {"CNN: noise / sgd": (1.4, 1.5, 3.0, 6), "MLP: noise / sgd": (0.5, 2.0, 2.1, 6)}


def test_nothing_measured_is_no_pass(check: ModuleType, tmp_path: Path) -> None:
    assert check.main(["--measured", str(tmp_path)]) == 1


def test_rounds_alternate_and_ratios_are_of_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import figures

    order: list[str] = []
    speeds = iter([9.0, 9.0, 1.0, 2.0, 10.0, 20.0, 3.0, 9.0])

    def way(name: str) -> Callable[[], float]:
        return lambda: order.append(name) or next(speeds)

    times = figures.alternate({"ours": way("a"), "theirs": way("b")}, rounds=3)
    assert order == ["a", "b"] * 4
    spread = figures.ratio(times["ours"], times["theirs"])
    assert (spread.median, spread.low, spread.high, spread.rounds) == (0.5, pytest.approx(1 / 3), 0.5, 3)


def test_the_committed_table_names_known_benchmarks_and_holds_ratios_in_their_ranges(check: ModuleType) -> None:
    table = json.loads(check.TABLE.read_text("utf-8"))
    assert set(table) <= set(check.CHECKED)
    assert len(table) > 5
    for entry in table.values():
        assert set(entry) == {"commit", "date", "machine", "ratios"}
        assert entry["ratios"]
        assert all(0 < each["low"] <= each["median"] <= each["high"] for each in entry["ratios"].values())
