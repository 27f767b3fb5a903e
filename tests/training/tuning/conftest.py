"""A small tuned recipe: a few short runs of the small one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dprecipe.contract.plan import Plan

TUNING = """\
tuning:
  runs: {kind: negative_binomial, mean: 4, shape: 0.5}
  over:
    - {key: training.optimizer.lr, range: [0.1, 4.0], scale: log}
    - {key: mechanism.clip.norm, values: [0.5, 1.0]}
  score: {metric: accuracy}
"""

PAID = (
    "data.preprocess=[{flatten: {}}, {dp_standardize: {bounds: [0, 16], share: 0.05}}, "
    "{dp_pca: {components: 12, row_norm: 10.0, share: 0.05}}, {clip_features: {norm: 4.0}}]"
)


@pytest.fixture
def tuned(small: Callable[..., Plan]) -> Callable[..., Plan]:
    """The plan of the small recipe, tuned and of few steps, with overrides."""

    def make_plan(*overrides: str) -> Plan:
        few = () if any(each.startswith("training.steps=") for each in overrides) else ("training.steps=6",)
        return small(*overrides, *few, more=TUNING)

    return make_plan


@pytest.fixture
def staged(tuned: Callable[..., Plan]) -> Callable[..., Plan]:
    """The same plan behind two paid steps, with overrides."""
    return lambda *overrides: tuned(PAID, *overrides)
