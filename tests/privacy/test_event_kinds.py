"""The register of kinds of events, and events that are announced before they are imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dprecipe.privacy import event_kinds


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    event_kinds.event_kinds()
    monkeypatch.setattr(event_kinds, "_IMPORTERS", [])


def test_announced_events_are_imported_once_and_only_when_asked() -> None:
    calls = []
    event_kinds.announce_events(lambda: calls.append(1))
    assert not calls
    event_kinds.event_kinds()
    event_kinds.event_kinds()
    assert calls == [1]


def test_events_that_cannot_be_imported_are_asked_again() -> None:
    """Otherwise the second reader of a ledger would be told of an unknown kind."""

    def fails() -> None:
        raise ImportError("no such library")

    event_kinds.announce_events(fails)
    for _ in range(2):
        with pytest.raises(ImportError, match="no such library"):
            event_kinds.event_kinds()


def test_an_importer_may_ask_for_kinds_itself() -> None:
    event_kinds.announce_events(lambda: event_kinds.event_kinds())
    assert "gaussian" in event_kinds.event_kinds()


def test_reading_a_charge_knows_every_mechanism_without_a_recipe() -> None:
    code = (
        "import dprecipe.contract.table; from dprecipe.privacy.event_kinds import event_kinds; import sys;"
        "assert 'dprecipe.mechanisms.pate.events' not in sys.modules; print(*event_kinds())"
    )
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"gaussian", "noisy_max", "projected_descent", "encoded", "noisy_count", "selected_best"} <= set(listed)
