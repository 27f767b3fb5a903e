"""Synthetic records beside public ones."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from dprecipe.cli.resemblance import measure_resemblance, measure_utility, read_records
from dprecipe.faults import DataFault

PUBLIC = [{"label": "spam", "text": f"win a free prize number {n * 37}"} for n in range(8)] + [
    {"label": "ham", "text": f"are we meeting at {n * 53} today"} for n in range(12)
]


def test_copies_of_public_records_are_equal_and_near() -> None:
    found = measure_resemblance([PUBLIC[0], PUBLIC[0], PUBLIC[9]], PUBLIC)
    assert (found.equal, found.near, found.records, found.public) == (1.0, 1.0, 3, 20)
    assert found.repeated == pytest.approx(1 / 3)
    assert found.nearest == pytest.approx(1.0)
    assert found.usual_nearest < 1


def test_other_texts_are_neither() -> None:
    found = measure_resemblance([{"label": "zzz", "text": "qqqq xxxx jjjj"}], PUBLIC)
    assert (found.equal, found.near, found.nearest) == (0.0, 0.0, 0.0)


def test_a_classifier_learns_what_there_is_to_learn() -> None:
    good = [{"label": "spam", "text": "free prize win"}, {"label": "ham", "text": "meeting today we are"}]
    bad = [{"label": "ham", "text": "free prize win"}, {"label": "spam", "text": "meeting today we are"}]
    assert measure_utility(good, PUBLIC, "label").synthetic == 1.0
    assert measure_utility(bad, PUBLIC, "label").synthetic == 0.0
    assert measure_utility(good, PUBLIC, "label").most_frequent == 0.6


def test_too_few_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataFault, match="two values"):
        measure_utility(PUBLIC[:8], PUBLIC, "label")
    with pytest.raises(DataFault, match="fewer than two"):
        measure_resemblance(PUBLIC, PUBLIC[:1])
    (tmp_path / "a.csv").write_text("label,other\nspam,x\n")
    with pytest.raises(DataFault, match="no column text"):
        read_records(tmp_path / "a.csv", ["label", "text"])
    (tmp_path / "a.jsonl").write_text("[1]\n")
    with pytest.raises(DataFault, match="can't be read"):
        read_records(tmp_path / "a.jsonl", ["label"])
