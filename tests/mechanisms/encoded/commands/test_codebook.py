"""`dprecipe codebook`: from a recipe that names a file to be made, to a run that uses it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dprecipe.cli.validate import check
from dprecipe.faults import PlanRefused, RecipeError, RunFailed, UsageFault
from dprecipe.mechanisms.encoded.codebook import draw_gaussian_codebook, load_codebook
from dprecipe.mechanisms.encoded.commands.codebook import write_codebook
from dprecipe.mechanisms.encoded.files import codebook_of
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read

RECIPE = """\
recipe: dprecipe/v1
name: digits
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
model: {kind: logistic_regression}
mechanism:
  kind: encoded
  codebook: {source: file, path: books/one.npz, norm: 0.5}
  noise: {family: gaussian, multiplier: auto}
  denoise: none
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
training:
  steps: 4
  optimizer: {kind: sgd, lr: 1.0}
runtime: {device: cpu}
release: {report: false}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "digits.yaml"
    path.write_text(RECIPE)
    (tmp_path / "books").mkdir()
    return path


@pytest.fixture
def book(recipe: Path) -> Path:
    return recipe.parent / "books" / "one.npz"


def test_from_the_recipe_to_the_plan(recipe: Path, book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RecipeError, match="R260"):
        read(recipe)
    write_codebook(recipe, book, size=40)
    said = capsys.readouterr().out
    assert "40 codewords of 650 coordinates in 1 group, from as many public records" in said
    result = load_codebook(book, [650])
    assert f"digest {result.digest}" in said
    assert sorted(path.name for path in book.parent.iterdir()) == ["one.npz"]
    findings, *_ = check(recipe)
    assert findings == ()
    planned = plan(read(recipe))
    assert planned.mechanism_plan.digest == result.digest
    assert codebook_of(planned.mechanism_plan, recipe.parent).digest == result.digest
    (advice,) = re.findall(r"^  (codebook: \{.*\})$", said, re.MULTILINE)
    assert advice in RECIPE  # what it prints is what the recipe has to say


def test_the_advice_works_from_another_folder_and_with_an_odd_name(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a b: {c}").mkdir()
    write_codebook(recipe, tmp_path / "a b: {c}" / "#1.npz", ["mechanism.codebook={source: gradients, norm: 2}"], 5)
    (advice,) = re.findall(r"^  codebook: (\{.*\})$", capsys.readouterr().out, re.MULTILINE)
    assert plan(read(recipe, [f"mechanism.codebook={advice}"])).mechanism_plan.codebook.norm == 2.0


def test_a_changed_or_foreign_file_is_refused(recipe: Path, book: Path) -> None:
    write_codebook(recipe, book, size=5)
    planned = plan(read(recipe))
    write_codebook(recipe, book, size=6, force=True)
    with pytest.raises(RunFailed, match="not the one of the plan"):
        codebook_of(planned.mechanism_plan, recipe.parent)
    assert plan(read(recipe)).digest != planned.digest
    content = bytearray(book.read_bytes())
    content[len(content) // 2] ^= 0xFF
    book.write_bytes(content)
    with pytest.raises(RecipeError, match="R260"):
        read(recipe)
    with pytest.raises(RunFailed):
        codebook_of(planned.mechanism_plan, recipe.parent)
    book.write_bytes(draw_gaussian_codebook([651], 3, 1e-5, 0).to_bytes())
    with pytest.raises(RecipeError, match="R260"):
        read(recipe)
    with book.open("wb") as file:
        np.savez(file, codewords=-np.ones((2, 650)))
    with pytest.raises(RecipeError, match="P141"):
        read(recipe)


def test_nothing_is_overwritten_unasked(recipe: Path, book: Path) -> None:
    book.write_bytes(b"mine")
    with pytest.raises(UsageFault, match="exists already"):
        write_codebook(recipe, book)
    assert book.read_bytes() == b"mine"
    write_codebook(recipe, book, size=3, force=True)
    assert load_codebook(book, [650]).words == 3


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        (["data.test.access=private_internal"], "P130"),
        (["data.test.split=train"], "P113"),
        (["data.test={source: digits, split: train, records: [0, 10], access: public}"], "P113"),
        (["training.epochs=1"], "R301"),
    ],
)
def test_private_records_are_refused(recipe: Path, book: Path, overrides: list[str], code: str) -> None:
    with pytest.raises(PlanRefused) as refused:
        write_codebook(recipe, book, overrides)
    assert [finding.code for finding in refused.value.findings if finding.is_error] == [code]
    assert all(finding.place is not None for finding in refused.value.findings)
    assert not book.exists()


def test_wrong_use_is_told_before_anything_is_computed(
    recipe: Path, tmp_path: Path, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageFault, match="no folder"):
        write_codebook(recipe, tmp_path / "absent" / "book.npz")
    dpsgd = "mechanism={kind: dpsgd, clip: {norm: 1}, noise: {family: gaussian, multiplier: auto}, " \
        "sampling: {scheme: full_batch}}"  # fmt: skip
    with pytest.raises(UsageFault, match="dpsgd has no codebook"):
        write_codebook(recipe, book, [dpsgd])
    with pytest.raises(UsageFault, match="can't be written"):
        write_codebook(recipe, book.parent, size=2, force=True)
    monkeypatch.setattr("dprecipe.libraries.find_spec", lambda name: None)
    with pytest.raises(UsageFault) as missing:
        write_codebook(recipe, book)
    assert "pip install 'dprecipe[train]'" in missing.value.remedy


@pytest.mark.slow
def test_a_run_uses_the_codebook(recipe: Path, book: Path, tmp_path: Path) -> None:
    import dprecipe

    write_codebook(recipe, book, size=40)
    run = dprecipe.run(dprecipe.plan(dprecipe.load(recipe)), out=tmp_path / "run")
    dprecipe.verify(run.release)
