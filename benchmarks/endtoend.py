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
`--show FILE ...`: the tables of earlier runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from figures import ROOT, Spread, Unmeasured, parser_of, ratio, run_checked, run_process, table, write_json
from rows import ROWS

PEERS = ROOT / "benchmarks" / "peers"
COLUMNS = ("plain", "hooks", "ghost", "before", "dprecipe")
SCRIPTS = {"plain": "plain.py", "hooks": "opacus_dpsgd.py", "ghost": "opacus_dpsgd.py"}
PHASES = ("start", "plan", "read", "import", "prepare", "loop", "scores", "certificate", "report", "verify")
QUICK = ("quickstart", "pnsgd")


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
            raise Unmeasured(f"no interpreter has {' and '.join(row.needs)}")
        missing = [file for file in row.files if not (given.data_root / file).exists()]
        if missing:
            raise Unmeasured(f"--data-root has no {', '.join(missing)}")
        self._data = given.data_root
        if row.make is not None:
            try:
                row.make(folder, self._python)
            except subprocess.CalledProcessError as error:
                raise Unmeasured(f"its files can't be made: {error}") from error
            self._data = folder
        self._noise = self._solve()

    def _solve(self) -> float:
        """The noise of the scripts: that of the plan."""
        if "noise" in self.row.settings:
            return float(self.row.settings["noise"])
        planned = run_checked(
            [self._python, "-m", "dprecipe", "plan", *self._recipe(), "--format", "json"], self._tree()
        )
        solved = json.loads(planned.output[planned.output.index("{") :])["solved"]
        return float(solved["mechanism.noise.multiplier"]) * self.row.noise

    def _recipe(self, tree: Path = ROOT) -> list[str]:
        """That of the same checkout, whose language the recipe is written in; and what is overridden."""
        folder = self._folder if self.row.make is not None else tree / "recipes"
        return [str(folder / self.row.recipe), *(word for each in self.row.overrides for word in ("--set", each))]

    def _tree(self, tree: Path = ROOT) -> dict[str, str]:
        return {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": str(self._given.threads)}

    def columns(self) -> dict[str, str]:
        """Those that there are, each with the reason why it can't be measured, which is empty where it can."""
        result = dict.fromkeys(("plain", "dprecipe"), "")
        if self.row.script is None:
            known = has_libraries(self._given.opacus_python, ("opacus",))
            reason = "" if known else "no interpreter has opacus: --opacus-python"
            result |= {"hooks": reason, "ghost": reason}
        if self._given.before is not None:
            result["before"] = ""
        return {name: result[name] for name in self._given.columns or COLUMNS if name in result}

    def measure(self, column: str) -> dict[str, Any]:
        """One process. Raises Unmeasured where it fails."""
        out = Path(tempfile.mkdtemp(dir=self._folder))
        phases: dict[str, float] = {}
        if column in SCRIPTS:
            python = self._given.opacus_python if column in ("hooks", "ghost") else self._python
            script = self.row.script or SCRIPTS[column]
            settings = {**self.row.settings, "noise": self._noise, "mode": column}
            if column == "plain" and self.row.plain_lr is not None:
                settings["rates"] = {**settings["rates"], "lr": self.row.plain_lr}
            settings |= {"data_root": str(self._data), "out": str(out)}
            used = run_checked([python, str(PEERS / script), json.dumps(settings)], self._tree())
        else:
            tree = ROOT if column == "dprecipe" else self._given.before
            words = ["--out", str(out / "run"), "--data-root", str(self._data)]
            command = [self._python, "-m", "dprecipe", "run", *self._recipe(tree), *words]
            used = run_checked(command, self._tree(tree), tree)  # `-m` looks in the current folder first
            file = out / "run" / "private" / "timing.json"
            if file.exists():
                for each in json.loads(file.read_text("utf-8"))["phases"]:
                    phases[each["phase"]] = each["processor_seconds"]
        shutil.rmtree(out)
        accuracies = re.findall(r"accuracy ([\d.]+)\s?%", used.output)
        accuracy = float(accuracies[-1]) if accuracies else None
        figures = {"wall": used.wall, "processor": used.processor, "peak_mb": used.peak_mb, "accuracy": accuracy}
        return {**figures, "phases": phases}


def measure_row(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """What each column took in each round, and why others were left out."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            comparison = Comparison(name, given, Path(folder))
        except Unmeasured as reason:
            return {"columns": {}, "left_out": {"all": str(reason)}}
        columns = comparison.columns()
        left_out = {column: reason for column, reason in columns.items() if reason}
        taken: dict[str, list[dict[str, Any]]] = {}
        rounds = given.rounds or (1 if given.quick else comparison.row.rounds)
        for number in range(rounds):
            for column in [each for each in columns if each not in left_out]:
                note(f"{name}, round {number + 1} of {rounds}, {column} …", end="")
                try:
                    used = comparison.measure(column)
                except Unmeasured as reason:
                    left_out[column] = str(reason)
                    taken.pop(column, None)
                    note(f" {reason}")
                else:
                    taken.setdefault(column, []).append(used)
                    note(f" {used['wall']:.1f} s, {used['processor']:.1f} s of the processor")
    return {"columns": taken, "left_out": left_out}


def note(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


def warm_up(given: argparse.Namespace) -> None:
    """Fills the caches of bytecode and of the disk, which a user's second command finds full."""
    note("warming up …")
    for tree in (ROOT, given.before or ROOT):
        command = [sys.executable, "-c", "import lightning, sklearn.datasets, dprecipe.training.run.start"]
        run_process(command, {"PYTHONPATH": str(tree)}, tree)
    run_process([given.opacus_python, "-c", "import opacus"])


def values(row: Mapping[str, Any], column: str, key: str) -> list[float]:
    """Of all rounds; nothing where there is no such column."""
    return [each[key] for each in row["columns"].get(column, ()) if each[key] is not None]


def ratios_of(rows: Mapping[str, Any], key: str = "processor") -> dict[str, Spread]:
    """dprecipe's to those of the others, by row."""
    result = {}
    for name, row in rows.items():
        ours = values(row, "dprecipe", key)
        for other in COLUMNS[:-1]:
            theirs = values(row, other, key)
            if ours and len(ours) == len(theirs):
                result[f"{name}: dprecipe / {other}"] = ratio(ours, theirs)
    return result


def merge(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The rows of several runs; of a column that two have, the later one's."""
    result: dict[str, Any] = {}
    for run in runs:
        for name, row in run.items():
            kept = result.setdefault(name, {"columns": {}, "left_out": {}})
            kept["columns"] |= row["columns"]
            kept["left_out"] = {**kept["left_out"], **row["left_out"]}
            for column in row["columns"]:
                kept["left_out"].pop(column, None)
    return result


def show(rows: Mapping[str, Any]) -> str:
    """All tables, in markdown."""
    titles = {
        "processor": "Processor time, seconds",
        "wall": "Time of the clock, seconds",
        "peak_mb": "Peak memory, MB",
        "accuracy": "Accuracy, %",
    }
    parts = [f"{title}\n\n{show_figures(rows, key)}" for key, title in titles.items()]
    for column in ("before", "dprecipe"):
        lines = [[name, *phase_cells(row["columns"][column])] for name, row in rows.items() if column in row["columns"]]
        if lines:
            title = f"Processor time of {column} by phase, seconds (share)"
            parts.append(f"{title}\n\n{table(['row', *PHASES, 'else'], lines)}")
    reasons = [f"- {name}, {column}: {why}" for name, row in rows.items() for column, why in row["left_out"].items()]
    return "\n\n".join([*parts, *(["Left out:\n\n" + "\n".join(reasons)] if reasons else [])])


def show_figures(rows: Mapping[str, Any], key: str) -> str:
    """Medians of each column, and ratios where they are of times."""
    ratios = ratios_of(rows, key) if key in ("processor", "wall") else {}
    others = [other for other in COLUMNS[:-1] if any(name.endswith(f"/ {other}") for name in ratios)]
    digits = 0 if key == "peak_mb" else 1
    lines = []
    for name, row in rows.items():
        taken = [values(row, column, key) for column in COLUMNS]
        cells = [f"{Spread.of(each).median:.{digits}f}" if each else "" for each in taken]
        for spread in [ratios.get(f"{name}: dprecipe / {other}") for other in others]:
            cells.append("" if spread is None else str(spread) if spread.rounds > 1 else f"{spread.median:.2f}")
        lines.append([name, *cells])
    return table(["row", *COLUMNS, *(f"÷ {other}" for other in others)], lines)


def phase_cells(taken: Sequence[Mapping[str, Any]]) -> list[str]:
    """`else` is what the run's own clock does not see: the interpreter's end, and other processes."""
    whole = Spread.of([each["processor"] for each in taken]).median
    medians = [Spread.of([each["phases"].get(phase, 0.0) for each in taken]).median for phase in PHASES]
    return [f"{seconds:.2f} ({seconds / whole:.0%})" for seconds in (*medians, whole - sum(medians))]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", nargs="+", choices=ROWS, metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--data-root", type=Path, default=os.environ.get("DPRECIPE_DATA"), metavar="DIR")
    parser.add_argument("--opacus-python", default=os.environ.get("OPACUS_PYTHON", sys.executable), metavar="PYTHON")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, metavar="COLUMN", help=f"of {', '.join(COLUMNS)}")
    parser.add_argument("--before", type=Path, metavar="TREE", help="another checkout of dprecipe")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--show", type=Path, nargs="+", metavar="FILE", help="tables of what --json wrote; a later file's columns win"
    )
    given = parser.parse_args()
    if given.show:
        print(show(merge([json.loads(file.read_text("utf-8"))["rows"] for file in given.show])))
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
