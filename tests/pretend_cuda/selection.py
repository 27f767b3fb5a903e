"""A plugin of pytest: `--begins PREFIX` keeps the tests whose names begin so, by file and function; repeatable."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--begins", action="append", default=[], help="keep tests whose ids begin so")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    prefixes = tuple(config.getoption("--begins"))
    if prefixes:
        dropped = [item for item in items if not item.nodeid.startswith(prefixes)]
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item.nodeid.startswith(prefixes)]
