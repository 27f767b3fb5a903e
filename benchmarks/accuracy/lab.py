"""The accuracy of recipes: runs them with seeds, keeps every result, and prints a table with 95 % intervals.

    OMP_NUM_THREADS=1 python benchmarks/accuracy/lab.py STUDY.toml --data-root DIR [--only WORD]

A study names recipes, the points of its table (`over`), and methods, each with the settings of its own that are tried
(`try`). A setting is chosen for each row and method, and never on the test set: a sixth of the training records is
held out as if it were public, other seeds than those reported are used, and the best mean wins. The chosen setting
then runs with every seed, on all training records, and its scores on the test set are reported.

Results are lines of `results.jsonl`, which only grows; what is there is not run again. A recipe that was changed is
another recipe. The last column counts the settings that were looked at for a row, those given up included.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

import dprecipe
from dprecipe.comparison import WORDS, find_interval
from dprecipe.contract.plan import Plan, digest_of
from dprecipe.data.records import Records
from dprecipe.faults import RunFailed
from dprecipe.training.program.gather import gather_records

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.jsonl")
HELD_OUT = 6
"""Training records for one that is held out where a setting is chosen."""

Settings = Mapping[str, object]
Role = Literal["choice", "report"]


@dataclass(frozen=True, slots=True)
class Result:
    """One run. `digest`: of the recipe's contents, its names and seed left out. `score`: None of a run that failed.
    `seconds`: of the processor, with planning and verification."""

    recipe: str
    digest: str
    settings: Settings
    role: Role
    seed: int
    score: float | None
    epsilon: float
    delta: float
    seconds: float
    version: str


@dataclass(frozen=True, slots=True)
class Method:
    """A column of a table: overrides, the settings among which it chooses, and a recipe of its own if it has one."""

    name: str
    overrides: Settings
    candidates: tuple[Settings, ...]
    recipe: Path | None


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: a recipe, and overrides that all methods share."""

    recipe: Path
    point: Settings


@dataclass(frozen=True, slots=True)
class Study:
    """The contents of a table. `against`: the method from which the first one's gain is counted."""

    rows: tuple[Row, ...]
    methods: tuple[Method, ...]
    against: str | None
    seeds: tuple[int, ...]
    choice_seeds: tuple[int, ...]


def read_study(path: Path, only: str = "") -> Study:
    """Reads a study; `only`: a part of the names of the recipes that are wanted."""
    content = tomllib.loads(path.read_text("utf-8"))
    recipes = [ROOT / name for name in content["recipes"] if only in name]
    methods = [
        Method(
            name,
            each.get("set", {}),
            tuple(_combine(each.get("try", {}))),
            ROOT / each["recipe"] if "recipe" in each else None,
        )
        for name, each in content["methods"].items()
    ]
    if set(content["seeds"]) & set(content["choice_seeds"]):
        raise SystemExit(f"{path}: seeds that choose are not reported; make seeds and choice_seeds disjoint")
    rows = [Row(recipe, point) for recipe in recipes for point in _combine(content.get("over", {}))]
    return Study(
        tuple(rows), tuple(methods), content.get("against"), tuple(content["seeds"]), tuple(content["choice_seeds"])
    )


def _combine(values: Mapping[str, Sequence[object]]) -> Iterator[Settings]:
    return (dict(zip(values, point, strict=True)) for point in itertools.product(*values.values()))


class Laboratory:
    """The results so far, and the means to add to them: without a data root nothing is run."""

    def __init__(self, results: Path, data_root: Path | None) -> None:
        lines = results.read_text("utf-8").splitlines() if results.exists() else []
        self.results = [Result(**json.loads(line)) for line in lines]
        self._file, self._root = results, data_root
        self._digest = ""
        self._records: dict[Role, tuple[Records, Records]] = {}

    def find(self, recipe: Path, settings: Settings, role: Role, seeds: Sequence[int]) -> list[Result]:
        """Returns the results with these seeds, in their order; runs those that are missing, if it may."""
        wanted = digest_recipe(recipe, settings)
        found: list[Result] = []
        for seed in seeds:
            known = [each for each in self.results if (each.digest, each.role, each.seed) == (wanted, role, seed)]
            if not known and self._root is not None:
                known = [self._run(recipe, settings, role, seed, self._root)]
            found += known[:1]
        return found

    def choose(self, study: Study, row: Row, method: Method) -> Settings | None:
        """Returns the candidate with the best mean, of those that have run with all seeds; None if none has."""
        if len(method.candidates) == 1:
            return method.candidates[0]
        best, chosen = -math.inf, None
        for candidate in method.candidates:
            settings = {**row.point, **method.overrides, **candidate}
            found = self.find(method.recipe or row.recipe, settings, "choice", study.choice_seeds)
            if len(found) < len(study.choice_seeds):
                continue
            total = math.fsum(-1.0 if each.score is None else each.score for each in found)  # a failure loses
            if total > best:
                best, chosen = total, candidate
        return chosen

    def report(self, study: Study, row: Row, method: Method) -> list[float]:
        """Returns the scores of all seeds with the chosen setting, on the test set; empty where one is missing."""
        chosen = self.choose(study, row, method)
        if chosen is None:
            return []
        settings = {**row.point, **method.overrides, **chosen}
        found = self.find(method.recipe or row.recipe, settings, "report", study.seeds)
        scores = [each.score for each in found if each.score is not None]
        return scores if len(scores) == len(study.seeds) else []

    def _run(self, recipe: Path, settings: Settings, role: Role, seed: int, root: Path) -> Result:
        """Makes one run and keeps its result."""
        overrides = {**settings, "runtime.seed": seed}
        plan = dprecipe.plan(dprecipe.load(recipe, overrides))
        train, test = self._gather(plan, root)[role]
        if role == "choice":
            size: dict[str, object] = {"data.size": len(train)}
            if plan.data.train.records is not None:
                size["data.train.records"] = [0, len(train)]  # a plan wants as many; the records are given to the run
            plan = dprecipe.plan(dprecipe.load(recipe, {**overrides, **size}))
        began = time.process_time()
        score, epsilon = None, plan.budget.epsilon
        with tempfile.TemporaryDirectory() as folder:
            try:
                done = dprecipe.run(plan, Path(folder) / "run", train=train, test=test)
                assert done.verified
                assert done.score is not None
                score, epsilon = done.score.accuracy, done.epsilon
            except RunFailed as fault:
                print(f"failed: {fault}", file=sys.stderr)
        gc.collect()  # a run's copy of its records is in a cycle, and is seldom found
        seconds, digest = round(time.process_time() - began, 1), digest_recipe(recipe, settings)
        claim = (epsilon, plan.budget.delta)
        result = Result(recipe.stem, digest, settings, role, seed, score, *claim, seconds, dprecipe.__version__)
        line = json.dumps(asdict(result), ensure_ascii=False)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, file=sys.stderr, flush=True)
        self.results.append(result)
        return result

    def _gather(self, plan: Plan, root: Path) -> dict[Role, tuple[Records, Records]]:
        """Returns what runs of each role train on and are scored on; that of the last plan's data is kept."""
        digest = digest_of(plan.data.model_dump(mode="json"))
        if self._digest != digest:
            gathered = gather_records(plan, root)
            train, test = gathered.prepared("train"), gathered.prepared("test")
            assert isinstance(train, Records)
            assert isinstance(test, Records)
            assert train.units is None
            self._digest, self._records = digest, {"choice": hold_out(train), "report": (train, test)}
        return self._records


def digest_recipe(recipe: Path, settings: Settings) -> str:
    """Returns a digest of what a recipe says with these settings; its names and its seed are left out."""
    content = dprecipe.load(recipe, settings).recipe
    return digest_of(content.model_dump(mode="json", by_alias=True, exclude=WORDS, exclude_unset=True))


def hold_out(train: Records) -> tuple[Records, Records]:
    """Returns five sixths of the records to train on and the others to choose by, the same in every run."""
    order = np.random.default_rng(0).permutation(len(train))
    held = len(train) // HELD_OUT
    parts = (np.sort(order[held:]), np.sort(order[:held]))
    kept, others = (Records(*train.batch(part)) for part in parts)
    return kept, others


def render(laboratory: Laboratory, study: Study) -> str:
    """Returns the table in Markdown: accuracy in percent, the mean and its 95 % interval over the seeds."""
    names = [method.name for method in study.methods]
    gains = [] if study.against is None else [f"{names[0]} − {study.against}"]
    keys = list(study.rows[0].point)
    head = ["recipe", *(key.rpartition(".")[2].replace("epsilon", "ε") for key in keys), *names, *gains, "settings"]
    lines = [head, ["---"] * len(head)]
    for row in study.rows:
        scores = {method.name: laboratory.report(study, row, method) for method in study.methods}
        cells = [_show(scores[name]) for name in names]
        if study.against is not None:
            pairs = zip(scores[names[0]], scores[study.against], strict=False)
            cells.append(_show([first - second for first, second in pairs], sign="+"))
        points = [f"{value:g}" if isinstance(value, int | float) else str(value) for value in row.point.values()]
        lines.append([row.recipe.stem, *points, *cells, str(count_settings(laboratory, study, row))])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def count_settings(laboratory: Laboratory, study: Study, row: Row) -> int:
    """Returns how many settings were looked at for a row, also those that the study no longer names."""
    names = {(method.recipe or row.recipe).stem for method in study.methods}
    looked = [each for each in laboratory.results if each.role == "choice" and each.recipe in names]
    return len({each.digest for each in looked if row.point.items() <= each.settings.items()})


def _show(scores: Sequence[float], sign: str = "") -> str:
    interval = find_interval([100 * score for score in scores])
    if interval is None:
        return "–"
    return f"{interval.mean:{sign}.2f}" + ("" if interval.half_width is None else f" ± {interval.half_width:.2f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--data-root", type=Path, help="Where the data are. Without it nothing is run.")
    parser.add_argument("--only", default="", help="A part of the names of the recipes.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    laboratory = Laboratory(given.results, given.data_root)
    print(render(laboratory, read_study(given.study, given.only)), end="")


if __name__ == "__main__":
    main()
