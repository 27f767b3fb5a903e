"""A run of PATE as a user has it: from records or votes to a student and a certificate."""

from __future__ import annotations

import ast
import csv
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import dprecipe
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.data.load import load
from dprecipe.data.records import Records
from dprecipe.data.units import Identities
from dprecipe.faults import CertificateInvalid, DataFault, RunFailed, UsageFault
from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold
from dprecipe.mechanisms.pate.theory.filter import sum_filter
from dprecipe.mechanisms.pate.train import fitted, program, student
from dprecipe.mechanisms.pate.train import run as train
from dprecipe.models.load import load as load_released
from dprecipe.privacy.ledger import read
from dprecipe.release.untrusted import to_bytes
from dprecipe.training.run import attempt
from dprecipe.training.run.start import rehearse

Planned = Callable[..., Plan]
INSECURE = "runtime.insecure={seed: 3}"


def predicate(release: Path) -> Any:
    return json.loads((release / "certificate.json").read_text("utf-8"))["predicate"]


def events(plan: Plan, out: Path) -> dict[str, int]:
    actual: dict[str, int] = {}
    for charge in read(out / "private" / "ledger.jsonl").charges:
        actual[charge.event.kind] = actual.get(charge.event.kind, 0) + charge.count
    return actual


@pytest.mark.slow
def test_a_run_from_records_to_a_verified_release(digits: Planned, tmp_path: Path) -> None:
    plan, out = digits("release.report=true", "release.labels=true"), tmp_path / "run"
    done = run(plan, out)
    assert done.stop_reason == "completed"
    assert done.epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-5)
    assert done.score is not None
    assert done.score.accuracy > 0.5
    assert {entry.name for entry in (out / "private").iterdir()} == {
        "answers.jsonl", "checkpoints", "commitment.key", "data-check.json", "data-check.txt", "environment.json",
        "ledger.jsonl", "metrics.csv", "metrics.json", "overrides.json", "partition.key", "report.html", "teachers",
        "timing.json",
    }  # fmt: skip
    assert {entry.name for entry in done.release.iterdir()} == {
        "model.safetensors", "model.json", "labels.csv", "certificate.json", "report.html", "card.md", "metrics.json",
    }  # fmt: skip
    counted, answered = events(plan, out), int(done.remarks[0].split()[1])
    assert done.remarks == (f"answered {answered} of 100 queries",)
    assert counted == {"noisy_threshold": 100, "noisy_max": answered, "filter_rest": 1}
    assert 10 < answered < 100
    with (done.release / "labels.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == answered
    assert all(1000 <= int(row["record"]) < 1100 and 0 <= int(row["label"]) < 10 for row in rows)
    assert {check["id"] for check in predicate(done.release)["checks"]} == {
        "noise_scale",
        "parts_disjoint",
        "vote_sensitivity",
    }
    dprecipe.verify(done.release)
    model = load_released(done.release)
    assert plan.data.test is not None
    held_out = load(plan.data.test, plan.data, tmp_path, "test")
    raw = held_out.features.reshape(-1, 8, 8)
    assert (model.predict(raw) == held_out.labels).mean() == pytest.approx(done.score.accuracy, abs=1e-9)


@pytest.mark.parametrize(
    "aggregator",
    [
        "{kind: lnmax, noise: {family: laplace, multiplier: 12}}",
        pytest.param("{kind: gnmax, noise: {family: gaussian, multiplier: 8}}", marks=pytest.mark.slow),
        pytest.param(
            "{kind: interactive_gnmax, noise: {family: gaussian, multiplier: 8}, selection: {threshold: 15, "
            "noise: {family: gaussian, multiplier: 16}}, interaction: {rounds: 3, threshold: 5, confidence: 0.8}}",
            marks=pytest.mark.slow,
        ),
        "{kind: interactive_gnmax, noise: {family: gaussian, multiplier: 8}, selection: {threshold: 15, "
        "noise: {family: gaussian, multiplier: 16}}, interaction: {confidence: 0.8, rounds: [{queries: 33}, "
        "{queries: 34, threshold: 5, selection_multiplier: 20, multiplier: 10}, {threshold: 3}]}}",
    ],
)
def test_every_aggregator_runs_and_verifies(digits: Planned, tmp_path: Path, aggregator: str) -> None:
    plan = digits(f"mechanism.aggregator={aggregator}", "release.labels=true")
    done = run(plan, tmp_path / "run")
    assert done.stop_reason == "completed"
    counted = events(plan, tmp_path / "run")
    assert counted["noisy_max"] == (100 if "interactive" not in aggregator else int(done.remarks[0].split()[1]))
    with (done.release / "labels.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == counted["noisy_max"]  # a student's own labels are not the teachers'
    history = json.loads((done.release / "metrics.json").read_text("utf-8"))["history"]
    assert [point["step"] for point in history] == ([33, 67, 100] if "interactive" in aggregator else [100])
    dprecipe.verify(done.release)


def stored_votes(folder: Path, counts: Any) -> Path:
    folder.mkdir()
    generator = np.random.default_rng(0)
    np.savez(folder / "public.npz", features=generator.random((len(counts), 4), dtype=np.float32))
    np.savez(folder / "votes.npz", votes=counts)
    return folder


def test_votes_from_a_file_and_the_private_records_are_never_opened(votes_plan: Planned, tmp_path: Path) -> None:
    counts = np.random.default_rng(0).multinomial(5, [0.5, 0.3, 0.2], size=60)
    root = stored_votes(tmp_path / "data", counts)
    assert not (root / "train.npz").exists()
    done = run(votes_plan("confident", 50), tmp_path / "run", data_root=root)
    checks = {check["id"] for check in predicate(done.release)["checks"]}
    assert checks == {"noise_scale", "vote_counts"}
    assert not (tmp_path / "run" / "private" / "teachers").exists()
    dprecipe.verify(done.release)


def test_votes_that_do_not_add_up_are_known_before_a_folder_is_made(votes_plan: Planned, tmp_path: Path) -> None:
    counts = np.full((60, 3), [2, 2, 1])
    counts[7] = [5, 5, 5]
    root = stored_votes(tmp_path / "data", counts)
    with pytest.raises(DataFault, match="a row does not have the votes of 5 teachers"):
        run(votes_plan("gnmax", 50), tmp_path / "run", data_root=root)
    with pytest.raises(DataFault, match="holds 60 different records, the plan puts 61"):
        run(votes_plan("gnmax", 61), tmp_path / "run", data_root=root)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_record_that_comes_twice_is_asked_once(votes_plan: Planned, tmp_path: Path) -> None:
    counts = np.tile([[5, 0, 0], [0, 5, 0], [0, 0, 5]], (10, 1))
    root = stored_votes(tmp_path / "data", counts)
    features = np.repeat(np.random.default_rng(0).random((10, 4), dtype=np.float32), 3, axis=0)
    np.savez(root / "public.npz", features=features)
    overrides = ("mechanism.aggregator.noise.multiplier=0.2", "release.labels=true", "budget.epsilon=auto")
    done = run(votes_plan("gnmax", 10, *overrides), tmp_path / "run", data_root=root)
    assert events(done.plan, tmp_path / "run") == {"noisy_max": 10}
    with (done.release / "labels.csv").open(encoding="utf-8") as file:
        rows = [(int(row["record"]), int(row["label"])) for row in csv.DictReader(file)]
    assert rows == [(record, 0) for record in range(0, 30, 3)]  # of each three, the first was asked


def of_digits(seed: int = 0, count: int = 1000) -> Records:
    generator = np.random.default_rng(seed)
    features = generator.random((count, 1, 8, 8), dtype=np.float32)
    return Records(features, generator.integers(10, size=count))


@pytest.mark.slow
def test_objects_from_python(digits: Planned, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 10))
    training = "{steps: 20, batch_size: 16, optimizer: {kind: adam, lr: 0.01}}"
    plan = digits("model={kind: mlp, hidden: [8]}", f"training={training}")
    done = run(plan, tmp_path / "run", model=module, train=of_digits(), public=of_digits(1, 200), test=of_digits(2, 50))
    provenance = predicate(done.release)["provenance"]
    assert (provenance["model"], provenance["data"]) == ("python", "python")
    assert predicate(done.release)["data_access"]["evaluation"]["released"] is None
    dprecipe.verify(done.release)
    assert load_released(done.release, module).file.model is None


def test_records_from_python_have_to_fit(digits: Planned, votes_plan: Planned, tmp_path: Path) -> None:
    with pytest.raises(DataFault, match=r"data\.size"):
        run(digits(), tmp_path / "run", train=of_digits(0, 999))
    with pytest.raises(DataFault, match="shape"):
        run(digits(), tmp_path / "run", public=Records(np.zeros((200, 9), np.float32), np.zeros(200, np.int64)))
    noise = "{family: gaussian, multiplier: 2}"
    dpsgd = f"{{kind: dpsgd, clip: {{norm: 1}}, noise: {noise}, sampling: {{scheme: poisson, batch_size: 64}}}}"
    training = "{steps: 3, optimizer: {kind: sgd, lr: 1}}"
    plan = digits(f"mechanism={dpsgd}", f"training={training}", "data.public=null")
    with pytest.raises(UsageFault, match="dpsgd uses no public records"):
        run(plan, tmp_path / "run", public=of_digits())
    with pytest.raises(UsageFault, match="no training records are read"):
        run(votes_plan("gnmax", 50), tmp_path / "run", train=of_digits())
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_records_are_dealt_by_their_names(digits: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dealt: list[Any] = []
    monkeypatch.setattr(
        program.DealtParts,
        "of",
        staticmethod(lambda parts, teachers: (dealt.append(parts), REAL_PARTS(parts, teachers))[1]),
    )
    records = of_digits()
    names = [f"name {number // 2}" for number in range(1000)]
    named = Records(records.features, records.labels, None, (), Identities.named(names))
    for number, given in enumerate((records, named)):
        run(digits(INSECURE), tmp_path / str(number), train=given)
    by_number, by_name = [parts for parts in dealt if len(parts) == 1000]
    assert (by_name[::2] == by_name[1::2]).all()
    assert not (by_number[::2] == by_number[1::2]).all()


REAL_PARTS = program.DealtParts.of


def test_records_of_a_unit_stay_together(tmp_path: Path, votes_plan: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    patients = generator.integers(100, size=600)
    np.savez(
        tmp_path / "train.npz",
        features=generator.random((600, 4), dtype=np.float32),
        labels=generator.integers(3, size=600),
        patient=patients,
    )
    np.savez(tmp_path / "public.npz", features=generator.random((20, 4), dtype=np.float32))
    seen: list[Any] = []

    def dealt_to(self: Any, key: bytes) -> Any:
        seen.append((self, DEALT(self, key)))
        return seen[-1][1]

    monkeypatch.setattr(program.Trained, "dealt", dealt_to)
    plan = votes_plan(
        "gnmax", 20, f"data.size={len(np.unique(patients))}", "data.unit={column: patient, max_records: 50}",
        "mechanism.teachers={count: 5, votes: null, model: {kind: logistic_regression}}", "budget.delta=1e-4",
    )  # fmt: skip
    done = run(plan, tmp_path / "run", data_root=tmp_path)
    trained, dealt = seen[0]
    assert all(len(np.unique(dealt[trained.records.units == unit])) == 1 for unit in range(plan.data.size))
    assert len(np.unique(dealt)) == 5
    assert "patient" in dprecipe.verify(done.release).claim.sentence


DEALT = program.Trained.dealt


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (Identities.numbered(60), "several names"),
        (Identities.named([str(number // 4) for number in range(60)]), "several names"),
        (Identities.named([str(number // 3) for number in range(57)]), "not every training record has a name"),
        (None, "have no names"),
    ],
)
def test_a_unit_whose_records_have_several_names_is_refused(
    names: Identities | None, why: str, votes_plan: Planned, tmp_path: Path
) -> None:
    """Records from Python: dealt by other names than their units', a unit would move the votes of several teachers."""
    np.savez(tmp_path / "public.npz", features=np.random.default_rng(1).random((20, 4), dtype=np.float32))
    plan = votes_plan(
        "gnmax", 20, "data.size=20", "data.unit={column: patient, max_records: 3}", "budget.delta=1e-3",
        "mechanism.teachers={count: 2, votes: null, model: {kind: logistic_regression}}",
    )  # fmt: skip
    generator = np.random.default_rng(0)
    features, labels = generator.random((60, 4), dtype=np.float32), generator.integers(3, size=60)
    given = Records(features, labels, np.arange(60) // 3, (), names)
    with pytest.raises(DataFault, match=why):
        run(plan, tmp_path / "run", data_root=tmp_path, train=given)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_student_is_made_of_public_records_and_labels_alone(
    digits: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other private records and the same votes: the same student, bit by bit, and the same released labels."""
    training = "{steps: 30, batch_size: 16, optimizer: {kind: adam, lr: 0.01}, semi_supervised: {kind: vat}}"
    plan = digits(INSECURE, "model={kind: mlp, hidden: [8]}", f"training={training}", "release.labels=true")
    kept: list[Any] = []
    real = program.Trained.counts
    monkeypatch.setattr(program.Trained, "counts", lambda *a: kept.append(real(*a)) or kept[0])
    one = run(plan, tmp_path / "one")
    two = run(plan, tmp_path / "two", train=of_digits(7))
    assert not np.array_equal(kept[0], kept[1])
    for name in ("model.safetensors", "labels.csv"):
        assert (one.release / name).read_bytes() == (two.release / name).read_bytes()


@pytest.mark.slow
def test_labels_of_public_records_are_never_read(digits: Planned, tmp_path: Path) -> None:
    one = of_digits(5, 200)
    other = Records(one.features, (one.labels + 1) % 10)
    weights = []
    for number, public in enumerate((one, other)):
        done = run(digits(INSECURE), tmp_path / str(number), public=public)
        weights.append((done.release / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


PUBLIC_ALONE = {
    *("dprecipe.data.facts", "dprecipe.data.preprocess", "dprecipe.data.augment", "dprecipe.faults"),
    *("dprecipe.models.build", "dprecipe.models.schema", "dprecipe.models.zoo.forest", "dprecipe.contract.plan"),
    *(
        "dprecipe.language.training",
        "dprecipe.training.program.losses",
        "dprecipe.training.program.moves",
        "dprecipe.training.steps.optimise",
    ),
    *("dprecipe.progress", "dprecipe.models.modules.draws", "dprecipe.mechanisms.pate.aggregators"),
    *("dprecipe.libraries", "dprecipe.models.modules.inspection"),
    *("dprecipe.training.steps.step_failures", "dprecipe.training.probe.place"),
    *(
        "dprecipe.mechanisms.pate.train.fitted",
        "dprecipe.mechanisms.pate.train.student",
    ),
}
"""Modules that read no record, no vote and no file of a run."""


@pytest.mark.parametrize("module", [student, fitted])
def test_the_students_modules_know_no_way_to_private_records(module: Any) -> None:
    tree = ast.parse(inspect.getsource(module))
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module is not None}
    imported |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    ours = {name for name in imported if name.startswith("dprecipe")}
    assert ours <= PUBLIC_ALONE
    assert not imported & {"pathlib", "os", "io", "json", "pickle", "subprocess"}
    assert "open" not in {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def test_what_the_votes_cost_stays_in_private(votes_plan: Planned, tmp_path: Path, capsys: Any) -> None:
    counts = np.random.default_rng(0).multinomial(5, [0.9, 0.05, 0.05], size=40)
    root = stored_votes(tmp_path / "data", counts)
    plan = votes_plan("confident", 40, "mechanism.analysis=data_dependent")
    done = run(plan, tmp_path / "run", data_root=root)
    private = tmp_path / "run" / "private"
    analysis = json.loads((private / "analysis.json").read_text("utf-8"))
    assert analysis["queries"]["planned"] == 40
    assert (private / "consensus.svg").read_text("utf-8").startswith("<svg")
    assert "never publish" in done.remarks[1]
    figures = [f"{analysis['costs'][kind]['improved']['value']:.6g}" for kind in ("expected_cost", "bound", "exact")]
    figures += [f"{analysis['costs']['expected_answers']:.6g}"]
    for file in done.release.iterdir():
        content = file.read_text("utf-8", errors="ignore")
        assert not any(figure in content for figure in figures), file.name
    assert not any(figure in "".join(capsys.readouterr()) for figure in figures)
    assert {entry.name for entry in done.release.iterdir()} & {"analysis.json", "consensus.svg"} == set()


def test_a_list_that_answers_decide_has_a_cost_of_what_was_charged(votes_plan: Planned, tmp_path: Path) -> None:
    root = stored_votes(tmp_path / "data", np.full((40, 3), [4, 1, 0]))
    run(votes_plan("interactive", 40, "mechanism.analysis=data_dependent"), tmp_path / "run", data_root=root)
    analysis = json.loads((tmp_path / "run" / "private" / "analysis.json").read_text("utf-8"))
    assert analysis["list"] == "depends on earlier answers"
    assert analysis["costs"]["realised"] > 0


SANITIZE = (
    "mechanism.analysis=data_dependent",
    "mechanism.sanitize={method: smooth_sensitivity, order: 4, beta: 0.05, multiplier: 20, scale_multiplier: 20}",
    "mechanism.teachers.count=500",
)


def test_a_sanitised_cost_is_paid_drawn_once_and_published(
    votes_plan: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = stored_votes(tmp_path / "data", np.full((40, 3), [450, 40, 10]))
    plan, out = votes_plan("confident", 40, *SANITIZE), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(attempt, "publish", lambda *_: (_ for _ in ()).throw(RunFailed("the disk is full")))
        with pytest.raises(RunFailed):
            run(plan, out, data_root=root)
    published = json.loads((out / "private" / "sanitised.json").read_text("utf-8"))
    assert all(published[name] == float(f"{published[name]:.6g}") for name in ("value", "log_sensitivity"))
    done = run(plan, out, data_root=root, resume=True)
    block = predicate(done.release)["mechanism"]["data_dependent"]
    assert (block["noisy_cost"], block["noisy_log_sensitivity"]) == (published["value"], published["log_sensitivity"])
    assert events(plan, out)["sanitised_cost"] == 1
    assert events(plan, out)["noisy_threshold"] == 40
    dprecipe.verify(done.release)


def test_a_sanitised_cost_that_a_crash_took_is_paid_and_not_drawn_again(
    votes_plan: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = stored_votes(tmp_path / "data", np.full((40, 3), [450, 40, 10]))
    plan, out = votes_plan("confident", 40, *SANITIZE), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(train.analysis, "_save", lambda *_: (_ for _ in ()).throw(RunFailed("the disk is full")))
        with pytest.raises(RunFailed):
            run(plan, out, data_root=root)
    done = run(plan, out, data_root=root, resume=True)
    assert predicate(done.release)["mechanism"]["data_dependent"] is None
    assert events(plan, out)["sanitised_cost"] == 1
    assert done.epsilon <= plan.budget.epsilon
    dprecipe.verify(done.release)


def test_scores_on_private_records_never_leave_private(digits: Planned, tmp_path: Path) -> None:
    done = run(digits("data.test.access=private_internal"), tmp_path / "run")
    assert done.score is not None
    accuracy = f"{done.score.accuracy:.6g}"
    assert accuracy in (tmp_path / "run" / "private" / "metrics.csv").read_text("utf-8")
    assert not any(accuracy.encode() in file.read_bytes() for file in done.release.iterdir())


NO_ANSWER = (
    "mechanism.aggregator.selection.threshold=4.9", "mechanism.aggregator.selection.noise.multiplier=0.1",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("published", [(), SANITIZE[:2]], ids=["", "cost"])
def test_no_answer_ends_in_a_release_without_a_model(
    votes_plan: Planned, tmp_path: Path, published: tuple[str, ...]
) -> None:
    root = stored_votes(tmp_path / "data", np.full((8, 3), [2, 2, 1]))
    plan = votes_plan("confident", 8, *NO_ANSWER, *published)
    done = run(plan, tmp_path / "run", data_root=root)
    assert (done.stop_reason, done.has_model) == ("no_model", False)
    assert "no query was answered" in done.remarks[0]
    assert events(plan, tmp_path / "run") == {"noisy_threshold": 8, "filter_rest": 1}
    stated = predicate(done.release)
    assert (stated["tensors"], stated["mechanism"]["voting"]["answers_charged"]) == ([], 0)
    dprecipe.verify(done.release)
    with pytest.raises(UsageFault):
        run(plan, tmp_path / "run", data_root=root, resume=True)


@pytest.mark.slow
def test_events_of_a_run_without_a_model_still_reach_the_limit(votes_plan: Planned, tmp_path: Path) -> None:
    root = stored_votes(tmp_path / "data", np.full((8, 3), [2, 2, 1]))
    done = run(votes_plan("confident", 8, *NO_ANSWER), tmp_path / "run", data_root=root)
    file = done.release / "certificate.json"
    content = json.loads(file.read_text("utf-8"))
    block = content["predicate"]["events"]
    del block["run_length"][-1]  # what the filter had left
    block["total"] -= 1
    file.write_bytes(to_bytes(content))
    with pytest.raises(CertificateInvalid, match="less than the filter's limit"):
        dprecipe.verify(done.release)


def test_a_student_that_diverges_ends_in_a_release_without_a_model(digits: Planned, tmp_path: Path) -> None:
    plan = digits(
        "training={steps: 4, batch_size: 16, optimizer: {kind: sgd, lr: 1e20, weight_decay: 1e30}}",
        "mechanism.queries.max=20", "mechanism.aggregator.selection.threshold=1",
    )  # fmt: skip
    done = run(plan, tmp_path / "run")
    assert not done.has_model
    assert "not finite" in done.remarks[0]
    dprecipe.verify(done.release)


def test_a_rehearsal_spends_nothing_and_leaves_nothing(
    digits: Planned, votes_plan: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = digits("data.train={source: idx, images: absent, labels: absent, shape: [8, 8], records: null}")
    files = votes_plan("confident", 50)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    result = rehearse(plan)
    assert "25 of 25 teachers" in result.done
    assert result.seconds is not None
    assert result.seconds > 0
    assert {check.id for check in result.checks} == {"noise_scale", "parts_disjoint", "vote_sensitivity"}
    assert "votes come from a file" in rehearse(files).done
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_the_filters_limit_is_the_claim_however_little_was_answered(votes_plan: Planned, tmp_path: Path) -> None:
    for name, row in (("many", [5, 0, 0]), ("few", [2, 2, 1])):
        root = stored_votes(tmp_path / name, np.full((60, 3), row))
        plan = votes_plan("confident", 60, "mechanism.aggregator.selection.noise.multiplier=2")
        done = run(plan, tmp_path / f"run-{name}", data_root=root)
        charges = read(tmp_path / f"run-{name}" / "private" / "ledger.jsonl").charges
        assert sum_filter(charges) == pytest.approx(plan.mechanism_plan.filter_limit, rel=1e-9)
        assert done.epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-5)
        assert sum(c.count for c in charges if isinstance(c.event, NoisyThreshold)) == 60
        answered = sum(c.count for c in charges if isinstance(c.event, NoisyMax))
        assert answered > 30 if name == "many" else answered < 30
