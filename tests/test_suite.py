"""The suite's own options: where time is bounded, long tests don't begin after its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def plugin(request: pytest.FixtureRequest) -> Any:
    manager = request.config.pluginmanager
    (found,) = [plugin for plugin in manager.get_plugins() if hasattr(plugin, "UNTIL")]
    return found


def item(name: str, *marks: str) -> Any:
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda mark: mark if mark in marks else None)


def test_a_long_test_does_not_begin_after_the_end(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "UNTIL", "1")
    plugin.pytest_runtest_setup(item("tests/a.py::quick"))
    with pytest.raises(pytest.skip.Exception, match="no time was left"):
        plugin.pytest_runtest_setup(item("tests/a.py::long", "slow"))
    for without_end in ("", "99999999999"):
        monkeypatch.setattr(plugin, "UNTIL", without_end)
        plugin.pytest_runtest_setup(item("tests/a.py::long", "slow"))


def test_files_stay_whole_and_their_order_follows_the_end(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"tests/{file}.py::{test}" for file in "abcdefgh" for test in "xyz"]

    def order(until: str) -> list[str]:
        items = [item(name) for name in names]
        monkeypatch.setattr(plugin, "UNTIL", until)
        plugin.pytest_collection_modifyitems(items)
        return [one.nodeid for one in items]

    assert order("") == names
    first, second = order("1"), order("2")
    assert first != second
    assert sorted(first) == sorted(second) == names
    for result in (first, second):
        files = [name.partition("::")[0] for name in result]
        assert len(set(files)) == sum(before != after for before, after in zip(files, ["", *files], strict=False))
