"""Certificates of encoding: phases, codebook files, layers of their own noise; honest ones verify, others don't."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dprecipe.contract.plan import Plan, canonical_json
from dprecipe.faults import CertificateInvalid
from dprecipe.mechanisms.encoded.codebook import draw_gaussian_codebook
from dprecipe.planning.make import plan
from dprecipe.privacy import accountants, calibrate
from dprecipe.privacy.events import Charge
from dprecipe.privacy.ledger import LedgerWriter, read
from dprecipe.recipe.read import read as read_recipe
from dprecipe.recipe.read import read_source
from dprecipe.release import certificate
from dprecipe.release.certificate import to_bytes
from dprecipe.release.verify import verify

RECIPE = """\
recipe: dprecipe/v1
name: encoded
data:
  train: {source: npz, path: absent.npz, shape: [4], classes: 2}
  test: {source: npz, path: other.npz, shape: [4], classes: 2, access: public}
  size: 1000
model: {kind: mlp, hidden: [3]}
mechanism:
  kind: encoded
  codebook: {source: file, path: book.npz}
  noise: [{family: laplace, multiplier: 2.0, steps: 20}, {family: student_t, df: 9, multiplier: 6.0}]
  sampling: {scheme: poisson, batch_size: 50}
  groups: layer
  group_noise: [1.0, 2.0]
budget: {epsilon: 3.0, delta: 1e-5}
training:
  steps: 40
  optimizer: {kind: sgd, lr: 1.0}
"""
LAYERS = [15, 8]


@pytest.fixture(scope="session")
def coded_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    where = tmp_path_factory.mktemp("encoded")
    (where / "book.npz").write_bytes(draw_gaussian_codebook(LAYERS, 7, 1e-5, 3).to_bytes())
    (where / "encoded.yaml").write_text(RECIPE, encoding="utf-8")
    return plan(read_recipe(where / "encoded.yaml"))


@pytest.fixture(scope="session")
def published(
    coded_plan: Plan, tmp_path_factory: pytest.TempPathFactory, finish: Callable[..., Any], facts_of: Callable[..., Any]
) -> Path:
    done = finish(tmp_path_factory.mktemp("published") / "run", coded_plan, facts_of(mechanism="encoded"))
    release: Path = done.release
    return release


@pytest.fixture
def release(published: Path, tmp_path: Path) -> Path:
    """A release of one's own, without the ledger beside it."""
    shutil.copytree(published, tmp_path / "release")
    return tmp_path / "release"


def list_failures(release: Path, change: Callable[[dict[str, Any]], None]) -> list[str]:
    file = release / "certificate.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content["predicate"])
    file.write_bytes(to_bytes(content))
    with pytest.raises(CertificateInvalid) as caught:
        verify(release)
    return list(caught.value.failures)


def test_an_honest_release_verifies_and_says_what_was_taken_as_stated(published: Path) -> None:
    verified = verify(published)
    stated = verified.statement.predicate
    assert [run.kind for run in stated.events.run_length] == ["encoded", "encoded"]
    assert stated.mechanism.phases is not None
    assert [phase.family for phase in stated.mechanism.phases] == ["laplace", "student_t"]
    assert any("codebook" in note and "was not compared" in note for note in verified.notes)
    assert stated.accounting[2].epsilon is not None
    assert stated.accounting[2].epsilon > 0.9 * stated.claim.epsilon  # the cross-check sees these events too


def test_events_of_the_cheaper_phase_don_t_stand_for_those_of_the_dearer(release: Path, coded_plan: Plan) -> None:
    cheap = certificate.RUNS.validate_python(Charge(coded_plan.events[1].event, 40).to_json()).model_dump(mode="json")

    def change(predicate: dict[str, Any]) -> None:
        predicate["events"]["run_length"] = [cheap]

    assert any("phases follow one another" in failure for failure in list_failures(release, change))


@pytest.mark.parametrize("counts", [(20, 19), (19, 21), (21, 19)])
def test_events_in_another_proportion_are_refused(release: Path, counts: tuple[int, int]) -> None:
    def change(predicate: dict[str, Any]) -> None:
        for run, count in zip(predicate["events"]["run_length"], counts, strict=True):
            run["count"] = count

    assert any(failure.startswith("events.") for failure in list_failures(release, change))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("mechanism.encoding.codebook", "sha256:" + "0" * 64),
        ("mechanism.encoding.source", "gaussian"),
        ("mechanism.encoding.codewords", 8),
        ("mechanism.encoding.norm", 2.0),
        ("mechanism.encoding.sensitivity", 0.5),
        ("mechanism.encoding.dimension", 24),
        ("mechanism.encoding.groups", [23]),
        ("mechanism.encoding.group_noise", [1.0, 1.0]),
        ("mechanism.encoding.microbatch", 2),
        ("mechanism.encoding.slots", 4),
        ("mechanism.encoding.denoising", "none"),
        ("mechanism.encoding", None),
        ("mechanism.phases", None),
        ("mechanism.phases.0.multiplier", 3.0),
        ("mechanism.phases.0.family", "sech"),
        ("mechanism.phases.1.shape", 8.0),
        ("mechanism.phases.1.steps", 21),
        ("mechanism.noise.scale", 5.0),
        ("mechanism.noise.standard_deviation", None),
        ("events.run_length.0.family", "sech"),
        ("events.run_length.0.noise_multiplier", 9.0),
        ("events.run_length.0.exchanged", True),
        ("events.run_length.0.codebook", "sha256:" + "0" * 64),
        ("events.run_length.0.shifts.0.0", 0.0),
        ("events.run_length.1.shape", None),
        ("provenance.recipe.attachments", []),
        ("provenance.recipe.attachments.0.name", "other"),
        ("provenance.recipe.attachments.0.text", "{}"),
    ],
)
def test_what_is_changed_is_found(release: Path, path: str, value: Any) -> None:
    def change(predicate: dict[str, Any]) -> None:
        *steps, last = path.split(".")
        place: Any = predicate
        for step in steps:
            place = place[int(step) if isinstance(place, list) else step]
        place[int(last) if isinstance(place, list) else last] = value

    assert list_failures(release, change)


def test_a_summary_of_the_codebook_is_one_text(release: Path) -> None:
    for number in (-5, 0, 7.0, "7", True, 10**9):

        def change(predicate: dict[str, Any], number: Any = number) -> None:
            attached = predicate["provenance"]["recipe"]["attachments"][0]
            attached["text"] = canonical_json({**json.loads(attached["text"]), "words": number})

        copy = release.with_name(f"copy {number!r}")
        shutil.copytree(release, copy)
        assert any("R260" in failure for failure in list_failures(copy, change))


def test_attachments_that_nothing_reads_are_refused(release: Path) -> None:
    def change(predicate: dict[str, Any]) -> None:
        attachments = predicate["provenance"]["recipe"]["attachments"]
        attachments.append(attachments[0])

    assert any("attachments" in failure for failure in list_failures(release, change))


def test_a_run_that_crashed_in_its_dear_phase_and_met_its_budget_verifies(
    coded_plan: Plan, tmp_path: Path, facts_of: Callable[..., Any], put_release: Any
) -> None:
    """What a crash reserved leaves room for no event of the first phase, but for one of the second."""
    budget = f"budget.epsilon={1.2 * coded_plan.guarantee.epsilon:.3g}"
    tight = plan(read_source(replace(coded_plan.source, overrides=(budget,))))
    dear, cheap = (charge.event for charge in tight.events)
    terms = (tight.budget.delta, tight.budget.neighbouring, tight.budget.accountant)
    lost_steps = calibrate.calibrate_count(dear, tight.budget.epsilon, *terms)
    assert accountants.epsilon([Charge(dear, lost_steps), Charge(cheap, 1)], *terms) < 0.999 * tight.budget.epsilon
    path = tmp_path / "run" / "private" / "ledger.jsonl"
    path.parent.mkdir(parents=True)
    for _ in range(lost_steps):
        writer = LedgerWriter(path, tight.digest)
        writer.reserve(dear, 1)
        writer.abandon()
    writer = LedgerWriter(path, tight.digest)
    writer.close("budget")

    facts = facts_of(mechanism="encoded", score=None, steps_lost=lost_steps)
    put_release(tmp_path / "run" / "release", tight, read(path), facts)
    assert verify(tmp_path / "run" / "release").statement.predicate.budget.stop_reason == "budget"
