"""A mechanism that is registered in a test alone goes the way of a certificate: stated, published, verified."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprecipe.release.untrusted import to_bytes

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FIFTH = """
from dprecipe.contract.table import register
from fifth import MECHANISM
register(MECHANISM)
"""
RECIPE = """\
recipe: dprecipe/v1
name: once
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1437
model: {kind: logistic_regression}
mechanism: {kind: fifth, multiplier: 4.0}
budget: {epsilon: auto, delta: 1e-5}
training: {steps: 1, optimizer: {kind: sgd, lr: 1.0}}
"""


def run(code: str, *arguments: str) -> Any:
    """What a fresh interpreter that knows the mechanism prints, as JSON."""
    path = os.pathsep.join([str(ROOT), str(HERE)])
    done = subprocess.run(
        [sys.executable, "-c", FIFTH + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


MADE = """
import json, sys
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
from dprecipe.models.file import describe_file
from dprecipe.planning.make import plan
from dprecipe.privacy.ledger import LedgerWriter, read
from dprecipe.recipe.read import read_text
from dprecipe.release import folder
from dprecipe.release.facts import CheckResult, PublicScore, ReleasedTensor, RunFacts, list_versions
from dprecipe.release.tensors import expected_shapes
from dprecipe.release.untrusted import to_bytes

out, text = Path(sys.argv[1]), sys.argv[2]
made = plan(read_text(text, "once.yaml", (), []))
ledger = out / "private" / "ledger.jsonl"
ledger.parent.mkdir(parents=True)
writer = LedgerWriter(ledger, made.digest)
for charge in made.events:
    writer.reserve(charge.event, charge.count)
    writer.settle(charge.event, charge.count)
writer.close("completed")
due = expected_shapes(made)
facts = RunFacts(
    checks=(CheckResult("weights_bounded", "in other words", True),),
    versions=list_versions(), device="cpu",
    started="2026-01-01T10:00:00+00:00", finished="2026-01-01T10:05:00+00:00",
    commitment="ab" * 32, score=PublicScore(0.9, 0.4, 360),
    tensors=tuple(ReleasedTensor(name, due[name], "noisy_steps") for name in sorted(due)),
)

def write(where):
    save_file({name: np.ones(shape, np.float32) for name, shape in due.items()}, where / "model.safetensors")
    (where / "model.json").write_bytes(to_bytes(describe_file(made.model, made.data)))
    (where / "hint.txt").write_text("add noise once\\n")

folder.publish_draft(out / "release", made, read(ledger), facts, [{"step": 1, "accuracy": 0.9, "loss": 0.4}], write)
print(json.dumps(made.guarantee.epsilon))
"""
VERIFIED = """
import json, sys
from pathlib import Path
from dprecipe.cli.verify import verified_lines
from dprecipe.faults import CertificateInvalid
from dprecipe.release.verify import verify

found = []
for release in sys.argv[1:]:
    try:
        found.append([True, verified_lines(verify(Path(release)))])
    except CertificateInvalid as invalid:
        found.append([False, list(invalid.failures)])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    out = tmp_path_factory.mktemp("fifth") / "run"
    run(MADE, str(out), RECIPE)
    return out / "release"


def predicate(release: Path) -> Any:
    return json.loads((release / "certificate.json").read_text(encoding="utf-8"))["predicate"]


@pytest.mark.slow
def test_it_states_what_it_alone_knows(release: Path) -> None:
    stated = predicate(release)
    assert stated["mechanism"] == {"kind": "fifth", "deviation": 4.0, "at_half": stated["mechanism"]["at_half"]}
    assert stated["mechanism"]["at_half"] > stated["claim"]["epsilon"]
    assert stated["events"]["run_length"] == [{"count": 1, "kind": "noisy_weights", "noise_multiplier": 4.0}]
    assert [check["id"] for check in stated["checks"]] == ["weights_bounded"]
    assert stated["sampling"]["scheme"] == "at_once"
    page = (release / "report.html").read_text(encoding="utf-8")
    assert "4 &lt;b&gt;" in page
    assert 'aria-label="once"' in page
    assert "the weights by 1" in page
    assert "gaussian noise of deviation 4" in (release / "card.md").read_text(encoding="utf-8")


def test_the_schema_has_its_block_closed() -> None:
    code = (
        "import json\nfrom dprecipe.release.schema import certificate_schema\nprint(json.dumps(certificate_schema()))"
    )
    schema = run(code)
    assert set(schema["$defs"]["FifthFacts"]["required"]) == {"kind", "deviation", "at_half"}
    assert schema["$defs"]["FifthFacts"]["additionalProperties"] is False
    assert schema["$defs"]["Predicate"]["properties"]["mechanism"]["discriminator"]["mapping"]["fifth"]


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another field": (lambda p: p["mechanism"].update(clipping=None), "mechanism.clipping: a certificate has no such"),
    "a number of its own": (lambda p: p["mechanism"].update(at_half=0.5), "mechanism.at_half: the events cost"),
    "a constant of its own": (lambda p: p["mechanism"].update(deviation=5.0), "mechanism.deviation: the certificate"),
    "a check of another": (
        lambda p: p["checks"][0].update(id="vote_sensitivity"),
        "checks: weights_bounded is missing",
    ),
    "a check reworded": (lambda p: p["checks"][0].update(text="it holds"), "checks.0.text"),
    "an event of another": (lambda p: p["events"]["run_length"][0].update(kind="gaussian"), "events.run_length.0"),
    "another kind": (lambda p: p["mechanism"].update(kind="dpsgd"), "mechanism.noise: it is missing"),
    "fewer steps": (lambda p: p["sampling"].update(steps_trained=0), "sampling.steps_trained"),
}


@pytest.mark.slow
def test_it_verifies_and_what_is_changed_is_found_and_named(release: Path, tmp_path: Path) -> None:
    for name, (change, _) in CHANGES.items():
        shutil.copytree(release, tmp_path / name)
        file = tmp_path / name / "certificate.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        change(content["predicate"])
        file.write_bytes(to_bytes(content))
    (whole, said), *others = run(VERIFIED, str(release), *(str(tmp_path / name) for name in CHANGES))
    assert whole
    assert any(line.endswith("fifth, 1 steps charged, gaussian noise of deviation 4") for line in said)
    for (name, (_, due)), (verified, failures) in zip(CHANGES.items(), others, strict=True):
        assert not verified, name
        assert any(due in failure for failure in failures), (name, failures)


@pytest.mark.slow
def test_its_file_is_held_to_what_its_mechanism_knows(release: Path, tmp_path: Path) -> None:
    """Its digest is the one that is named, and yet it says something else."""
    shutil.copytree(release, tmp_path / "release")
    (tmp_path / "release" / "hint.txt").write_text("private\n", encoding="utf-8")
    file = tmp_path / "release" / "certificate.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    (subject,) = (entry for entry in content["subject"] if entry["name"] == "hint.txt")
    subject["digest"]["sha256"] = hashlib.sha256(b"private\n").hexdigest()
    file.write_bytes(to_bytes(content))
    assert run(VERIFIED, str(tmp_path / "release")) == [[False, ["hint.txt: says something else"]]]
