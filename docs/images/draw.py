"""Draw the maps of docs/explanation/architecture.md and the curves of docs/project/attacks.md, light and dark:
`python docs/images/draw.py`.

Widths leave room for fonts that are a fifth wider than the usual ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from dprecipe.contract.drawing import AxisScale

FOLDER = Path(__file__).parent
SANS = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one mode, as hexadecimal triples."""

    paper: str
    ink: str
    faint: str
    line: str
    panel: str
    box: str
    edge: str
    torch_panel: str
    torch_box: str
    torch_edge: str
    private_box: str
    private_edge: str
    mechanism_box: str
    mechanism_edge: str


LIGHT = Palette(
    paper="#ffffff", ink="#1f2328", faint="#59636e", line="#59636e",
    panel="#f1f5fb", box="#ffffff", edge="#5b87c5",
    torch_panel="#fdf3e7", torch_box="#ffffff", torch_edge="#c9772b",
    private_box="#fbeaea", private_edge="#b8484a",
    mechanism_box="#eaf5ec", mechanism_edge="#4c9261",
)  # fmt: skip
DARK = Palette(
    paper="#0d1117", ink="#e6edf3", faint="#9aa5b1", line="#9aa5b1",
    panel="#141d2b", box="#0f1724", edge="#5a8fd6",
    torch_panel="#241a0f", torch_box="#1a130b", torch_edge="#d98b45",
    private_box="#2a1415", private_edge="#d8696b",
    mechanism_box="#12241a", mechanism_edge="#5cab76",
)  # fmt: skip


@dataclass(slots=True)
class Drawing:
    """Shapes in the order in which they are painted."""

    width: int
    height: int
    title: str
    description: str
    palette: Palette
    parts: list[str] = field(default_factory=list)

    def panel(self, x: int, y: int, width: int, height: int, colour: str) -> None:
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="{colour}"/>')

    def box(self, x: int, y: int, width: int, height: int, fill: str, edge: str) -> None:
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{edge}" '
            'stroke-width="1.5"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 13,
        *,
        colour: str = "",
        anchor: str = "middle",
        bold: bool = False,
        mono: bool = False,
        turn: int = 0,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        font = f' font-family="{MONO}"' if mono else ""
        turned = f' transform="rotate({turn} {x} {y})"' if turn else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour or self.palette.ink}"'
            f"{weight}{font}{turned}>{escape(text)}</text>"
        )

    def card(self, x: int, y: int, width: int, title: str, lines: list[str], fill: str, edge: str) -> None:
        """A box with a title, and lines below it: paths as code."""
        height = 40 + 18 * len(lines)
        self.box(x, y, width, height, fill, edge)
        self.text(x + width / 2, y + 25, title, 15, bold=True)
        for number, line in enumerate(lines):
            self.text(x + width / 2, y + 45 + 18 * number, line, 12, colour=self.palette.faint, mono="/" in line)

    def arrow(self, *points: tuple[int, int]) -> None:
        path = " L ".join(f"{x} {y}" for x, y in points)
        self.parts.append(
            f'<path d="M {path}" fill="none" stroke="{self.palette.line}" stroke-width="1.75" marker-end="url(#head)"/>'
        )

    def curve(self, points: list[tuple[float, float]], colour: str, width: float, dashes: str = "") -> None:
        path = " L ".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.parts.append(
            f'<path d="M {path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"{dashed}/>'
        )

    def svg(self) -> str:
        p = self.palette
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img" font-family="{SANS}">',
                f"<title>{escape(self.title)}</title>",
                f"<desc>{escape(self.description)}</desc>",
                '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
                f'orient="auto-start-reverse"><path d="M 0 0 L 10 5 L 0 10 z" fill="{p.line}"/></marker></defs>',
                f'<rect width="{self.width}" height="{self.height}" rx="12" fill="{p.paper}"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


def draw_path(p: Palette) -> Drawing:
    """From a recipe to a certificate."""
    d = Drawing(
        1000,
        560,
        "From a recipe to a certificate",
        "A recipe becomes a Recipe, then a Plan, without torch. The Plan crosses the wall to the run, which alone "
        "reads private records. It reserves each event in the ledger before it draws noise. Ledger, plan and recipe "
        "become the certificate, without torch again, and anyone can verify it.",
        p,
    )
    d.panel(20, 20, 620, 520, p.panel)
    d.panel(690, 20, 290, 520, p.torch_panel)
    d.text(40, 48, "no torch: read, plan, account, certify, verify", 13, colour=p.faint, anchor="start")
    d.text(835, 48, "torch and Lightning: train", 13, colour=p.faint)
    d.parts.append(
        f'<path d="M 665 20 L 665 540" stroke="{p.ink}" stroke-width="5" stroke-dasharray="14 5" opacity="0.75"/>'
    )
    d.text(656, 285, "the wall", 13, colour=p.faint, turn=-90)

    d.card(40, 75, 150, "recipe.yaml", ["text/"], p.box, p.edge)
    d.card(245, 75, 150, "Recipe", ["language/", "recipe/"], p.box, p.edge)
    d.card(450, 75, 165, "Plan", ["planning/", "mechanism: account"], p.box, p.edge)
    d.arrow((190, 108), (243, 108))
    d.arrow((395, 108), (448, 108))
    d.text(115, 160, "findings with", 12, colour=p.faint)
    d.text(115, 176, "file:line:column", 12, colour=p.faint)
    d.text(320, 170, "frozen, typed", 12, colour=p.faint)

    d.card(
        245,
        210,
        370,
        "Events and accountants",
        ["privacy/", "mechanism: events, theory"],
        p.mechanism_box,
        p.mechanism_edge,
    )
    d.arrow((532, 210), (532, 153))
    d.text(520, 187, "solve what is auto", 12, colour=p.faint, anchor="end")
    d.arrow((320, 286), (320, 352))
    d.text(332, 312, "ε is computed again,", 12, colour=p.faint, anchor="start")
    d.text(332, 328, "from the ledger", 12, colour=p.faint, anchor="start")

    d.card(450, 354, 165, "Ledger", ["private/"], p.private_box, p.private_edge)
    d.card(245, 354, 150, "Certificate", ["release/"], p.box, p.edge)
    d.card(40, 354, 150, "verify", ["by anyone"], p.box, p.edge)
    d.arrow((450, 383), (397, 383))
    d.arrow((245, 383), (192, 383))
    d.text(115, 434, "no data, no GPU, no torch,", 12, colour=p.faint)
    d.text(115, 450, "another accountant", 12, colour=p.faint)

    d.card(245, 458, 370, "release/", ["weights · certificate · report · card"], p.box, p.edge)
    d.arrow((320, 412), (320, 456))

    d.card(710, 75, 250, "Run", ["training/", "mechanism: train"], p.torch_box, p.torch_edge)
    d.arrow((615, 108), (708, 108))
    d.card(710, 190, 250, "Batch, clipped sum", ["training/engine/"], p.torch_box, p.torch_edge)
    d.arrow((835, 151), (835, 188))
    d.card(
        710, 338, 250, "Gate", ["training/run/gate.py", "1 reserve the event, 2 draw noise"], p.torch_box, p.torch_edge
    )
    d.arrow((860, 248), (860, 336))
    d.card(710, 458, 250, "Optimiser step", ["post-processing, costs nothing"], p.torch_box, p.torch_edge)
    d.arrow((835, 414), (835, 456))
    d.arrow((710, 373), (617, 373))
    d.arrow((615, 396), (708, 396))
    d.arrow((710, 487), (617, 487))
    d.box(710, 268, 120, 44, p.private_box, p.private_edge)
    d.text(770, 295, "private records", 13)
    d.arrow((770, 268), (770, 250))
    return d


LAYERS: list[tuple[str, str, str]] = [
    ("mechanisms", "one package each, reached by name", "mechanism"),
    ("api cli", "Python, command line", "box"),
    ("sweep", "a run for each of many values", "box"),
    ("training", "attempt, gate, engine, probe", "torch"),
    ("nonprivate", "recipes without privacy", "box"),
    ("policy comparison", "an organisation's rules; comparisons", "box"),
    ("release", "certificate, verify, sign, report", "box"),
    ("planning", "Recipe to Plan, rules across blocks", "box"),
    ("recipe", "root of the recipe, reading, wording", "box"),
    ("noisy_sum", "shared: noise on sums", "box"),
    ("contract", "what a mechanism gives; their table", "box"),
    ("models", "sizes, checks; modules with torch", "box"),
    ("data", "sources, preprocessing, units", "box"),
    ("account", "what all runs on one data set spend", "box"),
    ("privacy", "events, accountants, ledger", "box"),
    ("noise", "distributions, secret streams", "box"),
    ("priors", "images made from a seed", "box"),
    ("language", "shared blocks of a recipe", "box"),
    ("text", "YAML to a tree with places", "box"),
    ("faults screen page notebook progress durable libraries timeline", "", "box"),
]
"""From the last line of the order of imports to the first: `ORDER` of tests/contract/test_imports.py."""


def draw_packages(p: Palette) -> Drawing:
    """The order of imports."""
    row, top = 42, 64
    d = Drawing(
        1000,
        top + row * len(LAYERS) + 34,
        "The order of imports",
        "Packages from top to bottom: " + ", ".join(name for name, *_ in LAYERS) + ". A package imports only from "
        "packages below it.",
        p,
    )
    d.text(90, 38, "A package imports only from packages below it, lazy imports included.", 14, anchor="start")
    colours = {
        "box": (p.box, p.edge),
        "mechanism": (p.mechanism_box, p.mechanism_edge),
        "torch": (p.torch_box, p.torch_edge),
    }
    bottom = top + row * len(LAYERS)
    d.arrow((52, top + 4), (52, bottom - 8))
    d.text(40, (top + bottom) / 2, "imports", 13, colour=p.faint, turn=-90)
    for number, (name, what, kind) in enumerate(LAYERS):
        y = top + row * number
        fill, edge = colours[kind]
        d.box(90, y, 890, row - 8, fill, edge)
        d.text(106, y + 22, name, 13, anchor="start", mono=True, bold=True)
        d.text(690, y + 22, what, 13, anchor="start", colour=p.faint)
    legend = [("no torch", p.edge), ("knows a mechanism", p.mechanism_edge), ("torch", p.torch_edge)]
    for number, (words, edge) in enumerate(legend):
        x = 106 + 180 * number
        d.parts.append(f'<rect x="{x}" y="{bottom + 4}" width="12" height="12" rx="3" fill="{edge}"/>')
        d.text(x + 20, bottom + 15, words, 12, anchor="start", colour=p.faint)
    return d


def draw_attacks(p: Palette) -> Drawing:
    """Membership inference by `benchmarks/attack.py`: true positives over false ones, beside what claims allow."""
    tasks: list[dict[str, Any]] = json.loads((FOLDER / "attacks.json").read_text(encoding="utf-8"))["tasks"]
    groups = {"all": "all records", "wrong": "wrong labels"}
    colours = (p.private_edge, p.torch_edge, p.edge, p.mechanism_edge)
    side, left, top, across, down = 190, 66, 56, 232, 246
    d = Drawing(
        left + across * len(tasks) + 6,
        top + down * len(groups) + 62,
        "Membership inference, measured and allowed",
        "True-positive rates over false-positive rates, both logarithmic from 0.001 to 1, for each task; above for all "
        "records, below for those with a wrong label. Models without privacy are far above the diagonal. Models with "
        "privacy lie near it, below the dashed curves of what their claims allow, which rise with epsilon.",
        p,
    )
    for (row, (group, words)), (column, task) in product(enumerate(groups.items()), enumerate(tasks)):
        x0, y0 = left + across * column, top + down * row
        x, y = AxisScale(1e-3, 1.0, x0, x0 + side, is_log=True), AxisScale(1e-3, 1.0, y0 + side, y0, is_log=True)
        d.parts.append(f'<rect x="{x0}" y="{y0}" width="{side}" height="{side}" fill="{p.panel}"/>')
        for value, label in x.list_ticks():
            d.text(x.place(value), y0 + side + 16, label, 11, colour=p.faint)
            d.text(x0 - 6, y.place(value) + 4, label, 11, colour=p.faint, anchor="end")
        d.curve([(x.place(1e-3), y.place(1e-3)), (x.place(1), y.place(1))], p.faint, 1, "2 3")
        for colour, way in zip(colours, task["ways"], strict=True):
            if way["epsilon"] is not None:
                d.curve([(x.place(a), y.place(b)) for a, b in way["allowed"]], colour, 1.25, "5 3")
            d.curve([(x.place(a), y.place(b)) for a, b in way[group]["curve"] if min(a, b) >= 1e-3], colour, 2)
        if row == 0:
            d.text(x0 + side / 2, 26, task["title"], 13, bold=True)
            budgets = ", ".join(f"{way['epsilon']:.2g}" for way in task["ways"][1:])
            d.text(x0 + side / 2, 44, f"ε = {budgets}", 11, colour=p.faint)
        d.text(x0 + side / 2, y0 + side + 34, "false positives", 11, colour=p.faint)
        if column == 0:
            d.text(20, y0 + side / 2, f"{words}: true positives", 12, colour=p.faint, turn=-90)
    names = ("without privacy", "ε = 8", "ε = 3, for SMS 2", "ε = 1")
    for number, (name, colour) in enumerate(zip(names, colours, strict=True)):
        at = left + 150 * number
        d.curve([(at, d.height - 34), (at + 26, d.height - 34)], colour, 2)
        d.text(at + 34, d.height - 30, name, 12, colour=p.faint, anchor="start")
    d.text(left, d.height - 10, "dashed: the most that the claim allows any attack; dotted: guessing", 12,
           colour=p.faint, anchor="start")  # fmt: skip
    return d


MAPS: dict[str, Callable[[Palette], Drawing]] = {"path": draw_path, "packages": draw_packages, "attacks": draw_attacks}
MODES = {"light": LIGHT, "dark": DARK}


def draw_all() -> Iterator[tuple[str, str]]:
    """File name and text of every picture."""
    for name, draw in MAPS.items():
        for mode, palette in MODES.items():
            yield f"{name}-{mode}.svg", draw(palette).svg()


if __name__ == "__main__":
    for file, text in draw_all():
        (FOLDER / file).write_text(text, encoding="utf-8")
