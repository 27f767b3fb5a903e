"""Loggers of whole runs: real files, a real server, and the same release with and without them."""

from __future__ import annotations

import csv
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from safetensors.torch import load_file  # noqa: E402

from dprecipe import libraries  # noqa: E402
from dprecipe.api import run  # noqa: E402
from dprecipe.contract.plan import Plan  # noqa: E402
from dprecipe.faults import Interrupted, UsageFault  # noqa: E402
from dprecipe.planning.make import plan as make_plan  # noqa: E402
from dprecipe.recipe.read import read_text  # noqa: E402
from dprecipe.release.verify import verify  # noqa: E402
from dprecipe.training.loggers import run as module  # noqa: E402
from dprecipe.training.loggers.run import check_loggers, open_loggers  # noqa: E402
from dprecipe.training.loggers.sinks import TensorBoardSink  # noqa: E402
from dprecipe.training.program.evaluate import Score  # noqa: E402
from dprecipe.training.run.folder import RunFolder  # noqa: E402
from dprecipe.training.steps.noisy_steps import NoisySteps  # noqa: E402

PUBLIC = "data.test.access=public"
PRIVATE = "data.test.access=private_internal"
COVERED = ["step", "epsilon", "learning_rate"]


def loggers(text: str) -> str:
    return f"runtime.loggers=[{text}]"


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def read_events(folder: Path) -> dict[str, dict[int, float]]:
    """The scalars of TensorBoard's event files, by tag and step: records of (length, checksum, content, checksum)."""
    from tensorboardX.proto.event_pb2 import Event

    scalars: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            for value in event.summary.value:
                scalars.setdefault(value.tag, {})[event.step] = value.simple_value
            content = content[16 + length :]
    return scalars


def test_each_stream_goes_to_its_own_loggers(small: Any, tmp_path: Path) -> None:
    """The quick sister of the whole runs below."""
    pytest.importorskip("tensorboardX", reason="the extra tensorboard is not installed")
    folder = RunFolder(tmp_path)
    folder.private.mkdir(mode=0o700)
    score = Score(0.75, 0.5, 359)
    for access, names in ((PUBLIC, {"accuracy", "loss"}), (PRIVATE, set())):
        plan = small(access, loggers("{kind: csv}, {kind: tensorboard}, {kind: csv, values: private}"))
        with open_loggers(plan, folder, test_from_python=False) as opened:
            opened.log_covered(opened.make_point(5, 0.5, 0.1, {}, score))
            opened.log_private(5, 0.5, 0.1, {"accuracy": 0.75, "training_loss": 0.25})
        (row,) = read_csv(tmp_path / "logs" / "csv" / "metrics.csv")
        assert set(row) == {*COVERED, *names}
        assert set(read_events(tmp_path / "logs" / "tensorboard")) == {"epsilon", "learning_rate", *names}
        (row,) = read_csv(tmp_path / "private" / "logs" / "csv-2" / "metrics.csv")
        assert set(row) == {*COVERED, "accuracy", "training_loss"}
        shutil.rmtree(tmp_path / "logs")


def test_event_files_of_one_second_are_both_kept(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="the extra tensorboard is not installed")
    for step in range(3):  # attempts within one second
        sink = TensorBoardSink(tmp_path)
        sink.log(step, {"epsilon": 0.5})
        sink.finish("interrupted")
    assert read_events(tmp_path) == {"epsilon": {0: 0.5, 1: 0.5, 2: 0.5}}


@pytest.mark.slow
def test_public_scores_go_to_covered_logs_and_all_scores_to_private_ones(small: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="the extra tensorboard is not installed")
    both = "{kind: csv}, {kind: tensorboard}, {kind: csv, values: private}"
    done = run(small(PUBLIC, loggers(both)), tmp_path / "run")
    covered = read_csv(tmp_path / "run" / "logs" / "csv" / "metrics.csv")
    assert set(covered[0]) >= {*COVERED, "accuracy", "loss"}
    assert not any(name.startswith("training") for name in covered[0])
    assert float(covered[-1]["accuracy"]) == pytest.approx(done.score.accuracy)
    assert int(covered[-1]["step"]) == 30
    events = read_events(tmp_path / "run" / "logs" / "tensorboard")
    assert set(events) == {"epsilon", "learning_rate", "accuracy", "loss"}
    assert sorted(events["accuracy"]) == [int(row["step"]) for row in covered if row["accuracy"] != "nan"]
    assert sorted(events["epsilon"]) == [int(row["step"]) for row in covered]
    spent = [float(row["epsilon"]) for row in covered]
    assert spent == sorted(spent)
    assert spent[-1] <= done.plan.budget.epsilon
    private = tmp_path / "run" / "private" / "logs"
    rows = read_csv(private / "csv-2" / "metrics.csv")
    assert {"accuracy", "loss", "training_accuracy", "training_loss"} <= set(rows[0])
    for path in (private, *private.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


@pytest.mark.slow
def test_a_covered_log_has_no_private_score_and_not_their_times(small: Any, tmp_path: Path) -> None:
    run(small(PRIVATE, loggers("{kind: csv}")), tmp_path / "run")
    rows = read_csv(tmp_path / "run" / "logs" / "csv" / "metrics.csv")
    assert list(rows[0]) == COVERED
    from dprecipe.training.steps.watch import steps_between_scores

    plan = small(PRIVATE)
    every = steps_between_scores(plan.length, plan.data.max_units, 0)
    assert [int(row["step"]) for row in rows] == sorted({*range(every, 31, every), 30})


@pytest.mark.slow
def test_event_files_and_a_resumed_run(
    small: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboardX", reason="the extra tensorboard is not installed")
    plan, take_step = small(PUBLIC, loggers("{kind: tensorboard}, {kind: csv}")), NoisySteps.take_step

    def stopping(self: NoisySteps) -> bool:
        if self.steps_done == 17:
            self.request_stop()
        return take_step(self)

    monkeypatch.setattr(NoisySteps, "take_step", stopping)
    with pytest.raises(Interrupted):
        run(plan, tmp_path / "run")
    first = read_events(tmp_path / "run" / "logs" / "tensorboard")
    assert max(first["epsilon"]) <= 17
    monkeypatch.setattr(NoisySteps, "take_step", take_step)
    run(plan, tmp_path / "run", resume=True)
    events = read_events(tmp_path / "run" / "logs" / "tensorboard")
    assert set(events) == {"epsilon", "learning_rate", "accuracy", "loss"}
    assert first["epsilon"].items() <= events["epsilon"].items()
    rows = read_csv(tmp_path / "run" / "logs" / "csv" / "metrics.csv")
    assert sorted(events["epsilon"]) == sorted({int(row["step"]) for row in rows})
    assert max(events["accuracy"]) == 30


@pytest.mark.slow
def test_the_release_is_the_same_with_and_without_loggers(small: Callable[..., Plan], tmp_path: Path) -> None:
    fixed = "runtime.insecure={seed: 1}"
    broken = loggers("{kind: csv}, {kind: mlflow, uri: 'http://127.0.0.1:9'}" if _has("mlflow") else "{kind: csv}")
    one, two = small(PUBLIC, fixed), small(PUBLIC, fixed, broken)
    assert one.digest == two.digest
    releases = [run(plan, tmp_path / name).release for name, plan in (("a", one), ("b", two))]
    weights = [load_file(release / "model.safetensors") for release in releases]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def _has(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


@pytest.mark.slow
def test_a_failing_logger_leaves_a_whole_run(
    small: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> Any:
        raise OSError("no")

    monkeypatch.setattr(module, "open_sink", refuse)
    done = run(small(PUBLIC, loggers("{kind: csv}")), tmp_path / "run")
    assert done.verified
    assert capsys.readouterr().err.count("logger csv: OSError; the run goes on without it") == 1


def test_missing_libraries_are_told_before_anything_is_spent(
    small: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small(PUBLIC, loggers("{kind: tensorboard}"))
    monkeypatch.setattr(libraries, "find_spec", lambda name: name if name in libraries.TRAINING else None)
    with pytest.raises(UsageFault, match="tensorboard needs tensorboardX, which is not installed") as caught:
        run(plan, tmp_path / "run")
    assert "dprecipe[tensorboard]" in caught.value.remedy
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(libraries, "find_spec", lambda name: name)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UsageFault, match="no server of mlflow"):
        check_loggers(small(PUBLIC, loggers("{kind: mlflow}")))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A tracking server of MLflow on the loopback."""
    pytest.importorskip("mlflow.server", reason="mlflow, with its server, is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    words = ["server", "--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", store, "--workers", "1"]
    words += ["--default-artifact-root", str(tmp_path / "artifacts")]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        for _ in range(300):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.slow
def test_a_server_of_mlflow_gets_covered_values_and_a_resumed_run_goes_on(
    small: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    from mlflow import MlflowClient

    logger = loggers(f"{{kind: mlflow, uri: '{server}', experiment: wards}}")
    plan, take_step = small(PUBLIC, logger), NoisySteps.take_step

    def stopping(self: NoisySteps) -> bool:
        if self.steps_done == 17:
            self.request_stop()
        return take_step(self)

    monkeypatch.setattr(NoisySteps, "take_step", stopping)
    with pytest.raises(Interrupted):
        run(plan, tmp_path / "run")
    client = MlflowClient(server)
    (experiment,) = client.search_experiments(filter_string="name = 'wards'")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "KILLED"
    monkeypatch.setattr(NoisySteps, "take_step", take_step)
    done = run(plan, tmp_path / "run", resume=True)
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert set(found.data.metrics) == {"epsilon", "learning_rate", "accuracy", "loss"}
    assert found.data.metrics["accuracy"] == pytest.approx(done.score.accuracy)
    assert found.data.params["plan"] == plan.digest
    steps = [point.step for point in client.get_metric_history(found.info.run_id, "epsilon")]
    assert min(steps) < 17 < max(steps) == 30


@pytest.mark.slow
def test_weights_and_biases_offline(small: Callable[..., Plan], tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    run(small(PUBLIC, loggers("{kind: wandb}")), tmp_path / "run")
    (content,) = (tmp_path / "run" / "logs" / "wandb").rglob("run-*.wandb")
    written = content.read_bytes()
    assert b"learning_rate" in written
    assert b"training_" not in written
    assert b"spent" not in written  # nothing of what was printed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pnsgd", "pate"])
@pytest.mark.parametrize("access", ["public", "private_internal"])
def test_a_run_without_steps_that_are_seen_logs_what_its_release_says(kind: str, access: str, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "golden" / "rules" / f"fine-{kind}.yaml").read_text("utf-8")
    text = text.replace("access: public", f"access: {access}")
    text += "runtime: {loggers: [{kind: csv}, {kind: csv, values: private}]}\n"
    done = run(make_plan(read_text(text)), tmp_path / "run")
    (row,) = read_csv(tmp_path / "run" / "logs" / "csv" / "metrics.csv")
    assert (int(row["step"]), float(row["epsilon"])) == (done.plan.length.steps, done.epsilon)
    scores = {"accuracy", "loss"} if access == "public" else set()
    assert set(row) - {"step", "epsilon"} >= scores
    assert scores or set(row) == {"step", "epsilon"}
    (*_, last) = read_csv(tmp_path / "run" / "private" / "logs" / "csv-2" / "metrics.csv")
    assert done.score is not None
    assert float(last["accuracy"]) == pytest.approx(done.score.accuracy, abs=1e-5)
    verify(done.release)
