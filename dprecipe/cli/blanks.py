"""Blanks of a recipe as one table: what is open, and how to write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from dprecipe.data.schema import UNKNOWN_SIZE
from dprecipe.faults import Finding, Place
from dprecipe.recipe.blanks import LEFT_OPEN, is_blank, walk_scalars
from dprecipe.recipe.vocabulary import Spot, choose_block, find_spot, list_keys
from dprecipe.screen import align_columns
from dprecipe.text import tree as nodes
from dprecipe.text.load import parse

FEWEST = 2
"""Fewer blanks of a file are shown as any other finding."""
ALSO = ("missing", "marks", "format", "decimal", "affixes", "values")
"""Optional keys of a column that its first files often ask for."""
WIDEST = 40
HEAD = ("line", "where", "kind", "open", "write", "may also say")


@dataclass(slots=True)
class OpenBlock:
    """One block with blanks: its line, name and kind; for each kind of value the keys that are open; optional keys."""

    line: int
    name: str
    kind: str
    open: dict[str, list[str]] = field(default_factory=dict)
    also: tuple[str, ...] = ()


def split_blanks(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Returns the blanks of each file that has at least `FEWEST`, in their order."""
    files: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.place is not None and is_blank(finding):
            files.setdefault(finding.place.file, []).append(finding)
    return {file: blanks for file, blanks in files.items() if len(blanks) >= FEWEST}


def describe_blanks(blanks: Sequence[Finding], text: str) -> list[str]:
    """Returns the blanks of a file as one block of lines: a row for each column, and what its optional keys mean."""
    place = blanks[0].place
    where = f"{place.file}:{place.line}:{place.column}: " if place is not None else ""
    rows, meanings = _list_rows(blanks, text, place.file if place is not None else "")
    table = align_columns([HEAD, *(line for row in rows for line in _list_cells(row))])
    return [
        f"{where}error[R103]: {len(blanks)} values are left open (FILL_IN)",
        *(f"  {line}" for line in table),
        "  = write each from what is known of the subject, and measure nothing on private records",
        *(f"  = a number that is not known: {UNKNOWN_SIZE}" for row in rows if "size" in chain(*row.open.values())),
        *(f"  = {'values of a boolean' if key == 'values' else key}: {meaning}" for key, meaning in meanings.items()),
    ]


def _list_rows(blanks: Sequence[Finding], text: str, file: str) -> tuple[list[OpenBlock], dict[str, str]]:
    root, _ = parse(text, file)
    tree = root if isinstance(root, nodes.Mapping) else nodes.Mapping({}, Place(file, 1, 1))
    paths = {node.place: path for path, node in walk_scalars(tree)}
    rows: dict[nodes.Path, OpenBlock] = {}
    meanings: dict[str, str] = {}
    for finding in blanks:
        line = 0 if finding.place is None else finding.place.line
        path = paths.get(finding.place) if finding.place is not None else None
        steps = tuple(finding.path.split(".")) if path is None else path
        above, key = _divide(steps)
        if above not in rows:
            rows[above] = _start_row(tree, above, line, meanings)
        rows[above].open.setdefault(finding.message.removeprefix(LEFT_OPEN), []).append(key)
        if key in ("format", "decimal"):
            meanings |= _explain(find_spot(tree, steps), [key])
    for above in {path[:-1]: None for path in rows if path[-2:-1] == ("columns",)}:
        for name in _list_names(tree, above):
            row = _start_row(tree, (*above, name), 0, meanings)
            if (*above, name) not in rows and row.also:
                rows[(*above, name)] = row
    return sorted(rows.values(), key=lambda row: row.line), meanings


def _divide(path: nodes.Path) -> tuple[nodes.Path, str]:
    """Returns the path of the block around a blank, and the key of the blank there; a list belongs to its key."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path[:-1], str(path[-1]) if path else ""


def _list_names(tree: nodes.Mapping, path: nodes.Path) -> list[str]:
    node = find_spot(tree, path).node
    return list(node.entries) if isinstance(node, nodes.Mapping) else []


def _start_row(tree: nodes.Mapping, path: nodes.Path, line: int, meanings: dict[str, str]) -> OpenBlock:
    """Returns the row of a block without its blanks; adds what its optional keys mean."""
    at = find_spot(tree, path) if path else None
    name = ".".join(map(str, path))
    if at is None or not isinstance(at.node, nodes.Mapping):
        return OpenBlock(line, name, "")
    column = path[-2:-1] == ("columns",)
    values = {key: entry.value for key, entry in at.node.entries.items()}
    named = values.get("kind" if column else "column")
    said = str(named.value) if isinstance(named, nodes.Scalar) else ""
    if not column:
        return OpenBlock(line or at.place.line, said or name, str(path[-1]) if said else "")
    also = _explain(at, [key for key in ALSO if key not in values], optional=True)
    meanings |= also
    return OpenBlock(line or at.place.line, str(path[-1]), said, also=tuple(also))


def _explain(at: Spot, keys: Sequence[str], *, optional: bool = False) -> dict[str, str]:
    """Returns what keys mean, by the block that has them: at a spot, or around it."""
    blocks = choose_block(at.form.blocks, at.node) if optional and at.form is not None else at.owners
    if len(blocks) != 1:
        return {}
    known = list_keys(blocks[0])
    fields = {(info.alias or name): info for name, info in blocks[0].model_fields.items()}
    return {
        key: fields[key].description or ""
        for key in keys
        if key in known and key in fields and not (optional and fields[key].is_required())
    }


def _list_cells(row: OpenBlock) -> Iterator[tuple[str, ...]]:
    first = (str(row.line), row.name if len(row.name) <= WIDEST else f"{row.name[: WIDEST - 1]}…", row.kind)
    for number, (expected, keys) in enumerate(row.open.items() or [("", [])]):
        shown = 'such as "%d.%m.%Y"' if keys == ["format"] else expected
        shown += ", as [a, b]" if expected.endswith("a list of text") else ""
        yield (*(first if number == 0 else ("", "", "")), ", ".join(keys), shown, ", ".join(row.also) * (not number))


def render_blanks(findings: Sequence[Finding], texts: Mapping[str, str]) -> dict[int, list[str]]:
    """Returns the lines that take the place of findings, by the index of each: the whole table at the first blank of a
    file, and none at its others."""
    shown: dict[int, list[str]] = {}
    files = split_blanks(findings)
    for index, finding in enumerate(findings):
        file = "" if finding.place is None else finding.place.file
        if file in files and is_blank(finding):
            first = finding is files[file][0]
            shown[index] = describe_blanks(files[file], texts.get(file, "")) if first else []
    return shown
