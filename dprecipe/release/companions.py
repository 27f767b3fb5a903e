"""The files of a release beside its certificate, held to what the certificate says.

A digest shows that a file is the one that was named; it does not keep the file from saying something else, because
whoever writes an unsigned certificate writes its digests. So what states the claim is made again and compared: the
card, the numbers, the model's description and the report's text. Released labels are held to their form and number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dprecipe.faults import Fault
from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.table import mechanism_of
from dprecipe.models.file import describe_file, parse_description
from dprecipe.models.schema import Transformers
from dprecipe.privacy.events import Charge
from dprecipe.release import card, figures, report, tensors
from dprecipe.release.folder import covered_history
from dprecipe.release.schema import Predicate
from dprecipe.release.untrusted import NOT_WRITTEN, ContentError, parse_object, read_bytes, to_bytes

History = Sequence[Mapping[str, float]]

FIGURE = "<svg/>"
SVG = re.compile(r"<svg .*?</svg>", re.DOTALL)


def find_differences(
    stated: Predicate, plan: Plan, charges: Sequence[Charge], folder: Path, names: set[str]
) -> list[str]:
    """Where one of the files `names` in `folder` says something else than the certificate."""
    problems: list[str] = []
    history: History = ()
    if tensors.WEIGHTS in names:
        problems += tensors.find_differences(stated, folder / tensors.WEIGHTS)
    if "model.json" in names:
        problems += _model(stated, plan, folder / "model.json")
    if "metrics.json" in names:
        failures, history = _metrics(stated, plan, folder / "metrics.json")
        problems += failures
    for name in sorted(names & mechanism_of(plan.mechanism).certificate.list_companions(plan)):
        problems += _of_the_mechanism(stated, plan, folder / name)
    if "card.md" in names:
        problems += _same("card.md", folder, card.render_markdown(plan, stated))
    if "report.html" in names:
        problems += _report(stated, plan, charges, folder, history)
    return problems


def _same(name: str, folder: Path, expected: str) -> list[str]:
    try:
        same = read_bytes(folder / name) == expected.encode()
    except ContentError as error:
        return list(error.failures)
    return [] if same else [f"{name}: not what this certificate gives: it may state another claim"]


def _model(stated: Predicate, plan: Plan, path: Path) -> list[str]:
    try:
        text = read_bytes(path)
        content = parse_object(text, path.name)
        model = plan.model if stated.provenance.model == "recipe" else None
        # What a model of transformers is built from stands in a file of its own: held to what such a file may say.
        config = parse_description(text).config if isinstance(model, Transformers) else None
        expected = describe_file(model, plan.data, config)
    except ContentError as error:
        return list(error.failures)
    except Fault as fault:
        return [f"model.json: {fault.message}"]
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        return [f"model.json: is not what dprecipe writes: {type(error).__name__}"]
    wrong = [key for key in {**expected, **content} if expected.get(key, ...) != content.get(key, ...)]
    problems = [f"model.json: {key[:80]!a} is not what the recipe says" for key in wrong[:20]]
    return problems or _written("model.json", text, to_bytes(expected))


def _of_the_mechanism(stated: Predicate, plan: Plan, path: Path) -> list[str]:
    """A file that the plan's mechanism alone releases, by what its room knows of it."""
    try:
        content = read_bytes(path)
    except ContentError as error:
        return list(error.failures)
    part, from_python = mechanism_of(plan.mechanism).certificate, stated.provenance.data == "python"
    return part.check_companion(path.name, content, plan, stated.mechanism, from_python)


def _written(name: str, content: bytes, expected: bytes) -> list[str]:
    """A file that means the same is not enough: in its blanks and in the digits of its numbers it could hold others."""
    return [] if content == expected else [f"{name}: {NOT_WRITTEN}"]


def _metrics(stated: Predicate, plan: Plan, path: Path) -> tuple[list[str], History]:
    try:
        text = read_bytes(path)
        content = parse_object(text, path.name)
    except ContentError as error:
        return list(error.failures), ()
    history = content.get("history")
    if not isinstance(history, list):
        return ["metrics.json: has no list of points as history"], ()
    # A point that this run can't have measured is left out of what is expected, and so differs.
    expected = card.list_metrics(stated, covered_history(plan, history))
    wrong = [key for key in {**expected, **content} if expected.get(key, ...) != content.get(key, ...)]
    problems = [f"metrics.json: {key[:80]!a} is not what the certificate says" for key in wrong[:20]]
    return problems or _written("metrics.json", text, to_bytes(expected)), expected["history"]


def _report(stated: Predicate, plan: Plan, charges: Sequence[Charge], folder: Path, history: History) -> list[str]:
    try:
        page = read_bytes(folder / "report.html").decode()
    except ContentError as error:
        return list(error.failures)
    except UnicodeDecodeError:
        return ["report.html: not UTF-8"]
    if SVG.sub(FIGURE, page) != report.render_html(plan, stated, charges, history, lambda figure: FIGURE):
        return ["report.html: its text is not what this certificate gives: it may state another claim"]
    due, drawn = report.list_figures(plan, stated, charges, history), SVG.findall(page)
    if len(drawn) != len(due):
        return ["report.html: a figure is missing"]
    flaws = [figures.find_flaw(svg, figure.name, figure.words) for svg, figure in zip(drawn, due, strict=True)]
    return [f"report.html: {flaw}" for flaw in flaws if flaw is not None][:5]
