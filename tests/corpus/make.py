"""Writes the corpus anew: `python -m tests.corpus.make FOLDER [NAME]…`. Read the README before a file is replaced.

The releases are those of small runs of each kind, most of them also of the light install's tests.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dprecipe import api
from dprecipe.account.facts import new_facts
from dprecipe.account.opening import create_account
from dprecipe.cli.account import export
from dprecipe.privacy.adjacency import Neighbouring
from tests.languages import write_decoder
from tests.light.releases import CLIPPED, MODEL, RECIPES, RUNS
from tests.recipe_texts import DIGITS, DPSGD, STANDARDIZED, STEPS
from tests.release.test_no_model import lose

REPORT = "release: {report: true}\n"
CORRELATED = """\
mechanism:
  kind: correlated
  clip: {norm: 0.3}
  noise: {form: previous_step, multiplier: auto}
  sampling: {scheme: fixed_order, batch_size: 288}
budget: {epsilon: 3.0, delta: 1e-5}
training: {epochs: 2, optimizer: {kind: sgd, lr: 1.0}}
"""
BANDS = CORRELATED.replace("previous_step", "banded, bands: 3").replace(
    "fixed_order, batch_size: 288", "cyclic_poisson, batch_size: 96"
)
VOTES = """\
data: {train: {source: elsewhere, classes: 3}}
model: {kind: none}
mechanism:
  kind: pate
  teachers: {count: 50, votes: {path: votes.csv}}
  aggregator:
    kind: confident_gnmax
    selection: {threshold: 30, noise: {family: gaussian, multiplier: 12}}
    noise: {family: gaussian, multiplier: auto}
  queries: {max: 20}
budget: {epsilon: 3.0, delta: 1e-6}
"""
CORPUS = {
    "dpsgd": RECIPES["dpsgd"] + REPORT,
    "encoded": RECIPES["encoded"],
    "correlated": f"{DIGITS}{CLIPPED}{MODEL}{CORRELATED}",
    "bands": f"{DIGITS}{CLIPPED}{MODEL}{BANDS}",
    "pate": RECIPES["pate"].replace("{labels: true}", "{labels: true, report: true}"),
    "votes": f"{VOTES}release: {{labels: true}}\n",
    "pnsgd": RECIPES["pnsgd"],
    "tuned": RECIPES["tuned"],
    "paid": RECIPES["paid"],
    "account": RECIPES["charged"],
    "audit": RECIPES["audited"].replace(", confidence: 0.9999", "") + REPORT,  # so that all names right refute
    "language": RECIPES["language"],
    "module": RECIPES["module"],
    "no-model": RECIPES["no_model"],
    "attempts": f"{DIGITS}{STANDARDIZED % 0.02}{MODEL}{DPSGD}{STEPS.replace('steps: 3', 'steps: 60')}",
    "signed": RECIPES["dpsgd"] + "release: {sign: {key: key.pem}}\n",
}
"""The recipes, by the name of their release."""
KEPT = ("release", "private/ledger.jsonl")
"""The parts of a run's folder that are in the corpus."""


def make_corpus(target: Path, names: Sequence[str]) -> None:
    """Runs the recipes of these names, and keeps what `verify` reads."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_decoder(folder, "gpt2")
        create_account(
            folder / "digits.db", new_facts("digits", 30.0, 1e-3, "record", Neighbouring.ADD_OR_REMOVE_ONE, None)
        ).close()
        rows = [f"{40 - n},{n % 7},{10 + n - n % 7}" for n in range(20)]
        (folder / "votes.csv").write_text("\n".join(["a,b,c", *rows]) + "\n", encoding="utf-8")
        public = _write_key(folder)
        for name in names:
            text = CORPUS[name]
            recipe = folder / f"{name}.yaml"
            recipe.write_text(f"recipe: dprecipe/v1\nname: {name}\n{text}", encoding="utf-8")
            MADE.get(name, _run)(recipe, folder / name)
            for kept in KEPT:
                place = target / name / kept
                place.parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if (folder / name / kept).is_dir() else shutil.copyfile)(folder / name / kept, place)
        if "account" in names:
            export(str(folder / "digits.db"), target / "account" / "statement.json", None, None)
        if "signed" in names:
            (target / "signed" / "public.pem").write_bytes(public)


def _write_key(folder: Path) -> bytes:
    """Writes a key to sign with, which is thrown away; returns the public one."""
    key = Ed25519PrivateKey.generate()
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    (folder / "key.pem").chmod(0o600)
    return key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)


def _run(recipe: Path, out: Path, *, resume: bool = False) -> None:
    api.run(api.plan(api.load(recipe)), out, data_root=recipe.parent, resume=resume)


def _run_twice(recipe: Path, out: Path) -> None:
    """The first attempt loses the result of its paid step."""
    lose(api.plan(api.load(recipe)), out)
    _run(recipe, out, resume=True)


MADE: dict[str, Callable[[Path, Path], None]] = {
    "module": RUNS["module"],
    "tuned": RUNS["tuned"],
    "no-model": RUNS["no_model"],
    "attempts": _run_twice,
}


if __name__ == "__main__":
    make_corpus(Path(sys.argv[1]), sys.argv[2:] or list(CORPUS))
