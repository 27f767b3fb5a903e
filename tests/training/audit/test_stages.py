"""Paid steps on synthetic records: sound ones pass, and each kind of fault fails its test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dprecipe.data.paid import release
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read_text
from dprecipe.training.audit.request import AuditEvidence
from dprecipe.training.audit.run import judge
from dprecipe.training.audit.stages import examine_stages
from tests.planted.recipes import RECIPES


def failed(recipe: str) -> set[str]:
    """The names of the tests that fail: a sound program fails one with probability 1e-6."""
    planned = plan(read_text(RECIPES[recipe]))
    evidence = AuditEvidence(tuple(examine_stages(planned, lambda: None)))
    assert evidence.tests
    return {part.id for part in judge(planned, evidence, 0.95).audit.failed}


def without_noise(total: Any, bits: int, scale: float, stream: object) -> Any:
    return np.ldexp(total.astype(np.float64), -bits)


def half_noise(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda total, bits, scale, stream: real(total, bits, scale / 2, stream)


@pytest.mark.parametrize("recipe", ["moments", pytest.param("projection", marks=pytest.mark.slow)])
def test_sound_steps_are_not_accused_and_forgotten_noise_is_found(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failed(recipe) == set()
    real = release.add_gaussian
    monkeypatch.setattr(release, "add_gaussian", half_noise(real))
    assert any(name.endswith("_noise") for name in failed(recipe))
    monkeypatch.setattr(release, "add_gaussian", without_noise)
    assert any(name.endswith("_noise") for name in failed(recipe))


def test_items_are_released_by_their_noisy_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "add_gaussian", without_noise)
    assert failed("categories") == {"stage_0_item_often"}
