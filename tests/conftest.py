"""Options of the whole suite."""

from __future__ import annotations

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("dprecipe", deadline=None)
settings.load_profile("dprecipe")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden outputs; read the diff")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden outputs are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))
