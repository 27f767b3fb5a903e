"""Every golden recipe of the rules gives exactly its golden findings; every code of the rules is shown, with a page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from dprecipe.cli import render
from dprecipe.cli.validate import check
from dprecipe.mechanisms.encoded.codebook import gaussian
from dprecipe.planning import rules
from dprecipe.recipe.read import read, read_text

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "golden" / "rules"
CASES = sorted(FOLDER.glob("*.yaml"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the recipes, with the codebooks that some of them name."""
    folder = tmp_path_factory.mktemp("rules")
    for path in CASES:
        shutil.copy(path, folder)
    gaussian([2410], 3, 1e-5, 0).save(folder / "made.npz")
    gaussian([650], 3, 1e-5, 0).save(folder / "of_another_model.npz")
    words_ND = np.random.default_rng(0).normal(size=(2, 2410))
    np.savez(folder / "signed.npz", codewords=np.sort(words_ND, axis=1))
    np.savez(folder / "unsorted.npz", codewords=np.abs(words_ND))
    (folder / "text.npz").write_text("no archive")
    return folder


def outcome(path: Path) -> str:
    findings, texts = check(path)
    return render.as_text(findings, texts).replace(f"{path.parent}/", "") or "no findings\n"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden(path: Path, folder: Path, update_golden: bool) -> None:
    expected = path.with_suffix(".out")
    if update_golden:
        expected.write_text(outcome(folder / path.name), encoding="utf-8")
    assert outcome(folder / path.name) == expected.read_text(encoding="utf-8")


def test_every_code_of_the_rules_is_shown_and_has_a_page() -> None:
    sources = [ROOT / "dprecipe" / "planning" / "rules.py", *(ROOT / "dprecipe" / "mechanisms").rglob("*.py")]
    used = {code for source in sources for code in re.findall(r'"([PR]\d{3})"', source.read_text("utf-8"))}
    shown = set(re.findall(r"\[([PR]\d{3})\]", "".join(p.read_text("utf-8") for p in FOLDER.glob("*.out"))))
    assert len(used) >= 30
    assert used - {"P107"} <= shown  # P107 needs the plan: tests/mechanisms/dpsgd/test_account.py
    assert all((ROOT / "docs" / "findings" / f"{code}.md").exists() for code in used)
    assert len(CASES) == len(list(FOLDER.glob("*.out"))) >= 60


REMEDIES: dict[str, tuple[str, ...]] = {
    "p101-encoded-df": ("mechanism.noise.df=0.5",),
    "p101-encoded-phase": ("mechanism.noise.0.shape=3",),
    "p102-encoded": ("mechanism.noise.multiplier=2.83335", "training.epochs=0.356"),
    "p102-encoded-phases": ("mechanism.noise.1.multiplier=2.75925", "training.epochs=2.4923"),
    "p105-encoded": ("mechanism.sampling.batch_size=1438", "mechanism.sampling={scheme: full_batch}"),
    "p106-encoded-phases": (
        "mechanism.noise=[{family: gaussian, multiplier: 4.0, epochs: 2}, {family: gaussian, multiplier: 4.0}]",
    ),
    "p130-gradients": ("mechanism.codebook={source: gaussian}", "mechanism.codebook={source: file, path: made.npz}"),
    "p131-shuffle": (
        "mechanism.sampling={scheme: poisson, batch_size: 256}",
        "mechanism.sampling={scheme: full_batch}",
    ),
    "p132-position": ("mechanism.microbatch=1", "mechanism.microbatch.by=unit"),
    "p133-microbatch": ("mechanism.microbatch=1",),
    "p134-realised-lot": ("mechanism.divide_by=expected_lot",),
    "p135-clean-sum": ("mechanism.denoise.on=noisy_sum",),
    "p136-ranked-together": ("mechanism.groups=layer", "mechanism.group_noise=null"),
    "p137-cauchy": ("mechanism.noise={family: student_t, df: 9, multiplier: auto}", "mechanism.noise.force=true"),
    "p138-cauchy": ("mechanism.noise={family: gaussian, multiplier: auto}",),
    "p138-phase": ("mechanism.noise.1={family: gaussian, multiplier: auto}",),
    "p139-few-coordinates": ("mechanism.denoise=none",),
    "p139-per-group": ("mechanism.denoise.per=model", "mechanism.denoise=none"),
    "p140-adam": ("training.optimizer={kind: sgd, lr: 1.0}", "mechanism.denoise=none"),
    "p141-signed": ("mechanism.codebook.path=made.npz",),
    "p141-unsorted": ("mechanism.codebook.path=made.npz",),
    "r260-absent": ("mechanism.codebook.path=made.npz",),
    "r260-another-model": ("mechanism.codebook.path=made.npz", "model={kind: logistic_regression}"),
    "r260-layers": ("mechanism.groups=model",),
    "r260-no-codebook": ("mechanism.codebook.path=made.npz",),
    "r261-scales": ("mechanism.group_noise=[1.0, 2.0]",),
    "r262-last": ("mechanism.noise.1={family: gaussian, multiplier: auto, epochs: null, steps: null}",),
    "r262-no-length": ("mechanism.noise.0.epochs=5", "mechanism.noise.0.steps=28"),
    "r262-too-long": ("mechanism.noise.0.epochs=10", "training.epochs=21"),
    "r262-too-long-auto": ("mechanism.noise.0.steps=100",),
    "r262-two-lengths": ("mechanism.noise.0.epochs=null", "mechanism.noise.0.steps=null"),
    "r302-phases": ("mechanism.noise.1.multiplier=4.0",),
}


@pytest.mark.parametrize(("name", "override"), [(name, one) for name, all_ in REMEDIES.items() for one in all_])
def test_the_remedy_works(name: str, override: str, folder: Path) -> None:
    """Each change that a remedy names mends what it was given for, and breaks nothing."""
    code = name[:4].upper()
    assert f"[{code}]" in (FOLDER / f"{name}.out").read_text("utf-8")
    loaded = read(folder / f"{name}.yaml", (override,))
    findings = rules.check(loaded.recipe, loaded.source.attachments)
    assert code not in {finding.code for finding in findings}
    assert not [finding for finding in findings if finding.is_error]


def test_every_refusal_of_encoding_has_a_remedy_that_was_tried() -> None:
    account = (ROOT / "dprecipe" / "mechanisms" / "encoded" / "account.py").read_text("utf-8")
    assert {name[:4].upper() for name in REMEDIES} >= set(re.findall(r'"([PR]\d{3})"', account))


@pytest.mark.parametrize("size", [1, 7, 100, 999, 1438, 60_000, 10**9])
def test_the_delta_that_a_remedy_names_raises_no_finding(size: int) -> None:
    text = (FOLDER / "p103-error.yaml").read_text("utf-8")
    text = text.replace("size: 1438", f"size: {size}").replace("batch_size: 256", "batch_size: 1")
    (finding,) = rules.delta_against_size(read_text(text.replace("delta: 0.01", "delta: 0.99999999"), "a.yaml").recipe)
    named = finding.remedy.rsplit(" ", 1)[1]
    assert (
        list(rules.delta_against_size(read_text(text.replace("delta: 0.01", f"delta: {named}"), "a.yaml").recipe)) == []
    )
