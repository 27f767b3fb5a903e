"""The rules of encoding that golden recipes can't show: thresholds, summaries of codebooks, refusals of the plan."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.contract.plan import canonical_json
from dprecipe.faults import Finding, PlanRefused, RecipeError
from dprecipe.mechanisms.encoded.box import GradientBox
from dprecipe.mechanisms.encoded.codebook import draw_gaussian_codebook, rank_starts
from dprecipe.mechanisms.encoded.plan import ATTACHMENT
from dprecipe.planning import rules
from dprecipe.planning.make import plan
from dprecipe.privacy.events import MAX_ROWS
from dprecipe.recipe.read import read, read_text

FINE = (Path(__file__).parents[2] / "golden" / "rules" / "fine-encoded-one-phase.yaml").read_text("utf-8")
FROM_FILE = "mechanism.codebook={source: file, path: codebook.npz}"
LAPLACE = "mechanism.noise={family: laplace, multiplier: 4.0}"


def findings_of(*overrides: str, attachments: Sequence[tuple[str, str]] = ()) -> list[Finding]:
    recipe = read_text(FINE, overrides=overrides).recipe
    return rules.check(recipe, attachments)


def refusal_of(*overrides: str) -> Finding:
    with pytest.raises(PlanRefused) as caught:
        plan(read_text(FINE, overrides=overrides))
    (finding,) = caught.value.findings
    return finding


def test_a_recipe_with_noise_to_be_solved_is_validated_without_numpy() -> None:
    code = (
        "import sys\n"
        "from dprecipe.planning import rules\n"
        "from dprecipe.recipe.read import read_text\n"
        "assert rules.check(read_text(sys.stdin.read()).recipe) == []\n"
        "print(sorted({'numpy', 'scipy', 'torch'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input=FINE, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_text_of_a_recipe_is_not_enough_where_a_file_belongs_to_it() -> None:
    (finding,) = findings_of(FROM_FILE)
    assert (finding.code, finding.path) == ("R260", "mechanism.codebook.path")


def test_a_summary_takes_the_place_of_the_file() -> None:
    summary = canonical_json(draw_gaussian_codebook([2410], 2, 1e-5, 0).box.to_json())
    assert findings_of(FROM_FILE, attachments=[(ATTACHMENT, summary)]) == []
    (finding,) = findings_of(FROM_FILE, "mechanism.groups=layer", attachments=[(ATTACHMENT, summary)])
    assert finding.code == "R260"
    assert "2,410 coordinates in 1 groups, the model has 2,410 in 2" in finding.message


def bounds(*pairs: tuple[Any, Any], size: Any = 2410, digest: Any = "sha256:" + "0" * 64) -> str:
    content = {"digest": digest, "words": 1, "groups": [{"size": size, "bounds": pairs}]}
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize(
    "summary",
    [
        "",
        "no JSON",
        "[" * 100_000,
        "null",
        "{}",
        bounds((0.0, 2409), (1.0, 1), digest="none"),
        bounds((0.0, 2409), (1.0, 1), digest=None),
        bounds((1.0, 10**400), size=10**400),
        bounds((0.0, 2410), (1.0, 10**9), size=10**9 + 2410),
        bounds((0.0, 2411), (1.0, -1)),
        bounds((-1.0, 2410)),
        bounds((1.0, 1), (0.0, 2409)),
        bounds((0.5, 1), (1e999, 2409)),
        bounds((0.0, 2409), (0.9, 1)),
        bounds(*((index / 3000, 1) for index in range(2410))),
    ],
)
def test_an_unreadable_summary_is_a_finding(summary: str) -> None:
    """Certificates carry summaries, and anybody can write a certificate."""
    (finding,) = (f for f in findings_of(FROM_FILE, LAPLACE, attachments=[(ATTACHMENT, summary)]) if f.is_error)
    assert (finding.code, finding.path) == ("R260", "mechanism.codebook.path")


RANKS = rank_starts(2410)
TABLES = {"sizes": np.array([2410]), "ranks_0": RANKS, "levels_0": np.ones((2, len(RANKS)), np.uint16)}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (None, "there is no file"),
        (b"", "not an archive"),
        (b"PK\x03\x04 and no more", "not an archive"),
        ({"sizes": np.array(3)}, "neither codewords nor levels"),
        ({"sizes": np.array([np.inf])}, "neither codewords nor levels"),
        ({"sizes": np.array([])}, "groups of no coordinates"),
        ({"codewords": np.array([{}])}, "damaged, or holds more than arrays"),
        (TABLES | {"levels_0": np.array(3, np.uint16)}, "wrong kind or shape"),
        (TABLES | {"levels_0": np.ones((0, len(RANKS)), np.uint16)}, "wrong kind or shape"),
        (TABLES | {"ranks_0": np.zeros((2, 2))}, "wrong kind or shape"),
    ],
)
def test_a_file_that_is_no_codebook_is_a_finding(
    arrays: dict[str, Any] | bytes | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(FINE, "utf-8")
    if isinstance(arrays, dict):
        np.savez(tmp_path / "codebook.npz", **arrays)
    elif arrays is not None:
        (tmp_path / "codebook.npz").write_bytes(arrays)
    with pytest.raises(RecipeError) as caught:
        read(tmp_path / "recipe.yaml", (FROM_FILE,))
    (finding,) = caught.value.findings
    assert (finding.code, finding.path) == ("R260", "mechanism.codebook.path")
    assert message in finding.message
    assert str(tmp_path) not in finding.message


def test_an_archive_with_a_damaged_array_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(FINE, "utf-8")
    np.savez_compressed(tmp_path / "codebook.npz", **TABLES)
    assert read(tmp_path / "recipe.yaml", (FROM_FILE,)).source.attachments
    content = bytearray((tmp_path / "codebook.npz").read_bytes())
    for at in range(40, len(content) - 400, 50):
        content[at] ^= 0xFF
    (tmp_path / "codebook.npz").write_bytes(content)
    with pytest.raises(RecipeError, match="R260"):
        read(tmp_path / "recipe.yaml", (FROM_FILE,))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("mechanism.codebook.floor=10",), "a codeword of zeros"),
        (
            ("mechanism.codebook.size=100000", "mechanism.groups=layer", f"model.hidden=[{'64, ' * 9}64]"),
            "the limit of a codebook",
        ),
    ],
)
def test_a_codebook_that_cannot_be_drawn_is_refused(overrides: tuple[str, ...], message: str) -> None:
    assert findings_of(*overrides) == []  # nothing is drawn to validate it
    refused = refusal_of(*overrides)
    assert (refused.code, refused.path) == ("R260", "mechanism.codebook")
    assert message in refused.message
    (finding,) = (f for f in findings_of(*overrides, LAPLACE) if f.is_error)  # a fixed noise is accounted at once
    assert (finding.code, finding.message) == ("R260", refused.message)


def test_what_is_wrong_with_the_model_comes_before_what_is_wrong_with_its_codebook(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(FINE, "utf-8")
    for override, code in (
        ("data.preprocess=[{one_hot: {}}]", "R208"),
        ("model={kind: cnn, preset: tempered-mnist}", "R251"),
    ):
        loaded = read(path, (override, FROM_FILE))
        assert [f.code for f in rules.check(loaded.recipe, loaded.source.attachments)] == [code]
    flat = read(path, ("data.preprocess=[{flatten: {}}]", "model={kind: cnn, preset: lenet}", FROM_FILE))
    assert [f.code for f in rules.check(flat.recipe, flat.source.attachments)] == ["R250"]
    with pytest.raises(RecipeError, match="R260"):
        read(path, (FROM_FILE,))


@pytest.mark.parametrize(("features", "warned"), [(9, False), (10, True)])
def test_other_families_are_warned_of_from_a_hundred_coordinates_on(features: int, warned: bool) -> None:
    actual = findings_of(
        f"data.train={{source: npz, path: a.npz, shape: [{features}], classes: 10}}",
        f"data.test={{source: npz, path: b.npz, shape: [{features}], classes: 10, access: public}}",
        "model={kind: logistic_regression}",  # 10 (features + 1) coordinates
        "mechanism.denoise=none",
        "mechanism.noise={family: laplace, multiplier: auto}",
    )
    assert [finding.code for finding in actual] == ["P138"] * warned


@pytest.mark.parametrize(("features", "warned"), [(98, True), (99, False)])
def test_denoising_is_warned_of_below_a_thousand_coordinates(features: int, warned: bool) -> None:
    actual = findings_of(
        f"data.train={{source: npz, path: a.npz, shape: [{features}], classes: 10}}",
        f"data.test={{source: npz, path: b.npz, shape: [{features}], classes: 10, access: public}}",
        "model={kind: logistic_regression}",
    )
    assert [finding.code for finding in actual] == ["P139"] * warned


def test_earlier_phases_that_leave_nothing_for_a_solved_one_are_named() -> None:
    phases = "mechanism.noise=[{{family: gaussian, multiplier: {}, epochs: 2}}, {{family: gaussian, multiplier: auto}}]"
    refused = refusal_of(phases.format(0.5))
    assert refused.code == "P106"
    assert "mechanism.noise.1.multiplier" in refused.message
    assert "raise the noise of the other phases" in refused.remedy
    assert plan(read_text(FINE, overrides=(phases.format(5.0),))).guarantee.epsilon <= 3


def test_a_run_that_ends_with_the_budget_has_phases_of_a_finite_length() -> None:
    phases = "mechanism.noise=[{{family: gaussian, multiplier: 1e6, steps: {}}}, {{family: gaussian, multiplier: 4}}]"
    (finding,) = findings_of("training={epochs: auto, optimizer: {kind: sgd, lr: 1.0}}", phases.format(10**12))
    assert (finding.code, finding.path) == ("R262", "mechanism.noise")
    assert findings_of("training={epochs: auto, optimizer: {kind: sgd, lr: 1.0}}", phases.format(100)) == []


def test_the_bounds_of_many_layers_are_rounded_up_to_as_many_as_an_event_may_have() -> None:
    box = draw_gaussian_codebook([4160] * 20, 100, 1e-5, 0).box
    scales = [1 + layer / 7 for layer in range(20)]
    assert sum(len(table) for _, table in box.groups) > MAX_ROWS
    norm, shifts = box.shifts(scales)
    assert len(shifts) <= MAX_ROWS
    exact = sorted(
        bound / scale / norm
        for (_, table), scale in zip(box.groups, scales, strict=True)
        for bound, count in table
        for _ in range(count)
    )
    given = [bound for bound, count in shifts for _ in range(count)]
    assert len(given) == len(exact) == box.dimension
    assert all(more >= less for more, less in zip(given, exact, strict=True))
    assert math.sqrt(sum(bound * bound for bound in given)) <= 1 + 1e-4


def test_a_summary_has_as_many_bounds_as_a_codebook_has_levels() -> None:
    box = draw_gaussian_codebook([10**6], 3, 1e-5, 0).box
    assert GradientBox.from_json(json.loads(json.dumps(box.to_json()))) == box
