"""Figures 2 and 3 of Abadi et al. 2016 as they come out here.

Figure 2 is arithmetic: ε of `recipes/papers/abadi2016-figure2.yaml` over passes, by the accountants of the paper and by
privacy-loss distributions. Figure 3 is drawn from finished run folders: accuracy on the test images over passes.

Run: python benchmarks/reproduction/abadi_figures.py figure2 --out figure2.svg
     python benchmarks/reproduction/abadi_figures.py figure3 --out figure3.svg --run 'LABEL=FOLDER' [--run …]
docs/project/reproduction/abadi.md shows both.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from dprecipe.contract.drawing import LINE, SOFT
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.comparison import compare_accountants
from dprecipe.recipe.read import read

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "abadi2016-figure2.yaml"
PASSES = (5, 10, 20, 40, 60, 80, 100, 150, 200, 250, 300, 350, 400)
CURVES = {
    "strong_composition_as_printed": ("strong composition, as printed: no guarantee", "#c2410c", ":"),
    "moments_accountant": ("moments accountant", "#1f6feb", "-"),
    "pld": ("privacy-loss distributions", "#1a7f4b", "-"),
}
PRINTED = {"strong_composition_as_printed": {100: 9.34, 400: 24.22}, "moments_accountant": {100: 1.26, 400: 2.55}}
"""ε in the text of the paper, section 5.1, at so many passes."""
COLORS = ("#1f6feb", "#1a7f4b", "#8250df", "#b8860b")


def plot_style(name: str) -> dict[str, Any]:
    """Returns matplotlib's settings for a picture of this name that is a file of its own."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": name,  # ids that are the same each time
        "font.family": "sans-serif",
        "font.size": 10.5,
        "axes.edgecolor": LINE,
        "axes.labelcolor": SOFT,
        "xtick.color": SOFT,
        "ytick.color": SOFT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": LINE,
        "grid.linewidth": 0.8,
    }


def main() -> None:
    arguments = parsed()
    with matplotlib.rc_context(plot_style(arguments.figure)):
        figure = Figure(figsize=(7.2, 4), layout="constrained")
        axes = figure.add_subplot()
        if arguments.figure == "figure2":
            draw_accounting(axes)
        else:
            draw_runs(axes, dict(run.rsplit("=", 1) for run in arguments.runs))
        axes.legend(frameon=False, loc="upper left" if arguments.figure == "figure2" else "lower right")
        figure.savefig(arguments.out, dpi=150, metadata={"Date": None} if arguments.out.suffix == ".svg" else None)


def draw_accounting(axes: Any) -> None:
    """ε over passes, a line for each accountant; crosses are the values that the paper prints."""
    lines: dict[str, list[float]] = {name: [] for name in CURVES}
    for passes in PASSES:
        plan = make_plan(read(RECIPE, [f"training.epochs={passes}"]))
        rows = compare_accountants(plan.events, plan.budget.delta, plan.budget.neighbouring)
        values = {row.accountant: row.epsilon for row in rows}
        for name, line in lines.items():
            value = values[name]
            assert value is not None
            line.append(value)
    for name, (label, color, dashes) in CURVES.items():
        axes.plot(PASSES, lines[name], color=color, linestyle=dashes, linewidth=1.8, label=label)
        printed = PRINTED.get(name, {})
        axes.plot(list(printed), list(printed.values()), "x", color=color, markersize=8, markeredgewidth=2)
    axes.set(xlabel="passes", ylabel="ε at δ = 1e-5", xlim=(0, PASSES[-1] + 5), ylim=(0, 26))


def draw_runs(axes: Any, runs: dict[str, str]) -> None:
    """Accuracy on the test images over passes, a line for each run."""
    for color, (label, folder) in zip(COLORS, runs.items(), strict=False):
        rate = json.loads((Path(folder) / "plan.json").read_text("utf-8"))["sampling_rate"]
        with (Path(folder) / "private" / "metrics.csv").open(encoding="utf-8", newline="") as file:
            points = [(int(row["step"]), float(row["accuracy"])) for row in csv.DictReader(file)]
        axes.plot([step * rate for step, _ in points], [100 * value for _, value in points], color=color, label=label)
    axes.set(xlabel="passes", ylabel="accuracy on the test images, %", xlim=(0, None), ylim=(80, 98))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=("figure2", "figure3"))
    parser.add_argument("--run", action="append", default=[], metavar="LABEL=FOLDER", dest="runs")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
