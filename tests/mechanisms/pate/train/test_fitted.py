from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
ensemble = pytest.importorskip("sklearn.ensemble", reason="scikit-learn is not installed")
linear_model = pytest.importorskip("sklearn.linear_model")

from dprecipe.faults import UsageFault  # noqa: E402
from dprecipe.mechanisms.pate.train import fitted  # noqa: E402
from dprecipe.mechanisms.pate.train.fitted import fit_model  # noqa: E402
from dprecipe.models.build import build  # noqa: E402
from dprecipe.models.schema import GradientBoosting, LogisticRegression, RandomForest  # noqa: E402

FOREST = RandomForest(kind="random_forest", trees=25)
BOOSTED = GradientBoosting(kind="gradient_boosting", trees=12, min_leaf=4)
LOGISTIC = LogisticRegression(kind="logistic_regression")
ALL = [FOREST, BOOSTED, LOGISTIC]
by_kind = pytest.mark.parametrize("model", ALL, ids=lambda model: model.kind)
two_or_more = pytest.mark.parametrize("classes", [2, 4])


def records(classes: int, count: int = 150, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and indicators; labels that follow them, and some that don't."""
    generator = np.random.default_rng(seed)
    numbers = generator.random((count, 6))
    indicators = np.eye(3)[generator.integers(3, size=count)]
    labels = (numbers[:, 0] * classes + indicators[:, 1]).astype(int) % classes
    noisy = generator.random(count) < 0.2
    labels[noisy] = generator.integers(classes, size=int(noisy.sum()))
    return np.hstack([numbers, indicators]).astype(np.float32), labels


def logits(module: torch.nn.Module, features: np.ndarray) -> np.ndarray:
    return module(torch.from_numpy(features)).numpy()


@two_or_more
@pytest.mark.parametrize("bounds", [{}, {"max_depth": 3, "min_leaf": 5, "max_features": 0.5}], ids=["pure", "bounded"])
def test_a_forest_predicts_exactly_what_scikit_learn_does(classes: int, bounds: dict[str, int]) -> None:
    features, labels = records(classes)
    model = RandomForest(kind="random_forest", trees=25, **bounds)
    names = {"max_depth": bounds.get("max_depth"), "min_samples_leaf": bounds.get("min_leaf", 1)}
    names["max_features"] = bounds.get("max_features", "sqrt")
    theirs = ensemble.RandomForestClassifier(25, random_state=7, **names).fit(features, labels)
    asked = np.vstack([features, records(classes, 2000, 1)[0]])
    ours = logits(fit_model(model, features, labels, classes, 7), asked)
    chances = theirs.predict_proba(asked)
    # A logarithm of numpy's depends on where in an array the number stands, by a unit of the last place.
    np.testing.assert_array_max_ulp(ours, np.log(np.maximum(chances, 1e-12)), 1)
    np.testing.assert_array_equal(ours.argmax(1), theirs.predict(asked))


@two_or_more
def test_boosting_scores_what_scikit_learn_does(classes: int) -> None:
    features, labels = records(classes)
    theirs = ensemble.GradientBoostingClassifier(n_estimators=12, min_samples_leaf=4, random_state=7).fit(
        features, labels
    )
    asked = np.vstack([features, records(classes, 2000, 1)[0]])
    ours = logits(fit_model(BOOSTED, features, labels, classes, 7), asked)
    np.testing.assert_array_equal(ours.argmax(1), theirs.predict(asked))
    scores = ours[:, 1] - ours[:, 0] if classes == 2 else ours
    np.testing.assert_allclose(scores, theirs.decision_function(asked), rtol=0, atol=1e-12)


@two_or_more
def test_logistic_regression_scores_what_scikit_learn_does(classes: int) -> None:
    features, labels = records(classes)
    theirs = linear_model.LogisticRegression(C=1.0, max_iter=1000).fit(features.astype(float), labels)
    module = fit_model(LOGISTIC, features, labels, classes, 7)
    ours = logits(module, features)
    scores = ours[:, 1] - ours[:, 0] if classes == 2 else ours
    np.testing.assert_allclose(scores, theirs.decision_function(features), rtol=0, atol=1e-5)
    assert module.state_dict().keys() == build(LOGISTIC, (9,), classes, 0).state_dict().keys()


def test_thresholds_between_neighbours_in_single_precision() -> None:
    """A threshold half-way between neighbours is no single-precision number; rounded up it would move one of them."""
    grid = np.float32(2**20) + np.arange(64, dtype=np.float32) / 8
    assert (np.diff(grid) == np.spacing(grid[0])).all()
    labels = np.arange(64) % 2
    theirs = ensemble.RandomForestClassifier(25, random_state=0).fit(grid[:, None], labels)
    thresholds = np.concatenate([member.tree_.threshold for member in theirs.estimators_])
    assert (thresholds.astype(np.float32) != thresholds).any()
    module = fit_model(FOREST, grid[:, None], labels, 2, 0)
    np.testing.assert_array_equal(logits(module, grid[:, None]).argmax(1), theirs.predict(grid[:, None]))


@by_kind
def test_classes_that_a_part_does_not_have_are_never_voted_for(model) -> None:
    features, labels = records(2)
    for names in ([0, 4], [3, 1]):
        ours = logits(fit_model(model, features, np.asarray(names)[labels], 6, 0), features)
        alone = logits(fit_model(model, features, labels if names[0] < names[1] else 1 - labels, 2, 0), features)
        assert np.isfinite(ours).all()
        np.testing.assert_array_equal(ours.argmax(1), np.sort(names)[alone.argmax(1)])
        absent = np.setdiff1d(np.arange(6), names)
        assert (ours[:, absent].max(1) <= ours[:, names].max(1) - 1).all()


@by_kind
@pytest.mark.parametrize("shape", [(9,), (1, 3, 3)], ids=["vectors", "images"])
def test_a_part_without_two_classes_votes_a_constant(model, shape: tuple[int, ...]) -> None:
    features = records(3)[0].reshape(-1, *shape)
    broken = np.full_like(features, np.nan)
    for part, labels, vote in (
        (features[:0], np.empty(0, np.int64), 0),
        (features[:5], np.full(5, 2), 2),
        (broken[:5], np.arange(5) % 3, 0),
    ):
        ours = logits(fit_model(model, part, labels, 3, 0), features)
        assert np.isfinite(ours).all()
        assert (ours.argmax(1) == vote).all()


@by_kind
def test_records_that_are_not_finite_are_left_out(model) -> None:
    features, labels = records(3)
    broken = features.copy()
    broken[3, 0], broken[8, 5], broken[9, 8] = np.nan, np.inf, -np.inf
    left = np.setdiff1d(np.arange(len(features)), [3, 8, 9])
    ours = logits(fit_model(model, broken, labels, 3, 0), features)
    np.testing.assert_array_equal(ours, logits(fit_model(model, features[left], labels[left], 3, 0), features))


@by_kind
@pytest.mark.parametrize("scale", [1e-44, 1e-20, 3e38])
def test_features_of_any_size_make_finite_logits(model, scale: float) -> None:
    features, labels = records(3)
    features = (features - np.float32(0.5)) * np.float32(scale)
    module = fit_model(model, features, labels, 3, 0)
    assert np.isfinite(logits(module, features)).all()
    assert model is LOGISTIC or module.flaw() is None


def test_boosting_that_runs_away_stays_above_a_class_without_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning at full rate, scores leave all bounds (10^14 was seen); each round's part is bounded here."""
    features, labels = records(2, 30)
    whole = logits(fit_model(BOOSTED, features, labels, 2, 0), features)
    monkeypatch.setattr(fitted, "MAX_STEP", 1e-3)
    cut = logits(fit_model(BOOSTED, features, labels, 2, 0), features)
    assert np.ptp(whole, axis=0).max() > 0.5
    assert np.ptp(cut, axis=0).max() <= 2 * 12.01 * 1e-3
    monkeypatch.undo()
    assert 10_000 * fitted.MAX_STEP < -fitted.ABSENT / 2


@by_kind
def test_the_seed_decides_and_nothing_else(model) -> None:
    features, labels = records(3)
    np.random.seed(1)
    one = logits(fit_model(model, features, labels, 3, 2**40 + 5), features)
    np.random.seed(2)
    np.testing.assert_array_equal(one, logits(fit_model(model, features, labels, 3, 5), features))
    other = logits(fit_model(model, features, labels, 3, 6), features)
    assert np.array_equal(one, other) == (model is not FOREST)


def test_logistic_regression_that_has_not_converged_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.exceptions import ConvergenceWarning

    monkeypatch.setattr(fitted, "ITERATIONS", 2)
    features, labels = records(3)
    with pytest.warns(ConvergenceWarning):
        linear_model.LogisticRegression(max_iter=2).fit(features, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_model(LOGISTIC, features, labels, 3, 0)


def test_no_depth_is_beyond_what_a_module_evaluates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitted, "MAX_LEVELS", 3)
    features, labels = records(3)
    for model in (FOREST, RandomForest(kind="random_forest", trees=2, max_depth=50), BOOSTED):
        module = fit_model(model, features, labels, 3, 0)
        monkeypatch.setattr("dprecipe.models.zoo.forest.MAX_LEVELS", 3)
        assert module.flaw() is None
        monkeypatch.setattr("dprecipe.models.zoo.forest.MAX_LEVELS", 2)
        assert module.flaw() == "it has more than 2 levels"


@by_kind
def test_without_scikit_learn_it_is_said_how_to_install_it(model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UsageFault, match="scikit-learn, which is not installed") as caught:
        fit_model(model, *records(3), 3, 0)
    assert "pip install 'dprecipe[train]'" in caught.value.remedy
