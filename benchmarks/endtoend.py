"""Whole commands: `dprecipe run` against scripts of torch, of Opacus and of numpy that do the same work.

Each is a process of its own, from start to exit, on the same files, with the same model, batch, steps, clip norm and
noise, and scores the same test records. `plain` is training without privacy as people write it (`DataLoader`), `hooks`
and `ghost` are two modes of Opacus 1.6 as its documentation writes them, `before` is dprecipe of another checkout. Of
PATE and PNSGD `plain` is a bare loop that does the same privately, with noise of numpy. The scripts are in
`benchmarks/peers/`. Their noise is not secure, they write no ledger, no certificate and no report, and they are given
the noise that dprecipe solves for.

Rounds alternate. Told are seconds of the clock and of all processors, peak memory of the largest process, accuracies,
and where dprecipe's time goes (`private/timing.json`). On a machine that others use, only processor time counts.

Run: python benchmarks/endtoend.py --data-root DIR --opacus-python PYTHON [--before TREE] [--rows ROW ...] [--json FILE]
`--opacus-python`, else $OPACUS_PYTHON: an interpreter that has dprecipe's libraries and `opacus==1.6.0`; for the row
`lora` also `transformers` and `peft`. Where a library is missing, its column or row is left out.
`--show FILE`: the tables of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from figures import ROOT, Spread, Usage, parser_of, ratio, run_process, table, write_json

PEERS = ROOT / "benchmarks" / "peers"
COLUMNS = ("plain", "hooks", "ghost", "before", "dprecipe")
SCRIPTS = {"plain": "plain.py", "hooks": "opacus_dpsgd.py", "ghost": "opacus_dpsgd.py"}
PHASES = ("start", "plan", "read", "import", "prepare", "loop", "scores", "certificate", "report", "verify")


@dataclass(frozen=True)
class Row:
    """What is trained: a recipe with some values overridden, and the same for the scripts."""

    recipe: str
    overrides: tuple[str, ...]
    settings: Mapping[str, Any]
    """For the scripts; the noise is added to them."""
    files: tuple[str, ...] = ()
    """Below the folder of the data."""
    script: str | None = None
    """The one peer, where it isn't DP-SGD."""
    noise: float = 1.0
    """What the scripts call noise, as a multiple of the solved multiplier."""
    needs: tuple[str, ...] = ()
    """Libraries that all programs import."""
    rounds: int = 3
    make: Callable[[Path, str], None] | None = None
    """Writes files of the row to a folder, with an interpreter that has the libraries."""
    words: dict[str, str] = field(default_factory=dict)


def dpsgd_row(recipe: str, task: str, batch: int | None, steps: int, clip: float, rates: Mapping[str, float],
              optimizer: str = "SGD", delta: float = 1e-5, **more: Any) -> Row:  # fmt: skip
    """Of DP-SGD; without a batch, all records are one."""
    rest = "".join(f", {name}: {value}" for name, value in rates.items())
    overrides = [
        "training.epochs=null",
        f"training.steps={steps}",
        f"mechanism.clip.norm={clip}",
        f"training.optimizer={{kind: {optimizer.lower()}{rest}}}",
    ]
    if batch is not None:
        overrides.append(f"mechanism.sampling.batch_size={batch}")
    settings = {
        "task": task, "batch": batch or 1438, "full_batch": batch is None, "steps": steps, "clip": clip,
        "delta": delta, "optimizer": optimizer, "rates": dict(rates),
    }  # fmt: skip
    return Row(recipe, tuple(overrides), settings, **more)


LORA_RECIPE = """\
recipe: dprecipe/v1
name: lora-encoder
data:
  train: {source: npz, path: train.npz, shape: [64], classes: 2}
  test: {source: npz, path: test.npz, shape: [64], classes: 2, access: public}
  size: 4096
model: {kind: transformers, init: encoder, lora: {rank: 8, alpha: 16}}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
training: {steps: 40, optimizer: {kind: adam, lr: 1e-3}}
release: {report: true}
"""
MAKE_ENCODER = """\
import sys
import numpy as np
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification
torch.manual_seed(0)
config = DistilBertConfig(
    vocab_size=4000, max_position_embeddings=64, dim=128, n_layers=2, n_heads=4, hidden_dim=512,
    dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
)
DistilBertForSequenceClassification(config).save_pretrained(sys.argv[1] + "/encoder")
draw = np.random.default_rng(0)
for part, count in (("train", 4096), ("test", 1024)):
    tokens = draw.integers(1, 4000, size=(count, 64))
    tokens[np.arange(64) >= draw.integers(16, 65, size=(count, 1))] = 0
    np.savez(f"{sys.argv[1]}/{part}.npz", features=tokens, labels=draw.integers(2, size=count))
"""


def make_lora(folder: Path, python: str) -> None:
    """A small encoder with weights of a seed, and made-up texts of 16 to 64 tokens."""
    (folder / "recipe.yaml").write_text(LORA_RECIPE, encoding="utf-8")
    run_checked([python, "-c", MAKE_ENCODER, str(folder)])


SGD = {"lr": 2.0, "momentum": 0.9}
PATE = {"teachers": 250, "teacher_steps": 40, "teacher_batch": 24, "teacher_rate": 2e-3}
ROWS = {
    "quickstart": dpsgd_row("quickstart.yaml", "digits", None, 75, 0.3, {"lr": 2.2, "momentum": 0.9}, rounds=5),
    "adult": dpsgd_row("adult-dpsgd.yaml", "adult", 512, 1272, 1.0, SGD, delta=1e-6, files=("adult",)),
    "mnist": dpsgd_row("mnist-dpsgd.yaml", "mnist", 512, 236, 0.1, SGD, files=("mnist",)),
    "cifar": dpsgd_row("cifar10-dpsgd.yaml", "cifar", 256, 24, 0.1, {"lr": 1.0, "momentum": 0.9}, files=("cifar10",)),
    "sms": dpsgd_row("sms-transformer.yaml", "sms", 512, 60, 0.5, {"lr": 0.003}, "Adam", files=("sms_spam",)),
    "lora": dpsgd_row(
        "recipe.yaml", "lora", 64, 40, 1.0, {"lr": 1e-3}, "Adam", needs=("transformers", "peft"), make=make_lora
    ),
    "pate": Row(
        "papers/papernot2018-mnist.yaml",
        (
            "data.public.records=[0, 640]",
            "data.preprocess=[{scale: {mean: 0.1307, std: 0.3081}}]",
            "model={kind: cnn, preset: lenet}",
            "mechanism.aggregator={kind: gnmax, noise: {family: gaussian, multiplier: 40}}",
            "mechanism.analysis=none",
            "mechanism.teachers.training={steps: 40, batch_size: 24, optimizer: {kind: adam, lr: 2e-3}}",
            "training={steps: 300, batch_size: 32, optimizer: {kind: adam, lr: 2e-3}}",
            "budget.epsilon=auto",
        ),
        {**PATE, "queries": 640, "steps": 300, "batch": 32, "rate": 2e-3, "noise": 40.0},
        ("mnist",),
        "pate.py",
    ),
    "pnsgd": Row(
        "adult-pnsgd.yaml", (), {"passes": 80, "batch": 4096, "rate": 0.76, "radius": 7.0}, ("adult",), "pnsgd.py",
        10**0.5,  # the Lipschitz constant, by which the recipe's noise is multiplied
    ),
}  # fmt: skip
QUICK = ("quickstart", "pnsgd")


class Skipped(Exception):
    """A row or a column that can't be measured here, and why."""


def run_checked(command: list[str], environment: Mapping[str, str] | None = None) -> Usage:
    used = run_process(command, environment)
    if used.code:
        lines = used.output.strip().splitlines() or [""]
        raise Skipped(f"ended with {used.code}: {lines[-1][:160]}")
    return used


@cache
def has_libraries(python: str, names: tuple[str, ...]) -> bool:
    find = "import importlib.util, sys; sys.exit(any(importlib.util.find_spec(n) is None for n in sys.argv[1:]))"
    return run_process([python, "-c", find, *names]).code == 0


class Comparison:
    """The columns of one row, in a folder of their own."""

    def __init__(self, name: str, given: argparse.Namespace, folder: Path) -> None:
        self.row, self._given, self._folder = ROWS[name], given, folder
        row, interpreters = self.row, (sys.executable, given.opacus_python)
        self._python = next((python for python in interpreters if has_libraries(python, row.needs)), "")
        if not self._python:
            raise Skipped(f"no interpreter has {' and '.join(row.needs)}")
        missing = [file for file in row.files if not (given.data_root / file).exists()]
        if missing:
            raise Skipped(f"--data-root has no {', '.join(missing)}")
        self._data = given.data_root
        recipe = ROOT / "recipes" / row.recipe
        if row.make is not None:
            row.make(folder, self._python)
            self._data, recipe = folder, folder / row.recipe
        self._recipe = [str(recipe), *(word for each in row.overrides for word in ("--set", each))]
        self._noise = self._solve()

    def _solve(self) -> float:
        """The noise of the scripts: that of the plan."""
        if "noise" in self.row.settings:
            return float(self.row.settings["noise"])
        planned = run_checked([self._python, "-m", "dprecipe", "plan", *self._recipe, "--format", "json"], self._tree())
        solved = json.loads(planned.output[planned.output.index("{") :])["solved"]
        return float(solved["mechanism.noise.multiplier"]) * self.row.noise

    def _tree(self, tree: Path = ROOT) -> dict[str, str]:
        return {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": str(self._given.threads)}

    def columns(self) -> dict[str, str | None]:
        """Those that there are, each with the reason why it is left out."""
        result: dict[str, str | None] = dict.fromkeys(("plain", "dprecipe"))
        if self.row.script is None:
            missing = not has_libraries(self._given.opacus_python, ("opacus",))
            reason = "no interpreter has opacus: --opacus-python" if missing else None
            result |= {"hooks": reason, "ghost": reason}
        if self._given.before is not None:
            result["before"] = None
        return {name: result[name] for name in self._given.columns or COLUMNS if name in result}

    def measure(self, column: str) -> dict[str, Any]:
        """One process. Raises Skipped where it fails."""
        out = Path(tempfile.mkdtemp(dir=self._folder))
        phases: dict[str, Any] = {}
        if column in SCRIPTS:
            python = self._given.opacus_python if column in ("hooks", "ghost") else self._python
            script = self.row.script or SCRIPTS[column]
            settings = {**self.row.settings, "noise": self._noise, "mode": column}
            settings |= {"data_root": str(self._data), "out": str(out)}
            used = run_checked([python, str(PEERS / script), json.dumps(settings)], self._tree())
        else:
            tree = ROOT if column == "dprecipe" else self._given.before
            words = ["--out", str(out / "run"), "--data-root", str(self._data)]
            used = run_checked([self._python, "-m", "dprecipe", "run", *self._recipe, *words], self._tree(tree))
            file = out / "run" / "private" / "timing.json"
            if file.exists():
                phases = {each.pop("phase"): each for each in json.loads(file.read_text("utf-8"))["phases"]}
        shutil.rmtree(out)
        accuracies = re.findall(r"accuracy ([\d.]+)\s?%", used.output)
        accuracy = float(accuracies[-1]) if accuracies else None
        return {"wall": used.wall, "processor": used.processor, "peak_mb": used.peak_mb, "accuracy": accuracy} | (
            {"phases": phases} if phases else {}
        )


def measure_row(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """What each column took in each round, or why there is nothing of it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            comparison = Comparison(name, given, Path(folder))
        except Skipped as reason:
            return {"skipped": str(reason)}
        columns = comparison.columns()
        result: dict[str, Any] = {column: {"skipped": why} for column, why in columns.items() if why}
        rounds = given.rounds or (1 if given.quick else comparison.row.rounds)
        for number in range(rounds):
            for column in [each for each in columns if "skipped" not in result.get(each, ())]:
                note(f"{name}, round {number + 1} of {rounds}, {column} …", end="")
                try:
                    taken = comparison.measure(column)
                except Skipped as reason:
                    result[column] = {"skipped": str(reason)}
                    note(f" {reason}")
                else:
                    result.setdefault(column, []).append(taken)
                    note(f" {taken['wall']:.1f} s, {taken['processor']:.1f} s of the processor")
    return {"columns": result}


def note(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


def warm_up(given: argparse.Namespace) -> None:
    """Fills the caches of bytecode and of the disk, which a user's second command finds full."""
    note("warming up …")
    for tree in (ROOT, given.before or ROOT):
        command = [sys.executable, "-c", "import lightning, sklearn.datasets, dprecipe.training.run"]
        run_process(command, {"PYTHONPATH": str(tree)})
    run_process([given.opacus_python, "-c", "import opacus"])


def values(columns: Mapping[str, Any], column: str, key: str) -> list[float]:
    """Of all rounds; nothing where there is no such column."""
    taken = columns.get(column, ())
    return [] if "skipped" in taken else [each[key] for each in taken if each[key] is not None]


def ratios_of(rows: Mapping[str, Any], key: str = "processor") -> dict[str, Spread]:
    """dprecipe's to those of the others, by row."""
    result = {}
    for name, row in rows.items():
        columns = row.get("columns", {})
        ours = values(columns, "dprecipe", key)
        for other in COLUMNS[:-1]:
            theirs = values(columns, other, key)
            if ours and len(ours) == len(theirs):
                result[f"{name}: dprecipe / {other}"] = ratio(ours, theirs)
    return result


def show(rows: Mapping[str, Any]) -> str:
    """All tables, in markdown."""
    parts = []
    titles = {
        "processor": "Processor time, seconds",
        "wall": "Time of the clock, seconds",
        "peak_mb": "Peak memory, MB",
        "accuracy": "Accuracy, %",
    }
    for key, title in titles.items():
        ratios = ratios_of(rows, key) if key in ("processor", "wall") else {}
        others = [other for other in COLUMNS[:-1] if any(name.endswith(f"/ {other}") for name in ratios)]
        lines = []
        for name, row in rows.items():
            columns = row.get("columns", {})
            cells = [name]
            for column in COLUMNS:
                taken = values(columns, column, key)
                cells.append(f"{Spread.of(taken).median:.{0 if key == 'peak_mb' else 1}f}" if taken else "")
            for other in others:
                spread = ratios.get(f"{name}: dprecipe / {other}")
                cells.append("" if spread is None else str(spread) if spread.rounds > 1 else f"{spread.median:.2f}")
            lines.append(cells)
        parts.append(f"{title}\n\n{table(['row', *COLUMNS, *(f'÷ {other}' for other in others)], lines)}")
    for column in ("before", "dprecipe"):
        shares = [line for name, row in rows.items() for line in phase_lines(name, row.get("columns", {}), column)]
        if shares:
            title = f"Processor time of {column} by phase, seconds (share)"
            parts.append(f"{title}\n\n{table(['row', *PHASES, 'else'], shares)}")
    reasons = [f"- {name}: {row['skipped']}" for name, row in rows.items() if "skipped" in row]
    for name, row in rows.items():
        columns = row.get("columns", {}).items()
        reasons += [f"- {name}, {column}: {taken['skipped']}" for column, taken in columns if "skipped" in taken]
    return "\n\n".join([*parts, *(["Left out:\n\n" + "\n".join(reasons)] if reasons else [])])


def phase_lines(name: str, columns: Mapping[str, Any], column: str) -> list[list[str]]:
    """`else` is what the run's own clock does not see: the interpreter's end, and other processes."""
    taken = columns.get(column, ())
    taken = [] if "skipped" in taken else [each for each in taken if "phases" in each]
    if not taken:
        return []
    whole = Spread.of([each["processor"] for each in taken]).median
    cells, rest = [name], whole
    for phase in PHASES:
        seconds = Spread.of([each["phases"].get(phase, {}).get("processor_seconds", 0.0) for each in taken]).median
        cells.append(f"{seconds:.2f} ({seconds / whole:.0%})")
        rest -= seconds
    return [[*cells, f"{rest:.2f} ({rest / whole:.0%})"]]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", nargs="+", choices=ROWS, metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--data-root", type=Path, default=os.environ.get("DPRECIPE_DATA"), metavar="DIR")
    parser.add_argument("--opacus-python", default=os.environ.get("OPACUS_PYTHON", sys.executable), metavar="PYTHON")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, metavar="COLUMN", help=f"of {', '.join(COLUMNS)}")
    parser.add_argument("--before", type=Path, metavar="TREE", help="another checkout of dprecipe")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--show", type=Path, nargs="+", metavar="FILE", help="tables of what --json wrote; a later file's rows win"
    )
    given = parser.parse_args()
    if given.show:
        print(
            show(
                {name: row for file in given.show for name, row in json.loads(file.read_text("utf-8"))["rows"].items()}
            )
        )
        return
    given.data_root = Path(given.data_root or ROOT).resolve()
    given.before = None if given.before is None else given.before.resolve()
    warm_up(given)
    rows: dict[str, Any] = {}
    for name in given.rows or (QUICK if given.quick else ROWS):
        rows[name] = measure_row(name, given)
        # After each row: what was measured is kept if a later one is interrupted.
        partial = given.quick or given.rows is not None or name != list(ROWS)[-1]
        kept = {name: each for name, each in ratios_of(rows).items() if not name.endswith("/ before")}
        write_json(given.json, "endtoend", kept, rows=rows, quick=partial)
    print(show(rows))


if __name__ == "__main__":
    main()
