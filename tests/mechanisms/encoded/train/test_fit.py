"""Codebooks from public gradients: the right records, the right magnitudes, a batch at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dprecipe.data.load import load as load_records
from dprecipe.faults import DataFault, RunFailed
from dprecipe.mechanisms.encoded.codebook import CodebookError, fit_codebook, fit_in_batches
from dprecipe.mechanisms.encoded.schema import Encoded
from dprecipe.mechanisms.encoded.train import fit as module
from dprecipe.mechanisms.encoded.train.fit import make_codebook, public_records
from dprecipe.models.build import build
from dprecipe.recipe.read import read_text
from dprecipe.recipe.root import Recipe

DIGITS = """\
recipe: dprecipe/v1
name: digits
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
model: {kind: mlp, hidden: [12]}
mechanism:
  kind: encoded
  codebook: {source: gaussian}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
training:
  steps: 5
  optimizer: {kind: sgd, lr: 1.0}
runtime: {device: cpu, physical_batch: 64}
"""
SIZES = (64 * 12 + 12, 12 * 10 + 10)


def recipe(*overrides: str, text: str = DIGITS) -> tuple[Recipe, Encoded]:
    loaded = read_text(text, "digits.yaml", overrides).recipe
    assert isinstance(loaded.mechanism, Encoded)
    return loaded, loaded.mechanism


def gradients(loaded: Recipe) -> NDArray[np.float32]:
    """(N, D): of every public record, one backward pass each."""
    assert loaded.data.test is not None
    records = load_records(loaded.data.test, loaded.data, Path(), "test")
    model = build(loaded.model, (1, 8, 8), 10, loaded.runtime.seed)
    rows = []
    for index in range(len(records)):
        features, labels = records.batch(slice(index, index + 1))
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(features)), torch.from_numpy(labels))
        grads = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([grad.flatten() for grad in grads]).numpy())
    return np.stack(rows)


@pytest.mark.parametrize("groups", ["model", "layer"])
def test_codewords_are_the_sorted_gradients_of_the_public_records(groups: str) -> None:
    loaded, spec = recipe(f"mechanism.groups={groups}")
    result = make_codebook(loaded, spec, Path(), 1000, Path())
    sizes = (sum(SIZES),) if groups == "model" else SIZES
    direct = fit_codebook(gradients(loaded), sizes)
    assert result.codebook.sizes == sizes
    assert result.codebook.words == direct.words == 359
    for one, other in zip(result.codebook.groups, direct.groups, strict=True):
        np.testing.assert_allclose(one.levels, other.levels, atol=2e-5)  # two steps of a whole number


def test_fewer_codewords_are_a_draw_with_the_public_seed() -> None:
    loaded, spec = recipe()
    some, again = make_codebook(loaded, spec, Path(), 20, Path()), make_codebook(loaded, spec, Path(), 20, Path())
    assert some.codebook.words == 20
    assert some.codebook.digest == again.codebook.digest
    every = make_codebook(loaded, spec, Path(), 359, Path()).codebook.whole[0]
    known_rows = {row.tobytes() for row in every}
    assert all(row.tobytes() in known_rows for row in some.codebook.whole[0])
    first_twenty = {row.tobytes() for row in every[:20]}
    assert {row.tobytes() for row in some.codebook.whole[0]} != first_twenty
    other, spec = recipe("runtime.seed=1")
    assert make_codebook(other, spec, Path(), 20, Path()).codebook.digest != some.codebook.digest


def test_the_size_of_batches_changes_nothing_but_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (
        make_codebook(*recipe(f"runtime.physical_batch={size}"), Path(), 50, Path()).codebook for size in (7, 512)
    )
    np.testing.assert_allclose(one.groups[0].levels, other.groups[0].levels, atol=2e-5)
    batch_sizes: list[int] = []
    real = module.fit_in_batches
    monkeypatch.setattr(
        module,
        "fit_in_batches",
        lambda batches, sizes: real((batch_sizes.append(len(batch)) or batch for batch in batches), sizes),
    )
    monkeypatch.setattr(module, "MAX_NUMBERS", 3 * sum(SIZES) + 1)
    few = make_codebook(*recipe(), Path(), 50, Path()).codebook
    np.testing.assert_allclose(few.groups[0].levels, other.groups[0].levels, atol=2e-5)
    assert batch_sizes == [3] * 16 + [2]


def test_batches_are_one_array() -> None:
    vectors = np.random.default_rng(0).standard_normal((30, 400))
    whole = fit_codebook(vectors, [390, 10])
    assert fit_in_batches(iter(np.split(vectors, [1, 17])), [390, 10]).digest == whole.digest
    assert fit_in_batches([vectors[:0], vectors], [390, 10]).digest == whole.digest


def test_extreme_values_keep_their_shape() -> None:
    vectors = np.random.default_rng(0).random((3, 50))
    for factor in (1e-300, 1e300):
        assert fit_codebook(vectors * factor, [50]).digest == fit_codebook(vectors, [50]).digest


def test_too_many_batches_are_refused_while_they_come() -> None:
    def endless() -> object:
        while True:
            yield np.ones((50_000, 2))

    with pytest.raises(CodebookError, match="the limit of a codebook"):
        fit_in_batches(endless(), [2])  # type: ignore[arg-type]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A text of a recipe over npz files: of ten public records, half have features of zeros."""
    features = np.random.default_rng(0).random((10, 5)).astype(np.float32)
    features[::2] = 0
    np.savez(tmp_path / "test.npz", features=features, labels=np.arange(10) % 3)
    return tmp_path


NPZ = DIGITS.replace(
    "train: {source: digits, split: train}", "train: {source: npz, path: train.npz, shape: [5], classes: 3}"
).replace(
    "test: {source: digits, split: test, access: public}",
    "test: {source: npz, path: test.npz, shape: [5], classes: 3, access: public}",
)


def no_biases(monkeypatch: pytest.MonkeyPatch, scale: float = 1.0) -> None:
    """Without a bias, features of zeros have a gradient of zeros."""

    def built(*_: object, **__: object) -> torch.nn.Module:
        layer = torch.nn.Linear(5, 3, bias=False)
        torch.nn.init.constant_(layer.weight, scale)
        return layer

    monkeypatch.setattr("dprecipe.models.build.build", built)
    monkeypatch.setattr(module, "groups_of", lambda *_: (15,))


def test_records_without_a_gradient_are_left_out(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_biases(monkeypatch)
    result = make_codebook(*recipe(text=NPZ), records, 1000, records)
    assert (result.codebook.words, result.without_gradient) == (5, 5)


def test_without_any_gradient_there_is_no_codebook(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_biases(monkeypatch, float("nan"))
    with pytest.raises(RunFailed, match="none of 10 public records"):
        make_codebook(*recipe(text=NPZ), records, 1000, records)


def test_the_training_file_under_another_name_is_not_public(records: Path) -> None:
    (records / "train.npz").hardlink_to(records / "test.npz")
    with pytest.raises(DataFault, match="file of the training records"):
        make_codebook(*recipe(text=NPZ), records, 1000, records)


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        (", access: public}", "}", "data.test.access"),
        ("  test: {source: digits, split: test, access: public}\n", "", "data"),
    ],
)
def test_records_that_are_not_public_are_refused(old: str, new: str, path: str) -> None:
    assert old in DIGITS
    loaded, spec = recipe(text=DIGITS.replace(old, new))
    (finding,) = public_records(loaded.data)
    assert (finding.code, finding.path, finding.is_error) == ("P130", path, True)
    with pytest.raises(DataFault, match="public"):
        make_codebook(loaded, spec, Path(), 10, Path())
    assert list(public_records(recipe()[0].data)) == []
