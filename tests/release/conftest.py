"""Fixtures of a finished run; the pieces they are made of are in `tests_release.py`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tests_release import Finished, facts_of, finish, plan_of


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Read only: shared by all tests of a session."""
    return finish(tmp_path_factory.mktemp("finished") / "run", plan_of(), facts_of())


@pytest.fixture
def copy(finished: Finished, tmp_path: Path) -> Finished:
    """A run folder of one's own, to be tampered with."""
    shutil.copytree(finished.path, tmp_path / "run")
    return Finished(tmp_path / "run", finished.plan, finished.ledger, finished.facts)
