"""A run from plan to release, as a user has it, and every way it can be stopped."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import dprecipe
from dprecipe.api import run
from dprecipe.cli.run import run as run_by_command
from dprecipe.contract.plan import Plan
from dprecipe.data.records import Records
from dprecipe.faults import CertificateInvalid, DataFault, Interrupted, PlanRefused, RunFailed, UsageFault
from dprecipe.privacy.events import count_events
from dprecipe.privacy.ledger import read
from dprecipe.training.program.records import Store
from dprecipe.training.run import checkpoint
from dprecipe.training.run.runner import Rehearsal, write_duration
from dprecipe.training.run.start import rehearse
from dprecipe.training.steps import noisy_steps
from dprecipe.training.steps import stepwise as training
from dprecipe.training.steps.stepwise import StepwiseRunner

Small = Callable[..., Plan]


@pytest.mark.slow
def test_a_run_writes_the_folder_of_the_contract_and_it_verifies(small: Small, tmp_path: Path) -> None:
    plan, out = small("release.report=true"), tmp_path / "run"
    done = run(plan, out)
    assert done.stop_reason == "completed"
    assert 0.999 * 3 <= done.epsilon <= 3
    assert {entry.name for entry in out.iterdir()} == {
        "recipe.yaml",
        "resolved.yaml",
        "plan.json",
        "release",
        "private",
    }
    assert {entry.name for entry in (out / "release").iterdir()} == {
        "model.safetensors", "model.json", "certificate.json", "report.html", "card.md", "metrics.json",
    }  # fmt: skip
    assert (out / "recipe.yaml").read_text("utf-8") == plan.source.text
    assert json.loads((out / "plan.json").read_text("utf-8"))["digest"] == plan.digest
    ledger = read(out / "private" / "ledger.jsonl")
    assert (ledger.stop_reason, count_events(ledger.charges), ledger.attempts) == ("completed", 30, 1)
    assert oct((out / "private").stat().st_mode)[-3:] == "700"
    timing = json.loads((out / "private" / "timing.json").read_text("utf-8"))["phases"]
    assert {"read", "prepare", "loop", "certificate", "report", "verify"} <= {each["phase"] for each in timing}
    assert sum(each["seconds"] for each in timing) > 0.9 * done.seconds > 0
    dprecipe.verify(done.release)


@pytest.mark.slow
def test_a_release_is_loaded_back_and_predicts(small: Small, tmp_path: Path) -> None:
    from dprecipe.data.raw import Reading
    from dprecipe.models.load import load

    plan = small("training.steps=60")
    done = run(plan, tmp_path / "run")
    model = load(done.release)
    assert plan.data.test is not None
    raw = plan.data.test.read(Path(), Reading.of(plan.data.test, plan.data, "test"))
    accuracy = (model.predict(np.asarray(raw.features).reshape(-1, 8, 8)) == raw.labels).mean()
    assert done.score is not None
    assert accuracy == pytest.approx(done.score.accuracy, abs=1e-9)


@pytest.mark.slow
def test_an_existing_folder_is_never_overwritten(small: Small, tmp_path: Path) -> None:
    plan, out = small(), tmp_path / "run"
    run(plan, out)
    with pytest.raises(UsageFault, match="never overwritten"):
        run(plan, out)
    with pytest.raises(UsageFault, match="complete"):
        run(plan, out, resume=True)
    with pytest.raises(UsageFault, match="another plan") as other:
        run(small("training.steps=31"), out, resume=True)
    assert "the recipe is recipe.yaml in the folder)" in other.value.remedy
    with pytest.raises(UsageFault, match="no run to resume"):
        run(plan, tmp_path / "elsewhere", resume=True)


@pytest.mark.slow
def test_a_run_of_another_plan_is_told_how_this_one_was_started(small: Small, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(small("training.steps=9", "description=a b"), out)
    with pytest.raises(UsageFault, match="another plan") as other:
        run(small(), out, resume=True)
    assert "recipe.yaml in the folder with --set training.steps=9 --set 'description=a b'" in other.value.remedy


def test_an_empty_folder_may_become_a_run_folder(small: Small, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    done = run(small("training.steps=9"), out)
    assert done.release.is_dir()
    assert oct((out / "private" / "commitment.key").stat().st_mode)[-3:] == "600"
    assert oct((out / "private" / "metrics.csv").stat().st_mode)[-3:] == "600"
    assert oct((out / "private" / "checkpoints" / "last.pt").stat().st_mode)[-3:] == "600"
    history = json.loads((done.release / "metrics.json").read_text("utf-8"))["history"]
    assert {type(point["step"]) for point in history} == {int}


def test_runtime_may_change_between_attempts_of_one_plan(small: Small) -> None:
    assert small("runtime.physical_batch=7").digest == small().digest != small("training.steps=31").digest


@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_closes_the_ledger_and_leaves_a_resumable_run(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals
) -> None:
    plan, out = small(), tmp_path / "run"
    real, calls = training.LedgerWriter.reserve, 0

    def interrupting(self: object, event: object, count: int) -> None:
        nonlocal calls
        calls += 1
        real(self, event, count)  # type: ignore[arg-type]
        if calls == 5:
            os.kill(os.getpid(), sent)

    monkeypatch.setattr(training.LedgerWriter, "reserve", interrupting)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="stopped after") as stopped:
        run(plan, out)
    assert "--resume" in stopped.value.remedy
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert list((out / "private" / "checkpoints").iterdir())
    monkeypatch.undo()
    assert not (out / "release").exists()
    before = read(out / "private" / "ledger.jsonl")
    assert before.stop_reason == "interrupted"
    assert before.unsettled == ()
    assert 0 < count_events(before.charges) < 30
    done = run(plan, out, resume=True)
    after = read(out / "private" / "ledger.jsonl")
    assert (done.stop_reason, count_events(after.charges), after.attempts) == ("completed", 30, 2)
    certificate = json.loads((done.release / "certificate.json").read_text("utf-8"))["predicate"]
    assert certificate["budget"]["resumes"] == 1
    dprecipe.verify(done.release)


@pytest.mark.slow
def test_the_clip_norm_has_an_effect(small: Small, tmp_path: Path) -> None:
    """With one insecure seed the noise of both runs is the same, over their norm."""
    weights = []
    for norm in (1e-4, 1e4):
        plan = small(f"mechanism.clip.norm={norm}", "runtime.insecure={seed: 1}", "training.steps=3")
        run(plan, tmp_path / f"{norm}")
        weights.append(load_file(tmp_path / f"{norm}" / "release" / "model.safetensors"))
    small_norm, large_norm = (torch.cat([each.flatten() for each in one.values()]) for one in weights)
    assert large_norm.norm() > 1e3 * small_norm.norm()


@pytest.mark.slow
def test_a_killed_run_loses_a_fiftieth_of_its_steps_at_most(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where writing takes little of the time: here, whatever it takes."""
    monkeypatch.setattr(checkpoint, "WRITING_SHARE", math.inf)
    plan, out = small("training.steps=200"), tmp_path / "run"
    real, calls = training.Gate.release, 0

    def killed(self: object, ticket: object, clipped: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 139:
            raise RunFailed("killed")  # nothing is saved on this way out
        return real(self, ticket, clipped)  # type: ignore[arg-type]

    monkeypatch.setattr(training.Gate, "release", killed)
    with pytest.raises(RunFailed, match="killed"):
        run(plan, out)
    kept = checkpoint.load(out / "private" / "checkpoints" / "last.pt")
    assert kept is not None
    assert 137 - 200 // checkpoint.PARTS <= kept["steps_done"] <= 138


@pytest.mark.parametrize(
    "scheme",
    [
        "poisson, batch_size: 64",
        *(pytest.param(f"{name}, batch_size: 256", marks=pytest.mark.slow) for name in ("dealt", "permuted")),
    ],
)
def test_t9_t24_a_crash_inside_a_transaction_is_charged_and_never_continued(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    plan, out = small(f"mechanism.sampling={{scheme: {scheme}}}", "runtime.checkpoint_seconds=1e-9"), tmp_path / "run"
    real, calls = training.Gate.release, 0

    def crashing(self: object, ticket: object, clipped: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 10:
            raise RunFailed("a crash between record and step")
        return real(self, ticket, clipped)  # type: ignore[arg-type]

    monkeypatch.setattr(training.Gate, "release", crashing)
    with pytest.raises(RunFailed, match="a crash"):
        run(plan, out)
    monkeypatch.undo()
    lost = read(out / "private" / "ledger.jsonl")
    per_event = {"dealt": 6, "permuted": 5}.get(scheme.partition(",")[0], 1)
    assert count_events(lost.unsettled) >= 1
    assert count_events(lost.charges) * per_event >= 8  # two of the ten were the check of the noise, and the rehearsal
    done = run(plan, out, resume=True)
    ledger = read(out / "private" / "ledger.jsonl")
    assert done.stop_reason == "budget"  # what was lost can't be bought again
    assert count_events(ledger.charges) == count_events(plan.events)
    assert done.epsilon <= 3
    dprecipe.verify(done.release)


@pytest.mark.slow
def test_a_full_disk_while_the_ledger_is_written_loses_nothing(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = small(), tmp_path / "run"
    ledger = out / "private" / "ledger.jsonl"
    real, calls = os.fsync, 0

    def full(file: int) -> None:
        nonlocal calls
        calls += (ledger.exists() and os.fstat(file).st_ino == ledger.stat().st_ino) or 0
        if calls > 4:
            raise OSError(28, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailed, match="No space left on device"):
        run(plan, out)
    monkeypatch.undo()
    assert not (out / "release").exists()
    assert run(plan, out, resume=True).epsilon <= 3


@pytest.mark.slow
def test_t18_scores_on_private_records_never_leave_private(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither in a file nor on the screen, which is the log of somebody's CI."""
    plan = small("data.test.access=private_internal")
    done = run(plan, tmp_path / "run")
    assert done.score is not None
    assert (tmp_path / "run" / "private" / "metrics.csv").exists()
    assert "accuracy" not in "".join(capsys.readouterr())
    assert run_by_command(tmp_path / "small.yaml", ["data.test.access=private_internal"], tmp_path / "again") == 0
    said = capsys.readouterr()
    assert "accuracy" not in said.out + said.err
    assert f"scores on private records are in {tmp_path / 'again' / 'private' / 'metrics.json'}" in said.out
    assert run_by_command(tmp_path / "small.yaml", [], tmp_path / "public") == 0
    said = capsys.readouterr()
    assert "accuracy" in said.out
    assert "% without a model) on " in said.out
    assert f"(more in {tmp_path / 'public' / 'private' / 'metrics.json'})" in said.out
    assert "accuracy" in said.err
    # Rounded, as a number of its own, or in full: the first digits of some other number may be the same.
    loss, accuracy = done.score.loss, done.score.accuracy
    told = re.compile(rf"(?<![\d.])({accuracy:.4f}|{loss:.4f})(?!\d)|{re.escape(str(loss)[:10])}")
    assert all(told.search(text) for text in (f'"loss": {loss}', f"loss {loss:.4f},", f"{accuracy:.4f}"))
    for file in done.release.iterdir():
        assert not told.search(file.read_bytes().decode("latin-1")), file.name
    assert json.loads((done.release / "metrics.json").read_text("utf-8"))["history"] == []


@pytest.mark.slow
def test_fixed_randomness_repeats_a_run_and_does_not_verify(small: Small, tmp_path: Path) -> None:
    plan = small("runtime.insecure={seed: 3}")
    one, two = run(plan, tmp_path / "one"), run(plan, tmp_path / "two")
    assert (one.release / "model.safetensors").read_bytes() == (two.release / "model.safetensors").read_bytes()
    with pytest.raises(CertificateInvalid, match="seed"):
        dprecipe.verify(one.release)


def test_augmentation_and_layers_draw_from_seeds_of_their_own(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one seed, what is drawn for a record's copy would be drawn for another record's layers again."""
    batches: list[int] = []
    layers: list[int] = []
    init, batch, drawing = Store.__init__, Store.batch, noisy_steps.drawing_from

    def augmenting(store: Store, *given: Any) -> None:
        init(store, *given)
        store.augments = True

    monkeypatch.setattr(noisy_steps, "is_draw_free", lambda model: False)
    monkeypatch.setattr(Store, "__init__", augmenting)
    monkeypatch.setattr(Store, "batch", lambda store, units, seed: batches.append(seed) or batch(store, units, seed))
    monkeypatch.setattr(noisy_steps, "drawing_from", lambda seed, device: layers.append(seed) or drawing(seed, device))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    rounded = []
    step = noisy_steps.NoisySteps.take_step
    monkeypatch.setattr(
        noisy_steps.NoisySteps,
        "take_step",
        lambda *given: rounded.append(torch.backends.cudnn.allow_tf32) or step(*given),
    )
    run(small(), tmp_path / "run")
    assert not any(rounded)
    assert (batches.pop(0), layers.pop(0)) == (0, 0)  # of the rehearsal, on synthetic records
    assert len(batches) == len(layers) == 30
    assert len({*batches, *layers}) == 60


@pytest.mark.slow
def test_t12_two_runs_of_one_plan_share_no_noise(small: Small, tmp_path: Path) -> None:
    one, two = run(small(), tmp_path / "one"), run(small(), tmp_path / "two")
    assert (one.release / "model.safetensors").read_bytes() != (two.release / "model.safetensors").read_bytes()


def test_nobody_can_pass_an_argument_to_the_trainer() -> None:
    allowed = {"plan", "out", "model", "train", "public", "test", "data_root", "resume", "accept_lost_steps"}
    allowed |= {"teachers", "cluster"}
    assert set(inspect.signature(run).parameters) == allowed
    assert set(inspect.signature(dprecipe.run).parameters) == allowed


def test_t5_one_process_draws_the_noise(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}
    real = training.lightning.Trainer

    def spying(**arguments: object) -> object:
        seen.update(arguments)
        return real(**arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(training.lightning, "Trainer", spying)
    run(small(), tmp_path / "run")
    assert seen["devices"] == 1
    assert seen["use_distributed_sampler"] is False
    assert not {"gradient_clip_val", "accumulate_grad_batches", "min_steps", "min_epochs"} & set(seen)


def test_a_rehearsal_spends_nothing_and_leaves_nothing(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = small("data.train={source: idx, images: absent, labels: absent, shape: [8, 8]}")
    before = sorted(tmp_path.rglob("*"))
    result = rehearse(plan)
    assert re.match("(5|1[0-9]|20|[6-9]) steps", result.done)
    assert all(check.passed for check in result.checks)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "sampling",
    ["poisson, batch_size: 9", "fixed_size, batch_size: 9", "dealt, batch_size: 10", "permuted, batch_size: 9"],
)
def test_a_rehearsal_takes_all_records_that_a_unit_may_have_and_then_one(
    small: Small, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    real = Store.batch

    def batch(self: Store, units: Any, *given: Any, **named: Any) -> Any:
        made = real(self, units, *given, **named)
        if len(units):
            batches.append(len(made.indices) // len(units))
            assert len(made.indices) == batches[-1] * len(units)
        return made

    monkeypatch.setattr(Store, "batch", batch)
    rehearsal = rehearse(
        small(
            "data={unit: {column: p, max_records: 4}, size: 100, train: {source: npz, path: absent, shape: [8, 8], "
            "classes: 10}, test: null}",
            f"mechanism={{noise: {{multiplier: 1.0}}, sampling: {{scheme: {sampling}}}}}",
            "budget={epsilon: 99, neighbouring: " + ("replace_one}" if "fixed" in sampling else "add_or_remove_one}"),
        )
    )
    assert batches == sorted(batches, reverse=True)
    assert set(batches) == {4, 1}
    assert rehearsal.least_seconds is not None
    assert 0 < rehearsal.least_seconds <= (rehearsal.seconds or 0.0)
    assert re.search("training takes at most about .* if each has one; nothing was spent$", rehearsal.describe())


def test_the_ends_of_a_rehearsal_are_in_order_where_the_machine_was_busier_later(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, real = iter([0.1, 0.3]), StepwiseRunner._time_steps
    monkeypatch.setattr(StepwiseRunner, "_time_steps", lambda *given: (real(*given)[0], next(seconds)))
    rehearsal = rehearse(
        small(
            "data={unit: {column: p, max_records: 4}, size: 100, train: {source: npz, path: absent, shape: [8, 8], "
            "classes: 10}, test: null}",
            "mechanism={noise: {multiplier: 1.0}, sampling: {scheme: poisson, batch_size: 9}}",
            "budget={epsilon: 99}",
        )
    )
    assert rehearsal.least_seconds == rehearsal.seconds


def test_where_each_unit_is_one_record_a_rehearsal_tells_one_time(small: Small) -> None:
    rehearsal = rehearse(small())
    assert rehearsal.least_seconds is None
    said = "; on a machine as busy as now, training takes about [^,]*; nothing was spent$"
    assert re.search(said, rehearsal.describe())


def test_a_rehearsal_that_trains_nothing_tells_no_time() -> None:
    assert Rehearsal("the noise alone", None, ()).describe() == "rehearsed the noise alone; nothing was spent"


def test_a_duration_is_told_in_the_unit_that_a_person_would_choose() -> None:
    read = [write_duration(seconds) for seconds in (0.0123, 4.4, 89, 600, 20_000)]
    assert read == ["0.01 s", "4 s", "89 s", "10 minutes", "5.6 hours"]


@pytest.mark.slow
def test_objects_from_python_take_the_place_of_what_the_recipe_names(small: Small, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    features = generator.random((1438, 1, 8, 8), dtype=np.float32)
    train = Records(features, generator.integers(10, size=1438))
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    done = run(small("training.steps=20"), tmp_path / "run", model=module, train=train)
    provenance = json.loads((done.release / "certificate.json").read_text("utf-8"))["predicate"]["provenance"]
    assert (provenance["model"], provenance["data"]) == ("python", "python")
    dprecipe.verify(done.release)
    with pytest.raises(DataFault, match=r"data\.size"):
        run(small(), tmp_path / "other", train=Records(features[:9], np.zeros(9, dtype=np.int64)))


def test_t3_a_model_that_mixes_records_is_refused_before_anything_is_spent(small: Small, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, affine=False), nn.Linear(64, 10))
    with pytest.raises(PlanRefused, match="BatchNorm"):
        run(small(), tmp_path / "run", model=module)
    assert not (tmp_path / "run").exists()


def test_missing_data_is_known_before_a_folder_is_made(small: Small, tmp_path: Path) -> None:
    plan = small("data.train={source: idx, images: absent, labels: absent, shape: [8, 8]}")
    with pytest.raises(DataFault, match="absent"):
        run(plan, tmp_path / "run", data_root=tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_units_of_many_records_are_protected_as_one(small: Small, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    np.savez(
        tmp_path / "visits.npz",
        features=generator.random((300, 5), dtype=np.float32),
        labels=generator.integers(2, size=300),
        patient=generator.integers(40, size=300),
    )
    source = "{source: npz, path: visits.npz, shape: [5], classes: 2}"
    plan = small(
        f"data={{train: {source}, size: 40, test: null, preprocess: [], unit: {{column: patient, max_records: 4}}}}",
        "mechanism.sampling={scheme: poisson, batch_size: 10}",
    )
    done = run(plan, tmp_path / "run", data_root=tmp_path)
    assert plan.mechanism_plan.sampling_rate == 10 / 40
    assert "patient" in dprecipe.verify(done.release).claim.sentence


def interrupted_run(plan: Plan, out: Path, monkeypatch: pytest.MonkeyPatch, **arguments: object) -> None:
    """A first attempt that stops after a few events."""
    with monkeypatch.context() as patch:
        patch.setattr(training.Gate, "_next", lambda self: None if self.done > 5 else REAL_NEXT(self))
        patch.setattr(training.Gate, "close", lambda self, interrupted=False: REAL_CLOSE(self, True))
        patch.setattr(training.LedgerWriter, "close", lambda self, reason: REAL_LEDGER_CLOSE(self, "interrupted"))
        with pytest.raises(Interrupted):
            run(plan, out, **arguments)  # type: ignore[arg-type]


REAL_NEXT, REAL_CLOSE = training.Gate._next, training.Gate.close
REAL_LEDGER_CLOSE = training.LedgerWriter.close


@pytest.mark.slow
def test_an_attempt_with_fixed_randomness_taints_the_whole_run(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    interrupted_run(small("runtime.insecure={seed: 3}"), out, monkeypatch)
    done = run(small(), out, resume=True)  # runtime is outside the plan's digest
    with pytest.raises(CertificateInvalid, match="seed"):
        dprecipe.verify(done.release)


@pytest.mark.slow
def test_a_run_is_resumed_with_the_records_it_was_started_with(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    one, other = (
        Records(generator.random((1438, 1, 8, 8), dtype=np.float32), generator.integers(10, size=1438))
        for _ in range(2)
    )
    out = tmp_path / "run"
    interrupted_run(small(), out, monkeypatch, train=one)
    with pytest.raises(UsageFault, match="other training records"):
        run(small(), out, train=other, resume=True)
    with pytest.raises(UsageFault, match="data from elsewhere"):
        run(small(), out, resume=True)
    before = read(out / "private" / "ledger.jsonl")
    assert before.attempts == 1
    run(small(), out, train=one, resume=True)


@pytest.mark.slow
def test_a_checkpoint_that_knows_more_than_the_ledger_is_refused(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    ledger = out / "private" / "ledger.jsonl"
    interrupted_run(small(), out, monkeypatch)
    whole = ledger.read_bytes()
    ledger.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))  # an older copy is put back
    with pytest.raises(RunFailed, match="not of this ledger"):
        run(small(), out, resume=True)
    ledger.unlink()
    with pytest.raises(RunFailed, match="not of this ledger"):
        run(small(), out, resume=True)
    ledger.write_bytes(whole)
    assert run(small(), out, resume=True).stop_reason == "completed"


@pytest.mark.slow
def test_a_damaged_checkpoint_is_one_clear_message(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    out = tmp_path / "run"
    interrupted_run(small(), out, monkeypatch)
    checkpoint = out / "private" / "checkpoints" / "last.pt"
    state = torch.load(checkpoint, weights_only=True)
    torch.save({"ledger": state["ledger"]}, checkpoint)
    with pytest.raises(RunFailed, match="not a checkpoint of this program"):
        run(small(), out, resume=True)
    checkpoint.write_bytes(b"garbage")
    with pytest.raises(RunFailed, match="not a checkpoint"):
        run(small(), out, resume=True)


def test_scores_on_records_from_python_are_not_the_recipes_to_publish(small: Small, tmp_path: Path) -> None:
    test = Records(np.zeros((20, 1, 8, 8), dtype=np.float32), np.zeros(20, dtype=np.int64))
    done = run(small(), tmp_path / "run", test=test)
    assert done.score is not None
    metrics = json.loads((done.release / "metrics.json").read_text("utf-8"))
    assert metrics["history"] == []
    assert metrics["public_evaluation"] is None


def test_t27_records_from_python_are_grouped_as_the_guarantee_says(small: Small, tmp_path: Path) -> None:
    many, none = np.zeros((1438, 1, 8, 8), dtype=np.float32), np.zeros(1438, dtype=np.int64)
    train = Records(many, none, np.arange(1438))
    with pytest.raises(DataFault, match="protects records"):
        run(small(), tmp_path / "run", train=train)
    unit = ("data={unit: {column: p, max_records: 4}, size: 100, train: {source: npz, path: a.npz, shape: [8, 8], "
            "classes: 10}}", "mechanism.sampling={scheme: poisson, batch_size: 10}")  # fmt: skip
    bare = Records(np.zeros((100, 1, 8, 8), dtype=np.float32), np.zeros(100, dtype=np.int64))
    with pytest.raises(DataFault, match="no units"):
        run(small(*unit), tmp_path / "run", train=bare)
    ids = np.concatenate([np.arange(100), np.zeros(4, dtype=np.int64)])  # one unit of five
    crowded = Records(np.zeros((104, 1, 8, 8), dtype=np.float32), np.zeros(104, dtype=np.int64), ids)
    with pytest.raises(DataFault, match="more than the 4 that the recipe allows"):
        run(small(*unit), tmp_path / "run", train=crowded)


def test_public_records_that_are_the_training_file_under_another_name_are_refused(small: Small, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", features=np.zeros((50, 3), dtype=np.float32), labels=np.zeros(50, dtype=np.int64))
    (tmp_path / "b.npz").symlink_to(tmp_path / "a.npz")
    source = "source: npz, shape: [3], classes: 2"
    plan = small(
        f"data={{train: {{{source}, path: a.npz}}, test: {{{source}, path: b.npz, access: public}}, size: 50, "
        "preprocess: []}",
        "mechanism.sampling={scheme: poisson, batch_size: 5}",
        "budget.delta=1e-4",
    )
    with pytest.raises(DataFault, match="file of the training records"):
        run(plan, tmp_path / "run", data_root=tmp_path)


def test_a_diverged_run_ends_without_a_model_and_verifies(small: Small, tmp_path: Path) -> None:
    """The budget is spent; weights that are no numbers answer nothing, and are not released as a model."""
    done = run(small("training.optimizer={kind: sgd, lr: 1e20, weight_decay: 1e30}"), tmp_path / "run")
    assert not done.has_model
    assert done.score is None
    assert "weights are not finite" in done.remarks[0]
    assert dprecipe.verify(done.release).statement.predicate.data_access.evaluation.released is None
    metrics = (done.release / "metrics.json").read_text("utf-8")
    json.loads(metrics, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_a_model_with_nothing_to_train_is_refused_before_anything_is_spent(small: Small, tmp_path: Path) -> None:
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False)
    with pytest.raises(RunFailed, match="no parameter that is trained"):
        run(small(), tmp_path / "run", model=frozen)
    assert not (tmp_path / "run").exists()
