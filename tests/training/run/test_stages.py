"""Paid steps of a run: reserved before they are drawn, drawn once, kept, and the same for every record that follows."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dprecipe
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.data.paid.constants import CountConstants, StageConstants, dump_constants, parse_constants
from dprecipe.data.preprocess import prepare_features
from dprecipe.data.records import Records
from dprecipe.faults import CertificateInvalid, DataFault, Interrupted, RunFailed, UsageFault
from dprecipe.models.load import load
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge, charge_from_json, count_events, run_lengths
from dprecipe.privacy.ledger import GENESIS, LedgerWriter, read
from dprecipe.recipe.read import read_text
from dprecipe.release.stages import digest_constants
from dprecipe.release.untrusted import sha256_of, to_bytes
from dprecipe.training.program import gather
from dprecipe.training.publish.provenance import RunProvenance, as_bytes, private_of
from dprecipe.training.publish.publish import PublishedRun
from dprecipe.training.run import stages
from dprecipe.training.run.attempt import Attempt, open_attempt
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.runner import EndedWithoutModel, Start
from dprecipe.training.run.start import rehearse

RECIPE = """\
recipe: dprecipe/v1
name: table
data:
  train:
    source: csv
    path: people.csv
    columns:
      age: {kind: numeric, min: 0, max: 200}
      gain: {kind: numeric, min: 0, max: 1000000}
      hours: {kind: numeric, min: 0, max: 1000}
      city: {kind: text}
    label: {column: rich, classes: 2}
  test: {source: csv, path: test.csv, access: public, columns: {age: {kind: numeric, min: 0, max: 200},
    gain: {kind: numeric, min: 0, max: 1000000}, hours: {kind: numeric, min: 0, max: 1000}, city: {kind: text}},
    label: {column: rich, classes: 2}}
  size: 300
  unit: {column: person, max_records: 4}
  preprocess:
    - dp_categories: {columns: [city], width: 3, share: 0.1}
    - dp_quantiles: {columns: [age, gain, hours], share: 0.1}
    - dp_standardize: {columns: [age, gain, hours], share: 0.1}
    - dp_pca: {components: 4, row_norm: 3.0, share: 0.1}
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 60}
budget: {epsilon: 4.0, delta: 1e-4}
training:
  steps: 30
  optimizer: {kind: sgd, lr: 0.5}
"""
NUMBERS = (
    RECIPE.replace("      city: {kind: text}\n", "")
    .replace(", city: {kind: text}", "")
    .replace("    - dp_categories: {columns: [city], width: 3, share: 0.1}\n", "")
    .replace("components: 4", "components: 2")
)
"""The same without items, whose account takes seconds."""
CITIES = ("Bern", "Rom", "Oslo")
START = Start(datetime.now(UTC))
OURS = RunProvenance((), torch.device("cpu"))


def write_table(path: Path, people: int, seed: int) -> None:
    """Up to six rows for each person, of which four count."""
    rng = random.Random(seed)
    lines = ["person,age,gain,hours,city,rich"]
    for person in range(people):
        for _ in range(rng.randrange(1, 7)):
            rich = rng.random() < 0.5
            age, gain = rng.gauss(50 if rich else 35, 8), rng.expovariate(1 / (9000 if rich else 2000))
            lines.append(f"p{person},{age:.1f},{gain:.0f},{rng.gauss(40, 9):.1f},{rng.choice(CITIES)},{int(rich)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_table(root / "people.csv", 300, 1)
    write_table(root / "test.csv", 40, 2)
    return root


@pytest.fixture(scope="module")
def plan(root: Path) -> Plan:
    return plan_of(root)


def plan_of(root: Path, *overrides: str, text: str = RECIPE) -> Plan:
    return make_plan(read_text(text, str(root / "table.yaml"), overrides))


@pytest.fixture(scope="module")
def train(plan: Plan, root: Path) -> Records:
    records = gather.gather_records(plan, root).prepared("train")
    assert isinstance(records, Records)
    return records


@pytest.fixture
def folder(plan: Plan, tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", plan)


Opened = Callable[..., Attempt]


@pytest.fixture
def attempt(plan: Plan, folder: RunFolder, train: Records) -> Opened:
    """One attempt, which does nothing but its paid steps."""

    def attempt_once(plan: Plan = plan, records: Records | None = train) -> Attempt:
        private = {"commitment": private_of(train)}
        with open_attempt(plan, folder, START, OURS, private, records=records) as opened:
            return opened

    return attempt_once


class Draws:
    """Counts the events that are drawn, by themselves, before the draw."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events = 0
        self.dies_before: int | None = None
        self._honest = stages.release_stage
        monkeypatch.setattr(stages, "release_stage", self.release)

    def release(self, *args: Any) -> StageConstants:
        charges: tuple[Charge, ...] = args[2]
        if self.dies_before == len(args[3]):
            raise Killed
        self.events += count_events(charges)
        return self._honest(*args)


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> Draws:
    return Draws(monkeypatch)


def test_a_stage_is_reserved_before_it_is_drawn_and_read_by_a_later_attempt(
    plan: Plan, attempt: Opened, folder: RunFolder, draws: Draws
) -> None:
    first = attempt()
    assert [constants.kind for constants in first.constants] == [stage.kind for stage in plan.stages]
    assert first.charged == plan.stage_charges == read(folder.ledger).settled
    assert draws.events == count_events(plan.stage_charges)
    again = attempt()
    assert [*map(dump_constants, again.constants)] == [*map(dump_constants, first.constants)]
    assert again.charged == plan.stage_charges
    assert draws.events == count_events(plan.stage_charges)
    assert sorted(path.name for path in folder.stages.iterdir()) == ["0.json", "1.json", "2.json", "3.json"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder.stages, *folder.stages.iterdir()))


def test_the_ledger_holds_a_stage_before_its_noise_is_drawn(
    plan: Plan, attempt: Opened, folder: RunFolder, draws: Draws, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Charge, ...]] = []
    honest = stages.release_stage

    def look(*args: Any) -> StageConstants:
        seen.append(read(folder.ledger).charges)
        return honest(*args)

    monkeypatch.setattr(stages, "release_stage", look)
    attempt()
    expected = [run_lengths(charge for stage in plan.stages[: n + 1] for charge in stage.charges) for n in range(4)]
    assert seen == expected


@pytest.mark.parametrize("number", range(4))
def test_killed_between_reservation_and_result_a_stage_is_charged_twice(
    plan: Plan, attempt: Opened, folder: RunFolder, draws: Draws, number: int
) -> None:
    draws.dies_before = number
    with pytest.raises(Killed):
        attempt()
    draws.dies_before = None
    done = attempt()
    assert len(done.constants) == 4
    ledger = read(folder.ledger)
    lost = count_events(plan.stages[number].charges)
    assert count_events(ledger.unsettled) == lost
    assert count_events(ledger.charges) == count_events(plan.stage_charges) + lost >= draws.events
    assert done.charged == ledger.charges


@pytest.mark.parametrize("number", [0, 1, 3])
def test_killed_between_result_and_settlement_a_stage_is_charged_once_and_never_drawn_again(
    plan: Plan, attempt: Opened, folder: RunFolder, draws: Draws, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    settled = 0

    def die(self: LedgerWriter, charges: object) -> None:
        nonlocal settled
        if settled == number:
            raise Killed
        settled += 1
        honest(self, charges)  # type: ignore[arg-type]

    honest = LedgerWriter.settle_all
    with monkeypatch.context() as patch:
        patch.setattr(LedgerWriter, "settle_all", die)
        with pytest.raises(Killed):
            attempt()
    kept = json.loads((folder.stages / f"{plan.stages[number].step}.json").read_text())["constants"]
    done = attempt()
    assert dump_constants(done.constants[number]) == kept
    assert draws.events == count_events(plan.stage_charges) == count_events(read(folder.ledger).charges)


def test_what_a_second_draw_would_overspend_is_not_drawn_and_ends_the_run(
    root: Path, train: Records, tmp_path: Path, draws: Draws, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid = "data.preprocess=[{dp_pca: {components: 2, row_norm: 3.0, share: 0.9}}]"
    plan = plan_of(root, paid, text=NUMBERS)
    records = replace(train, features=train.features[:, :3], texts={}, pending=plan.data.preprocess)
    folder = RunFolder.create(tmp_path / "greedy", plan)

    def attempt_once() -> None:
        with open_attempt(plan, folder, START, OURS, {"commitment": private_of(records)}, records=records):
            pass

    draws.dies_before = 0
    with pytest.raises(Killed):
        attempt_once()
    draws.dies_before = None
    monkeypatch.setattr("dprecipe.training.run.attempt.publish_nothing", lambda *_: PublishedRun(1.0, True))
    with pytest.raises(EndedWithoutModel) as caught:
        attempt_once()
    assert "dp_pca was lost" in caught.value.run.remarks[0]
    assert draws.events == 0
    assert count_events(read(folder.ledger).charges) == 1
    assert read(folder.ledger).stop_reason == "no_model"


COUNT = CountConstants(units=300.0)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def change(path: Path, **constants: object) -> None:
    content = json.loads(path.read_text())
    content["constants"] = constants if "kind" in constants else content["constants"] | constants
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: cut(folder / "1.json"), "can't be read"),
        (lambda folder: change(folder / "1.json", low=[-5.0, 0.0, 0.0]), "out of its bounds"),
        (lambda folder: change(folder / "3.json", row_norm=2.0), "another form"),
        (lambda folder: (folder / "2.json").write_bytes((folder / "1.json").read_bytes()), "result of another step"),
        (lambda folder: change(folder / "2.json", **dump_constants(COUNT)), "not what this step releases"),
    ],
    ids=["cut", "bounds", "norm", "exchanged", "of another kind"],
)
def test_a_file_that_is_not_the_runs_own_is_refused(
    attempt: Opened, folder: RunFolder, draws: Draws, spoil: Callable[[Path], object], message: str
) -> None:
    attempt()
    spoil(folder.stages)
    before, spent = draws.events, read(folder.ledger).charges
    with pytest.raises(RunFailed, match=message):
        attempt()
    assert draws.events == before
    assert read(folder.ledger).charges == spent


@pytest.mark.parametrize("number", [0, 3])
def test_a_file_that_is_gone_before_training_is_drawn_again_and_charged_again(
    plan: Plan, attempt: Opened, folder: RunFolder, draws: Draws, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    """And never at the price of one; whoever resumes is told."""
    attempt()
    assert "charged again" not in capsys.readouterr().err
    (folder.stages / f"{plan.stages[number].step}.json").unlink()
    attempt()
    lost = count_events(plan.stages[number].charges)
    assert draws.events == count_events(read(folder.ledger).charges) == count_events(plan.stage_charges) + lost
    said = capsys.readouterr().err
    assert said.count("it was charged before, its result is not there, and it is charged again") == 1


@pytest.mark.parametrize("number", [0, 3])
def test_a_file_that_is_gone_after_training_began_is_asked_for(
    plan: Plan, attempt: Opened, folder: RunFolder, train: Records, draws: Draws, number: int
) -> None:
    """Weights of one draw are not released with the constants of another, and nothing is spent to find that out."""
    opened = attempt()
    kept = folder.stages / f"{plan.stages[number].step}.json"
    content = kept.read_bytes()
    with open_attempt(plan, folder, START, OURS, {"commitment": private_of(train)}, records=train) as training:
        training.ledger.reserve(plan.mechanism_plan.events[0].event, 1)
    kept.unlink()
    before, spent = draws.events, read(folder.ledger).charges
    with pytest.raises(RunFailed, match=f"{kept.name} is gone, and training has begun") as fault:
        attempt()
    assert draws.events == before
    assert read(folder.ledger).charges == spent
    assert fault.value.remedy is not None
    assert "put the file back" in fault.value.remedy
    kept.write_bytes(content)
    assert attempt().constants == opened.constants


def test_results_of_two_steps_of_one_kind_are_not_exchanged(root: Path, tmp_path: Path) -> None:
    steps = (
        "data.preprocess=[{dp_quantiles: {columns: [age], share: 0.1}}, {dp_quantiles: {columns: [age], share: 0.1}}]"
    )
    plan = plan_of(root, steps, text=NUMBERS)
    records = gather.gather_records(plan, root).prepared("train")
    folder = RunFolder.create(tmp_path / "twice", plan)

    def attempt_once() -> None:
        with open_attempt(plan, folder, START, OURS, {"commitment": private_of(records)}, records=records):
            pass

    attempt_once()
    (folder.stages / "1.json").write_bytes((folder.stages / "0.json").read_bytes())
    with pytest.raises(RunFailed, match="the result of another step"):
        attempt_once()


def test_a_result_that_the_ledger_does_not_hold_is_refused(attempt: Opened, folder: RunFolder) -> None:
    attempt()
    folder.ledger.unlink()
    with pytest.raises(RunFailed, match="not of this ledger"):
        attempt()


def test_a_ledger_from_which_a_stage_was_cut_does_not_hold_its_result(
    attempt: Opened, folder: RunFolder, draws: Draws
) -> None:
    """Chained anew, so that no line says that one is missing: the files name the lines that paid for them."""
    attempt()
    lines = [json.loads(line) for line in folder.ledger.read_bytes().splitlines()]
    cheaper = [line for line in lines if "noisy_moments" not in json.dumps(line)]
    assert len(cheaper) == len(lines) - 2
    head, content = GENESIS, b""
    for seq, line in enumerate(cheaper):
        text = json.dumps({**line, "seq": seq, "prev": head}, separators=(",", ":")).encode()
        head, content = "sha256:" + hashlib.sha256(text).hexdigest(), content + text + b"\n"
    folder.ledger.write_bytes(content)
    assert count_events(read(folder.ledger).charges) == count_events(draws_of(cheaper))
    before = draws.events
    with pytest.raises(RunFailed, match="not of this ledger"):
        attempt()
    assert draws.events == before


def draws_of(lines: list[dict[str, Any]]) -> list[Charge]:
    return [charge_from_json(event) for line in lines if line["type"] == "settle" for event in line["events"]]


def test_a_stop_between_stages_keeps_what_was_drawn(
    plan: Plan, attempt: Opened, folder: RunFolder, draws: Draws, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = stages.StageRuns.run
    monkeypatch.setattr(
        stages.StageRuns, "run", lambda self, records, stopped: honest(self, records, lambda: draws.events > 0)
    )
    with pytest.raises(Interrupted, match="1 of 4 paid steps"):
        attempt()
    assert read(folder.ledger).stop_reason == "interrupted"
    monkeypatch.setattr(stages.StageRuns, "run", honest)
    assert len(attempt().constants) == 4
    assert draws.events == count_events(plan.stage_charges)


def test_texts_that_are_encoded_later_are_part_of_the_commitment(train: Records) -> None:
    other = dict(train.texts)
    other["city"] = replace(other["city"], values=("Wien", *other["city"].values[1:]))
    one, another = (
        [bytes(as_bytes(part)) for part in private_of(r) or []] for r in (train, replace(train, texts=other))
    )
    assert len(one) == len(another) > 3
    assert one != another


def test_records_from_python_have_to_wait_for_the_paid_steps(plan: Plan, root: Path, train: Records) -> None:
    gathered = gather.gather_records(plan, root, {"train": train})
    assert gathered.prepared("train") is not None
    done = (np.zeros((300, 4), np.float32), np.zeros(300, np.int64))
    for value in (done, replace(train, pending=())):
        with pytest.raises(UsageFault, match="paid steps have to run first"):
            gather.gather_records(plan, root, {"train": value})


@pytest.fixture(
    scope="module",
    params=[pytest.param(text, marks=pytest.mark.slow) for text in (NUMBERS, RECIPE)],
    ids=["numbers", "items"],
)
def crashed(root: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Plan, Path]:
    """A run whose first attempt was killed in its last paid step but one; complete."""
    plan = plan_of(root, text=request.param)
    out = tmp_path_factory.mktemp("runs") / "crashed"
    with pytest.MonkeyPatch.context() as patch:
        draws = Draws(patch)
        draws.dies_before = len(plan.stages) - 2
        with pytest.raises(Killed):
            run(plan, out, data_root=root)
        draws.dies_before = None
        run(plan, out, data_root=root, resume=True)
    return plan, out


def test_a_run_that_lost_a_stage_stops_within_the_budget_and_verifies(crashed: tuple[Plan, Path]) -> None:
    plan, out = crashed
    ledger = read(out / "private" / "ledger.jsonl")
    assert ledger.attempts == 2
    budget = plan.budget
    spent = accountants.epsilon(ledger.charges, budget.delta, budget.neighbouring, budget.accountant)
    assert spent <= 4.0
    (moments,) = plan.stages[-2].charges
    assert [charge.count for charge in ledger.charges if charge.event == moments.event] == [2]
    assert ledger.stop_reason == "budget"  # the step that was charged twice took the last steps of training
    trained = sum(charge.count for charge in ledger.charges if charge.event == plan.mechanism_plan.events[0].event)
    assert 15 < trained < 30
    verified = dprecipe.verify(out / "release")
    assert verified.claim.epsilon >= spent
    stated = verified.statement.predicate
    assert [(fact.step, fact.kind) for fact in stated.stages or ()] == [(s.step, s.kind) for s in plan.stages]
    assert stated.data_access.preprocessing.status == "covered"
    report = (out / "release" / "report.html").read_text(encoding="utf-8")
    assert "Who spends what" in report


def test_a_release_tells_how_to_prepare_records(crashed: tuple[Plan, Path], root: Path) -> None:
    plan, out = crashed
    released = load(out / "release")
    assert released.file.stages is not None
    files = [out / "private" / "stages" / f"{stage.step}.json" for stage in plan.stages]
    kept = [json.loads(file.read_text())["constants"] for file in files]
    assert [*map(dump_constants, released.file.stages)] == kept
    test = gather.gather_records(plan, root).prepared("test")
    assert isinstance(test, Records)
    table, _ = test.with_all_constants(released.file.stages).batch(slice(None))
    names = ("age", "gain", "hours", "city")
    lines = (root / "test.csv").read_text().splitlines()[1:6]
    rows = [dict(zip(names, line.split(",")[1:5], strict=True)) for line in lines]
    np.testing.assert_array_equal(released.prepare(rows).numpy(), table[:5])
    assert released.predict([{"age": 40, "gain": 3000, "hours": 38, "city": "Wien"}]).shape == (1,)
    with pytest.raises(ValueError, match="has not released"):
        prepare_features(np.zeros((1, len(rows[0])), np.float32), released.file.preprocess)


def spoil_basis(model: dict[str, Any]) -> None:
    model["stages"][-1]["basis"] = model["stages"][-1]["basis"][:-8]


def spoil_features(model: dict[str, Any]) -> None:
    quantiles_of(model)[1]["features"][-1] = 99


def spoil_order(model: dict[str, Any]) -> None:
    model["stages"].reverse()


@pytest.mark.parametrize("spoil", [lambda model: model.pop("stages"), spoil_basis, spoil_features, spoil_order])
def test_a_model_with_constants_of_another_form_is_not_loaded(
    crashed: tuple[Plan, Path], tmp_path: Path, spoil: Callable[[dict[str, Any]], object]
) -> None:
    shutil.copytree(crashed[1] / "release", tmp_path / "release")
    path = tmp_path / "release" / "model.json"
    model = json.loads(path.read_bytes())
    spoil(model)
    path.write_bytes(to_bytes(model))
    with pytest.raises(DataFault, match=r"model\.json"):
        load(tmp_path / "release")


@pytest.mark.slow
def test_a_rehearsal_needs_no_stage(root: Path) -> None:
    rehearsal = rehearse(plan_of(root, text=NUMBERS))
    assert "synthetic" in rehearsal.done


Change = Callable[[dict[str, Any], dict[str, Any]], object]
"""Of a certificate's predicate and of `model.json`."""


def restated(release: Path, change: Change) -> str:
    """What `verify` says of a release whose certificate's predicate and model.json were changed, digests and all."""
    certificate, model = release / "certificate.json", release / "model.json"
    statement, described = json.loads(certificate.read_bytes()), json.loads(model.read_bytes())
    change(statement["predicate"], described)
    model.write_bytes(to_bytes(described))
    for subject in statement["subject"]:
        subject["digest"]["sha256"] = sha256_of(release / subject["name"]).removeprefix("sha256:")
    certificate.write_bytes(to_bytes(statement))
    with pytest.raises(CertificateInvalid) as invalid:
        dprecipe.verify(release)
    return "\n".join(invalid.value.failures)


def quantiles_of(model: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return next((place, released) for place, released in enumerate(model["stages"]) if "high" in released)


def other_constants(predicate: dict[str, Any], model: dict[str, Any]) -> None:
    quantiles_of(model)[1]["high"][0] -= 1e-6


def no_constants(predicate: dict[str, Any], model: dict[str, Any]) -> None:
    del model["stages"]


def too_wide(predicate: dict[str, Any], model: dict[str, Any]) -> None:
    place, released = quantiles_of(model)
    released["high"][0] = 7.0
    predicate["stages"][place]["constants"] = digest_constants(parse_constants(released))


def no_charge(predicate: dict[str, Any], model: dict[str, Any]) -> None:
    events = predicate["events"]
    gone = next(run for run in events["run_length"] if run["kind"] == "noisy_moments")
    events["run_length"].remove(gone)
    events["total"] -= gone["count"]
    predicate["budget"]["events_settled"] = events["total"] - predicate["budget"]["events_reserved_unsettled"]


def less_noise(predicate: dict[str, Any], model: dict[str, Any]) -> None:
    predicate["stages"][1]["noise_multiplier"] *= 2


def cheaper(predicate: dict[str, Any], model: dict[str, Any]) -> None:
    predicate["stages"][1]["epsilon_alone"] /= 2


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (other_constants, "not the constants whose digest"),
        (too_wide, "a quantile out of its bounds"),
        pytest.param(no_constants, "model.json: stages", marks=pytest.mark.slow),
        (no_charge, "events.run_length"),
        pytest.param(less_noise, "stages.1.noise_multiplier", marks=pytest.mark.slow),
        pytest.param(cheaper, "stages.1.epsilon_alone", marks=pytest.mark.slow),
    ],
)
def test_a_release_that_states_other_constants_or_charges_does_not_verify(
    crashed: tuple[Plan, Path],
    tmp_path: Path,
    change: Callable[[dict[str, Any], dict[str, Any]], object],
    expected: str,
) -> None:
    shutil.copytree(crashed[1] / "release", tmp_path / "release")
    assert expected in restated(tmp_path / "release", change)
