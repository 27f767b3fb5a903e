"""The plot of `dprecipe positions`: δ against the position on a logarithmic scale, a panel for each ε, a line for each
bound."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from dprecipe.contract.drawing import CAP, INK, MARK, SOFT
from dprecipe.release.figures import plot_style

if TYPE_CHECKING:
    from dprecipe.mechanisms.pnsgd.commands.positions import Curve

LINES: dict[str, tuple[str, str]] = {
    "no_amplification": (SOFT, "-"),
    "contraction": ("#b8860b", "-"),
    "nonlinear": ("#8250df", "-"),
    "iteration": (MARK, "-"),
    "hybrid": ("#1a7f4b", "--"),
    "proposition_1": (CAP, ":"),
    "theorem_4": (INK, ":"),
}
MIN_SHOWN = 1e-30
"""Smallest δ that is drawn."""


def plot_positions(curve: Curve, kind: str) -> bytes:
    """Draws the picture, as `svg` or `png`."""
    with matplotlib.rc_context(plot_style("positions")):
        panels = len(curve.own.at)
        figure = Figure(figsize=(1.2 + 4.4 * panels, 4.2), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False, sharey=True)[0]
        for index, axis in enumerate(axes):
            _panel(axis, curve, index)
        axes[0].set_ylabel("δ")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        picture = io.BytesIO()
        # without a date and the program's name, the same curve is the same file
        figure.savefig(picture, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return picture.getvalue()


def _panel(axis: Any, curve: Curve, index: int) -> None:
    places = [row.position for row in curve.positions]
    first = curve.positions[0].at[index]
    for name in (*first.bounds, *first.comparisons):
        values = [(row.at[index].bounds | row.at[index].comparisons)[name] for row in curve.positions]
        color, dashes = LINES[name]
        shown = [max(value, MIN_SHOWN**2) for value in values]  # a line that falls to 0 leaves the panel
        axis.plot(places, shown, color=color, linestyle=dashes, linewidth=1.8, label=name.replace("_", " "))
    axis.set(
        title=f"ε = {first.epsilon:g}",
        xlabel="position",
        yscale="log",
        ylim=(MIN_SHOWN, 2),
        xlim=(1, max(places[-1], 2)),
    )
