"""Compares the other files of a release with its certificate.

A digest shows that a file is the one the certificate names. It does not show that the two agree: the writer of an
unsigned certificate also writes its digests. So the card, the metrics, the model's description and the report's text
are generated again and compared. Released labels are checked for their form and their number, a tokeniser for its form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.data.tokens import MAX_BYTES, TOKENIZER, check_form
from dprecipe.faults import Fault
from dprecipe.models.file import describe_file, parse_description
from dprecipe.models.library_files import list_library_files, render_library_files
from dprecipe.models.schema import CausalLm, Transformers
from dprecipe.privacy.events import Charge
from dprecipe.release import card, figures, report, stages, tensors
from dprecipe.release.folder import select_history
from dprecipe.release.schema import Predicate
from dprecipe.release.untrusted import NOT_CANONICAL, ContentError, parse_object, read_bytes, to_bytes

History = Sequence[Mapping[str, float]]

FIGURE = "<svg/>"
SVG = re.compile(r"<svg .*?</svg>", re.DOTALL)


def find_differences(
    stated: Predicate, plan: Plan, charges: Sequence[Charge], folder: Path, names: set[str]
) -> list[str]:
    """Finds where one of the files `names` in `folder` contradicts the certificate, which has its sentences."""
    problems: list[str] = []
    history: History = ()
    if tensors.weights_file(plan) in names:
        problems += tensors.find_differences(stated, plan, folder)
    if "model.json" in names:
        problems += _check_model(stated, plan, folder / "model.json")
    if "metrics.json" in names:
        failures, history = _check_metrics(stated, plan, folder / "metrics.json")
        problems += failures
    if TOKENIZER in names:
        problems += _check_tokenizer(folder / TOKENIZER)
    if "model.json" in names and TOKENIZER in names and not problems:
        problems += _check_library_files(stated, plan, folder)
    for name in sorted(names & mechanism_of(plan.mechanism).certificate.list_companions(plan)):
        problems += _check_companion(stated, plan, folder / name)
    if not stated.is_own:
        return problems  # another version has other words: those of card and report are bound by their digests alone
    if "card.md" in names:
        problems += _check_text("card.md", folder, card.render_markdown(plan, stated))
    if "report.html" in names:
        problems += _check_report(stated, plan, charges, folder, history)
    return problems


def _check_text(name: str, folder: Path, expected: str) -> list[str]:
    try:
        matches = read_bytes(folder / name) == expected.encode()
    except ContentError as error:
        return list(error.failures)
    return [] if matches else [f"{name}: not what this certificate generates; it may state another claim"]


def _check_model(stated: Predicate, plan: Plan, path: Path) -> list[str]:
    try:
        text = read_bytes(path)
        content = parse_object(text, path.name)
        model = plan.model if stated.provenance.model == "recipe" else None
        # A transformers model is built from a configuration in this file; `parse_description` bounds what it may say.
        config = parse_description(text).config if isinstance(model, Transformers | CausalLm) else None
        released = stages.read_constants(content)
        initial = stated.provenance.initial_weights
        base = initial.digest if initial is not None and tensors.releases_adapters(plan) else None
        expected = describe_file(model, plan.data, config, released, base)
    except ContentError as error:
        return list(error.failures)
    except Fault as fault:
        return [f"model.json: {fault.message}"]
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        return [f"model.json: not as dprecipe writes it: {type(error).__name__}"]
    differing = [key for key in {**expected, **content} if expected.get(key, ...) != content.get(key, ...)]
    problems = [f"model.json: {key[:80]!a} is not what the recipe says" for key in differing[:20]]
    problems += stages.find_differences(stated, plan, released)
    return problems or _check_form("model.json", text, to_bytes(expected))


def _check_tokenizer(path: Path) -> list[str]:
    """Checks that a file may be a tokeniser. A release can't show whether it is the one of training."""
    try:
        with path.open("rb") as file:  # a regular one: its digest was taken
            check_form(file.read(MAX_BYTES + 1))
    except OSError as error:
        return [f"{TOKENIZER}: can't be read: {error.strerror}"]
    except ValueError as error:  # of JSON, its message may quote the file
        return [f"{TOKENIZER}: is no tokeniser ({type(error).__name__})"]
    return []


def _check_library_files(stated: Predicate, plan: Plan, folder: Path) -> list[str]:
    """Checks the files of other libraries, which follow from `model.json`, the tokeniser and the names of the tensors;
    those that `list_released_files` expects are there."""
    if not list_library_files(plan.model, adapters=tensors.releases_adapters(plan)):
        return []
    try:
        file = parse_description(read_bytes(folder / "model.json"))
        with (folder / TOKENIZER).open("rb") as stream:
            tokenizer = stream.read(MAX_BYTES + 1)
        expected = render_library_files(file, tokenizer, [tensor.name for tensor in stated.tensors])
        return [
            f"{name}: not what model.json and {TOKENIZER} imply"
            for name, content in sorted(expected.items())
            if read_bytes(folder / name) != content
        ]
    except ContentError as error:
        return list(error.failures)
    except Fault as fault:
        return [fault.message]
    except OSError as error:
        return [f"{TOKENIZER}: can't be read: {error.strerror}"]


def _check_companion(stated: Predicate, plan: Plan, path: Path) -> list[str]:
    """Checks a file that only the plan's mechanism releases, by the mechanism's own rules."""
    try:
        content = read_bytes(path)
    except ContentError as error:
        return list(error.failures)
    part, from_python = mechanism_of(plan.mechanism).certificate, stated.provenance.data == "python"
    return part.check_companion(path.name, content, plan, stated.mechanism, from_python)


def _check_form(name: str, content: bytes, expected: bytes) -> list[str]:
    """Checks more than equal content: blanks and digits could hide data."""
    return [] if content == expected else [f"{name}: {NOT_CANONICAL}"]


def _check_metrics(stated: Predicate, plan: Plan, path: Path) -> tuple[list[str], History]:
    try:
        text = read_bytes(path)
        content = parse_object(text, path.name)
    except ContentError as error:
        return list(error.failures), ()
    history = content.get("history")
    if not isinstance(history, list):
        return ["metrics.json: history is not a list of points"], ()
    # A point that this run can't have measured is left out of what is expected, so it shows as a difference.
    expected = card.list_metrics(stated, select_history(plan, history))
    differing = [key for key in {**expected, **content} if expected.get(key, ...) != content.get(key, ...)]
    problems = [f"metrics.json: {key[:80]!a} is not what the certificate says" for key in differing[:20]]
    return problems or _check_form("metrics.json", text, to_bytes(expected)), expected["history"]


def _check_report(
    stated: Predicate, plan: Plan, charges: Sequence[Charge], folder: Path, history: History
) -> list[str]:
    try:
        page = read_bytes(folder / "report.html").decode()
    except ContentError as error:
        return list(error.failures)
    except UnicodeDecodeError:
        return ["report.html: not UTF-8"]
    if SVG.sub(FIGURE, page) != report.render_html(plan, stated, charges, history, lambda figure: FIGURE):
        return ["report.html: its text is not what this certificate generates; it may state another claim"]
    expected, drawings = report.list_figures(plan, stated, charges, history), SVG.findall(page)
    if len(drawings) != len(expected):
        return ["report.html: a figure is missing"]
    flaws = [figures.find_flaw(svg, figure.name, figure.words) for svg, figure in zip(drawings, expected, strict=True)]
    return [f"report.html: {flaw}" for flaw in flaws if flaw is not None][:5]
