"""Membership inference on models that recipes release, beside what their claims allow: docs/project/attacks.md.

Each task takes a recipe of `recipes/`, a few of its records (one in ten of them with a wrong label, which a model can
only learn by heart), and trains many models on random halves: without privacy until they know their records, and with
privacy at several ε. The attack and its statistics are in `lira.py`. With `--keep`, finished models are kept, and a
later call goes on from there.

    python benchmarks/attack.py --data-root DIR --keep FOLDER --json docs/images/attacks.json
    python docs/images/draw.py
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from figures import ROOT, describe_machine, find_commit, rounded, table
from lira import CURVE, Attack, Queried, Rate, assess, draw_coins, margins_of
from numpy.typing import NDArray

import dprecipe
from dprecipe.contract.plan import Plan
from dprecipe.data.load import data_root, load
from dprecipe.nonprivate.plan import make_plan as make_public_plan
from dprecipe.privacy import risk
from dprecipe.recipe.read import Loaded, LoadedPublic, read_any
from dprecipe.text.dump import dump

AIMS = (0.001, 0.01, 0.1)
"""Rates of false positives. The table shows the first, the JSON file all."""
MODELS, SHADOWS = 48, 24
WRONG = 0.1
"""Share of records with a wrong label."""
SEED = 20
DIGITS = "quickstart.yaml"
Query = Callable[[Path], NDArray[np.float64]]
Learn = Callable[[NDArray[np.bool_], Path], Path]
"""Train on the records of a mask, in a folder; the folder of the model."""


@dataclass(frozen=True)
class Task:
    """A recipe on a few of its records."""

    recipe: str
    title: str
    records: int
    batch: int | None
    """None: all records are one batch, as the recipe says."""
    epsilons: tuple[float, ...]
    """The recipe's own among them."""
    epochs: int
    """Without privacy."""
    rate: float
    """Of Adam, without privacy."""


TASKS = {
    "digits": Task(DIGITS, "digits, a perceptron", 1438, None, (8, 3, 1), 100, 0.01),
    "adult": Task("adult-dpsgd.yaml", "Adult, logistic", 2000, 512, (8, 3, 1), 150, 0.05),
    "mnist": Task("mnist-scattering.yaml", "MNIST, linear on scattering", 1000, 256, (8, 3, 1), 20, 0.01),
    "sms": Task("sms-dpsgd.yaml", "SMS, linear on words", 2000, 512, (8, 2, 1), 100, 0.05),
}


class Pool(NamedTuple):
    """Records as the model takes them, and which of them have a wrong label."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    classes: int
    wrong: NDArray[np.bool_]


class Kept(NamedTuple):
    """What is known of the models of one way to train them."""

    queried: Queried
    accuracy: tuple[float, float]
    """Of records that were in, with their labels as given, and of those that were out and have the right one."""
    seconds: float


def load_task(task: Task, epsilon: float) -> Loaded:
    """The recipe for so many of its records, at another ε.

    Those that a coin leaves out are blanked out in their places, which costs what their removal would.
    """
    changes: dict[str, Any] = {
        **list_changes(task),
        "budget.epsilon": epsilon,
        "budget.neighbouring": "zero_out_one",
        "release.report": False,
    }
    if task.batch is not None:
        changes |= {"mechanism.sampling.batch_size": task.batch, "runtime.physical_batch": task.batch}
    return dprecipe.load(ROOT / "recipes" / task.recipe, changes)


def list_changes(task: Task) -> dict[str, Any]:
    """What makes a recipe one of the first records of its source, scored elsewhere."""
    part = {} if task.recipe == DIGITS else {"data.train.records": [0, task.records]}
    return {"data.size": task.records, "data.test": None, **part}


def read_pool(task: Task, root: Path | None) -> Pool:
    """The records. A wrong label is any other class, equally likely."""
    path = ROOT / "recipes" / task.recipe
    data = dprecipe.load(path, {**list_changes(task), "budget.neighbouring": "zero_out_one"}).recipe.data
    features, labels = load(data.train, data, data_root(root, str(path)), "train").batch(slice(None))
    generator = np.random.default_rng([SEED, 1])
    wrong = generator.random(len(labels)) < WRONG
    classes = int(labels.max()) + 1
    moved = (labels + generator.integers(1, classes, len(labels))) % classes
    return Pool(features, np.where(wrong, moved, labels).astype(np.int64), classes, wrong)


def learn_private(plan: Plan, pool: Pool, inside: NDArray[np.bool_], folder: Path) -> Path:
    """As the plan says. A record that is not finite adds nothing to any sum (docs/project/pitfalls.md, T11): it is
    out."""
    blanked = np.where(inside.reshape(-1, *[1] * (pool.features.ndim - 1)), pool.features, np.float32(np.nan))
    return dprecipe.run(plan, folder / "run", train=dprecipe.Records(blanked, pool.labels)).release


def learn_plainly(task: Task, model: Mapping[str, Any], pool: Pool, inside: NDArray[np.bool_], folder: Path) -> Path:
    """Without privacy, from the same initial weights, with batches of 64."""
    from dprecipe.training.run.nonprivate import train

    features = pool.features[inside].reshape(int(inside.sum()), -1)  # linear models and perceptrons do the same
    np.savez(folder / "half.npz", features=features, labels=pool.labels[inside])
    shape = [features.shape[1]]
    source = {"source": "npz", "path": "half.npz", "shape": shape, "classes": pool.classes, "access": "public"}
    recipe = {
        "recipe": "dprecipe/v1",
        "name": "none",
        "data": {"train": source, "size": int(inside.sum())},
        "model": dict(model),
        "mechanism": {"kind": "none"},
        "training": {"epochs": task.epochs, "batch_size": 64, "optimizer": {"kind": "adam", "lr": task.rate}},
    }
    (folder / "none.yaml").write_text(dump(recipe), encoding="utf-8")
    loaded = read_any(folder / "none.yaml")
    assert isinstance(loaded, LoadedPublic)
    return train(make_public_plan(loaded), folder, folder / "run").weights


def query(pool: Pool, model: Path) -> NDArray[np.float64]:
    """The logits of all records: what anyone who has the release can compute."""
    released = dprecipe.load_model(model)
    return released.outputs(pool.features.reshape(-1, *released.file.shape))


def train_models(learn: Learn, pool: Pool, coins: NDArray[np.bool_], keep: Path | None) -> Kept:
    """One model for each row of coins; those that `keep` holds are not trained again."""
    margins = np.empty(coins.shape)
    right = np.empty((2, len(coins)))
    done, seconds = 0, 0.0
    if keep is not None and keep.is_file():
        with np.load(keep) as kept:
            assert np.array_equal(kept["coins"], coins[: len(kept["coins"])])
            done, seconds = min(len(coins), len(kept["coins"])), float(kept["seconds"])
            margins[:done], right[:, :done] = kept["margins"][:done], kept["right"][:, :done]
    for number in range(done, len(coins)):
        start, inside = time.process_time(), coins[number]
        with tempfile.TemporaryDirectory() as folder:
            logits = query(pool, learn(inside, Path(folder)))
        margins[number] = margins_of(logits, pool.labels)
        hit = logits.argmax(axis=1) == pool.labels
        right[:, number] = hit[inside].mean(), hit[~inside & ~pool.wrong].mean()
        seconds += time.process_time() - start
        if keep is not None:
            rest = {"coins": coins[: number + 1], "margins": margins[: number + 1], "right": right[:, : number + 1]}
            np.savez(keep, seconds=seconds, **rest)
    inside_right, outside_right = right.mean(axis=1)
    return Kept(Queried(margins, coins), (float(inside_right), float(outside_right)), seconds)


def list_allowed(plan: Plan | None) -> risk.Points:
    """Points (ε, δ) that the claim covers; without privacy there is none but the empty one."""
    if plan is None:
        return [(0.0, 1.0)]
    budget = plan.budget
    return risk.list_points(plan.events, plan.guarantee.epsilon, budget.delta, budget.neighbouring, budget.accountant)


def describe_attack(attack: Attack, points: risk.Points) -> dict[str, Any]:
    """`allowed` is what the claim allows at the upper end of the interval of the false-positive rate; `refuted`: that
    of the true-positive rate lies above it, or that of the advantage above the largest one."""
    rows = []
    for each in attack.attained:
        allowed = risk.true_positive_rate(points, each.false_positives.high)
        rows.append(
            {
                "aimed": each.aimed,
                "false_positives": _list(each.false_positives),
                "true_positives": _list(each.true_positives),
                "allowed": rounded(allowed),
                "refuted": each.true_positives.low > allowed,
            }
        )
    return {
        "rates": rows,
        "auc": _list(attack.auc),
        "advantage": _list(attack.advantage),
        "refuted": attack.advantage.low > risk.advantage(points),
        "curve": [[rounded(x), rounded(y)] for x, y in attack.curve],
    }


def _list(rate: Rate) -> list[float]:
    return [rounded(value) for value in rate]


def attack_task(task: Task, models: int, shadows: int, root: Path | None, keep: Path | None) -> dict[str, Any]:
    """All ways to train a task's models, and what the attack attains on each."""
    pool = read_pool(task, root)
    coins = draw_coins(models, task.records, SEED)
    first = load_task(task, task.epsilons[0])
    model = first.recipe.model.model_dump(mode="json", by_alias=True, exclude_none=True)
    plans: dict[str, Plan | None] = {"none": None}
    plans |= {f"{epsilon:g}": dprecipe.plan(load_task(task, epsilon)) for epsilon in task.epsilons}
    ways = []
    for name, plan in plans.items():
        learn: Learn = partial(learn_plainly, task, model, pool) if plan is None else partial(learn_private, plan, pool)
        file = None if keep is None else keep / f"{task.recipe.removesuffix('.yaml')}-{name}.npz"
        kept = train_models(learn, pool, coins, file)
        points = list_allowed(plan)
        groups = {"all": np.ones(task.records, np.bool_), "wrong": pool.wrong}
        ways.append(
            {
                "epsilon": None if plan is None else rounded(plan.guarantee.epsilon),
                "delta": None if plan is None else plan.budget.delta,
                "accuracy": [rounded(value) for value in kept.accuracy],
                "seconds": rounded(kept.seconds),
                "allowed": [[rounded(x), rounded(risk.true_positive_rate(points, x))] for x in CURVE],
                "allowed_advantage": rounded(risk.advantage(points)),
                **{
                    group: describe_attack(assess(kept.queried, shadows, chosen, AIMS), points)
                    for group, chosen in groups.items()
                },
            }
        )
    return {"title": task.title, "recipe": task.recipe, "records": task.records, "ways": ways}


GROUPS = ("all", "wrong")


def tabulate(results: Mapping[str, Any]) -> str:
    """Returns a table with a row for each way to train; where two numbers stand, of all records and of wrong labels."""
    names = ["task, records", "privacy", "accuracy: own, others", "AUC", "advantage", "all records", "wrong labels"]
    lines = []
    for task in results["tasks"]:
        title = f"{task['title']}, {task['records']:,}"
        for way in task["ways"]:
            epsilon, found = way["epsilon"], [way[group] for group in GROUPS]
            lines.append(
                [
                    title,
                    "none" if epsilon is None else f"ε = {round(epsilon, 2):g}",
                    ", ".join(map(_write, way["accuracy"])),
                    ", ".join(f"{each['auc'][0]:.3f}" for each in found),
                    ", ".join(f"{each['advantage'][0]:.3f}" for each in found)
                    + (f" of {way['allowed_advantage']:.2f}" if epsilon is not None else ""),
                    *(_describe_rate(each, epsilon is not None) for each in found),
                ]
            )
            title = ""
    return table(names, lines)


def _describe_rate(found: Mapping[str, Any], limited: bool) -> str:
    """True positives at the smallest false positives aimed at; with a claim, also the most that it allows."""
    row = found["rates"][0]
    cell = f"{_percent(row['true_positives'])} at {_write(row['false_positives'][0])}"
    if limited:
        cell += f" (≤ {_write(row['allowed'])})"
    return cell + (" **refuted**" if found["refuted"] or any(each["refuted"] for each in found["rates"]) else "")


def _percent(rate: Sequence[float]) -> str:
    """An estimate and its interval, in per cent."""
    value, low, high = map(_write, rate)
    return f"{value} [{low}, {high}]"


def _write(share: float) -> str:
    """In per cent, to two figures or a tenth."""
    return f"{100 * share:.2g}" if share < 0.1 else f"{100 * share:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--models", type=int, default=MODELS)
    parser.add_argument("--shadows", type=int, default=SHADOWS)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where margins of finished models are kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was attained")
    given = parser.parse_args()
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    tasks = [attack_task(TASKS[name], given.models, given.shadows, given.data_root, given.keep) for name in given.only]
    results = {
        "commit": find_commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": describe_machine(),
        "models": given.models,
        "shadows": given.shadows,
        "seconds": rounded(sum(way["seconds"] for task in tasks for way in task["ways"])),
        "tasks": tasks,
    }
    print(f"\n{tabulate(results)}")
    if given.json is not None:
        given.json.write_text(json.dumps(results, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
