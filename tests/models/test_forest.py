from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from dprecipe.models.build import build  # noqa: E402
from dprecipe.models.schema import GradientBoosting, RandomForest  # noqa: E402
from dprecipe.models.zoo import forest  # noqa: E402
from dprecipe.models.zoo.forest import Forest  # noqa: E402


def state(**change: object) -> dict[str, torch.Tensor]:
    """Two trees over two features: one asks for x0 > 1, then on the right for x1 > -1; the other for x1 > 0."""
    return {
        "root": torch.tensor([0, 5]),
        "child": torch.tensor([[1, 2], [1, 1], [3, 4], [3, 3], [4, 4], [6, 7], [6, 6], [7, 7]]),
        "feature": torch.tensor([0, 0, 1, 0, 0, 1, 0, 0]),
        "threshold": torch.tensor([1.0, 0, -1, 0, 0, 0, 0, 0]),
        "value": torch.tensor(
            [[0, 0], [1, 0], [0, 0], [0.25, 0.75], [0, 1], [0, 0], [0.5, 0.5], [0, 1]], dtype=torch.float64
        ),
        **change,  # type: ignore[dict-item]
    }


def loaded(averaged: bool = True, **change: object) -> Forest:
    module = Forest(2, 2, averaged)
    module.load_state_dict(state(**change))
    return module


X = torch.tensor([[0.0, 0], [1, 1], [2, -1], [2, -0.5], [2, 5], [float("nan"), float("nan")]])
"""The third feature pair lies on both thresholds."""
SUMS = torch.tensor([[1.5, 0.5], [1, 1], [0.75, 1.25], [0.5, 1.5], [0, 2], [1.5, 0.5]], dtype=torch.float64)


def test_chances_are_averaged_over_trees() -> None:
    assert torch.equal(loaded()(X), (SUMS / 2).clamp_min(1e-12).log())
    assert loaded()(X).isfinite().all()


def test_scores_are_added_over_trees() -> None:
    assert torch.equal(loaded(averaged=False)(X), SUMS)


@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
@pytest.mark.parametrize("stride", [1, 2, 7])
def test_it_does_not_matter_how_many_are_evaluated_at_once(monkeypatch, chunk: int, stride: int) -> None:
    monkeypatch.setattr(forest, "CHUNK", chunk)
    monkeypatch.setattr(forest, "STRIDE", stride)
    assert torch.equal(loaded(averaged=False)(X), SUMS)
    assert loaded()(X[:0]).shape == (0, 2)


def test_images_are_flattened_and_records_of_another_width_refused() -> None:
    assert torch.equal(loaded()(X.reshape(-1, 1, 1, 2)), loaded()(X))
    with pytest.raises(ValueError, match="have 4 features, the trees read 2"):
        loaded()(X.reshape(-1, 4))


FLAWS = {
    "no tree": ({"root": torch.tensor([], dtype=torch.int64)}, "there is no tree"),
    "a root beyond": ({"root": torch.tensor([0, 8])}, "a root is no node"),
    "a root below": ({"root": torch.tensor([-1, 5])}, "a root is no node"),
    "a circle": ({"child": state()["child"].index_put((torch.tensor(2), torch.tensor(1)), torch.tensor(0))}, "a child"),
    "half a leaf": (
        {"child": state()["child"].index_put((torch.tensor(2), torch.tensor(1)), torch.tensor(2))},
        "a child",
    ),
    "a child beyond": (
        {"child": state()["child"].index_put((torch.tensor(7), torch.tensor(0)), torch.tensor(8))},
        "a child",
    ),
    "a feature beyond": ({"feature": torch.tensor([0, 0, 2, 0, 0, 1, 0, 0])}, "a feature that there is not"),
    "a feature below": ({"feature": torch.tensor([0, 0, -1, 0, 0, 1, 0, 0])}, "a feature that there is not"),
    "a threshold": ({"threshold": torch.tensor([1, 0, float("nan"), 0, 0, 0, 0, 0])}, "not finite"),
    "a value": ({"value": torch.full((8, 2), float("inf"), dtype=torch.float64)}, "not finite"),
    "a chance above": ({"value": torch.full((8, 2), 1.5, dtype=torch.float64)}, "a chance is outside"),
    "a chance below": ({"value": torch.full((8, 2), -0.5, dtype=torch.float64)}, "a chance is outside"),
}


@pytest.mark.parametrize("name", FLAWS)
def test_tensors_that_are_no_trees(name: str) -> None:
    change, message = FLAWS[name]
    assert message in (loaded(**change).flaw() or "")


def test_trees_have_no_flaw_and_scores_may_be_anything_finite() -> None:
    assert loaded().flaw() is None
    values = torch.full((8, 2), -1e30, dtype=torch.float64)
    assert loaded(averaged=False, value=values).flaw() is None
    assert loaded(averaged=False, value=values)(X).isfinite().all()
    assert "too large" in (loaded(averaged=False, value=values * 2).flaw() or "")


def test_a_tree_of_too_many_levels() -> None:
    """Each node leads on, left and right, to the next."""

    def chain(nodes: int) -> Forest:
        module = Forest(1, 2, True)
        following = torch.arange(nodes).add(1).clamp_max(nodes - 1)
        module.resize(1, nodes)
        module.child = torch.stack([following, following], 1)
        return module

    assert chain(forest.MAX_LEVELS).flaw() is None
    assert chain(forest.MAX_LEVELS)(torch.zeros(1, 1)).shape == (1, 2)
    assert chain(forest.MAX_LEVELS + 1).flaw() == f"it has more than {forest.MAX_LEVELS} levels"


@pytest.mark.parametrize("model", [RandomForest(kind="random_forest"), GradientBoosting(kind="gradient_boosting")])
def test_trees_that_have_not_grown_vote_for_no_class(model) -> None:
    module = build(model, (1, 3, 3), 4, 0)
    result = module(torch.rand(5, 1, 3, 3))
    assert result.isfinite().all()
    assert torch.equal(result, result[:1, :1].expand(5, 4))
    assert list(module.parameters()) == []
    assert module.flaw() is None


def test_weights_bring_the_numbers_of_trees_and_nodes() -> None:
    module = torch.nn.Sequential(Forest(2, 2, True))
    module.load_state_dict({f"0.{name}": tensor for name, tensor in state().items()})
    assert torch.equal(module(X), loaded()(X))
    with pytest.raises(RuntimeError, match="size mismatch for value"):
        Forest(2, 3, True).load_state_dict(state())
    with pytest.raises(RuntimeError, match="Missing key"):
        Forest(2, 2, True).load_state_dict({"root": torch.tensor([0])})
