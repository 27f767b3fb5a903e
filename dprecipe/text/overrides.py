"""`--set a.b=c`: overrides, read by the rules of the recipe itself.

All overrides become one tree that is laid over the recipe once, so their order does not matter, and two
that set the same value are refused rather than silently ranked."""

from __future__ import annotations

from collections.abc import Iterable

from dprecipe.faults import Finding, Place
from dprecipe.text.load import parse
from dprecipe.text.tree import Entry, Mapping, Node, Scalar


def name_override(index: int) -> str:
    """Returns the name of the override at a position, for findings and origins: `--set #2`."""
    return f"--set #{index + 1}"


def read_overrides(overrides: Iterable[str]) -> tuple[Mapping, tuple[Finding, ...]]:
    """Returns one tree of all overrides, every place in a file called `--set #n`."""
    findings: list[Finding] = []
    root = Mapping({}, Place(name_override(0), 1, 1), by_index=True)
    for index, override in enumerate(overrides):
        _read_one(override, name_override(index), root, findings)
    return root, tuple(findings)


def _read_one(override: str, file: str, root: Mapping, findings: list[Finding]) -> None:
    path, equals, text = override.partition("=")
    steps = path.split(".")
    if not equals or not all(steps) or path != path.strip():
        message = f"`{override}` is not `path=value`" if len(override) < 80 else "it is not `path=value`"
        findings.append(
            Finding("Y130", message, "write it like training.epochs=3", place=Place(file, 1, 1, max(1, len(path))))
        )
        return
    if steps[0] == "extends":
        findings.append(
            Finding(
                "Y132",
                "`extends` can't be overridden",
                "write another recipe that extends the other parent",
                place=Place(file, 1, 1, len(path)),
            )
        )
        return
    value, wrong = parse(text, file, column=len(path) + 2)
    findings.extend(wrong)
    if value is None:
        if wrong:
            return
        value = Scalar(None, Place(file, 1, len(path) + 2))
    _insert(root, steps, value, file, findings)


def _insert(root: Mapping, steps: list[str], value: Node, file: str, findings: list[Finding]) -> None:
    block, column = root, 1
    for depth, step in enumerate(steps[:-1]):
        place = Place(file, 1, column, len(step))
        entry = block.entries.get(step)
        if entry is None:
            entry = Entry(place, Mapping({}, place, by_index=True))
            block.entries[step] = entry
        if not isinstance(entry.value, Mapping) or not entry.value.by_index:
            findings.append(_twice(".".join(steps[: depth + 1]), entry.place, place))
            return
        block, column = entry.value, column + len(step) + 1
    place = Place(file, 1, column, len(steps[-1]))
    there = block.entries.get(steps[-1])
    if there is not None:
        findings.append(_twice(".".join(steps), there.place, place))
        return
    block.entries[steps[-1]] = Entry(place, value)


def _twice(path: str, first: Place, second: Place) -> Finding:
    return Finding("Y131", f"`{path}` is set already by {first.file}", "leave one of the two", path=path, place=second)
