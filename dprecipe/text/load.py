"""Text to tree: strict YAML, in one parse, with the place of every key and value.

PyYAML's scanner and parser turn the text into events; the tree is built from the events here, without
recursion and without PyYAML's resolvers and constructors. So a text can't choose a type, share a value or
nest without limit."""

from __future__ import annotations

import os
import re
import stat

from yaml.error import MarkedYAMLError, YAMLError
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
)
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.scanner import Scanner

from dprecipe.faults import Finding, Place, RecipeError
from dprecipe.text import syntax
from dprecipe.text.syntax import find_odd_space, find_space_before, report_split_number
from dprecipe.text.tree import Entry, Mapping, Node, NotFiniteError, Scalar, Sequence, resolve_scalar, to_plain

MAX_BYTES = 512 * 1024
MAX_DEPTH = 24
MAX_NODES = 20_000
MAX_USES = 5

FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no text of a document may have: control characters and unpaired surrogates."""
_DECIMALS = re.compile("[0-9]+(?:[eE][-+]?[0-9]+)?")
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


class _Events(Reader, Scanner, Parser):
    """PyYAML's pure-Python parser: it keeps marks that count characters, which the C one does not."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)


class _UnreadableError(Exception):
    """The text can't be read beyond this finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class _Open:
    """A block or list whose end has not come yet."""

    __slots__ = ("entries", "items", "key", "place")

    def __init__(self, place: Place, is_mapping: bool) -> None:
        self.place = place
        self.entries: dict[str, Entry] | None = {} if is_mapping else None
        self.items: list[Node] = []
        self.key: Node | None = None


class _Builder:
    """Builds one tree from events, collecting findings."""

    def __init__(self, text: str, file: str, column: int) -> None:
        self.lines = split_lines(text)
        self.file, self.column = file, column
        self.findings: list[Finding] = []
        self.root: Node | None = None
        self.documents = self.nodes = 0
        self.stack: list[_Open] = []
        self.anchors: dict[str, tuple[Place, list[Place]]] = {}
        """Each anchor's place, and the places of its aliases."""

    def feed(self, event: Event) -> None:
        if isinstance(event, DocumentStartEvent):
            self._document(event)
        elif isinstance(event, CollectionEndEvent):
            done = self.stack.pop()
            node = (
                Sequence(tuple(done.items), done.place) if done.entries is None else Mapping(done.entries, done.place)
            )
            self._attach(node)
        elif isinstance(event, NodeEvent):
            self._node(event)

    def _document(self, event: DocumentStartEvent) -> None:
        self.documents += 1
        if self.documents > 1:
            raise _UnreadableError(
                Finding(
                    "Y110",
                    "a second document begins here; a recipe is one document",
                    "put each recipe in a file of its own",
                    place=self._place(event),
                )
            )
        if event.version is not None or event.tags:
            self._report(
                "Y109", "a `%` directive is refused", "remove the line that begins with `%`", self._place(event)
            )

    def _node(self, event: NodeEvent) -> None:
        place = self._place(event)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _UnreadableError(
                Finding(
                    "Y113",
                    f"a recipe holds at most {MAX_NODES:,} keys and values",
                    "keep data out of recipes: name a file",
                    place=place,
                )
            )
        if isinstance(event, AliasEvent):
            self._alias(event.anchor or "", place)
            self._attach(Scalar(None, place, broken=True))
            return
        if event.anchor is not None:
            self.anchors[event.anchor] = (place, [])
        tag = getattr(event, "tag", None)
        if tag is not None:
            name = tag.replace("tag:yaml.org,2002:", "!!")
            self._report("Y109", f"the tag {name} is refused", "remove it: the schema decides what a value is", place)
        if isinstance(event, ScalarEvent):
            self._attach(self._scalar(event, place))
        elif isinstance(event, MappingStartEvent | SequenceStartEvent):
            if len(self.stack) >= MAX_DEPTH:
                raise _UnreadableError(
                    Finding(
                        "Y112",
                        f"nested deeper than {MAX_DEPTH} levels",
                        "flatten what stands here",
                        place=place,
                    )
                )
            self.stack.append(_Open(place, isinstance(event, MappingStartEvent)))

    def _alias(self, name: str, place: Place) -> None:
        key = self.stack[-1].key if self.stack else None
        if isinstance(key, Scalar) and key.value == "<<" and not key.quoted:
            return  # the merge key has its own finding
        if name in self.anchors:
            self.anchors[name][1].append(place)
        else:
            self._report("Y107", f"the alias *{name} is refused", "write the value out, or use `extends`", place)

    def end(self) -> None:
        """Reports each anchor once, with all places that have to be written out."""
        for name, (place, uses) in self.anchors.items():
            where = ", ".join(f"{use.line}:{use.column}" for use in uses[:MAX_USES])
            where += f" and at {len(uses) - MAX_USES} more places" if len(uses) > MAX_USES else ""
            message = f"the anchor &{name} is refused" + (f"; it is used at {where}" if uses else "")
            again = f", and write the value out at {where}, or use `extends`" if uses else ""
            self._report("Y107", message, f"remove &{name}{again}", place)

    def _scalar(self, event: ScalarEvent, place: Place) -> Scalar:
        if FORBIDDEN.search(event.value):
            self._report(
                "Y116",
                "the text contains a control character or an unpaired surrogate",
                "remove the escape (such as \\0, \\e or \\ud800) from the text",
                place,
            )
            return Scalar("", place, quoted=True, broken=True)
        if not event.implicit[0]:  # quoted, a block of text, or tagged (and then reported already)
            return Scalar(event.value, place, quoted=True, broken=event.tag is not None)
        odd = find_odd_space(event.value, place)
        if odd is not None:
            self.findings.append(odd)
            return Scalar(event.value, place, broken=True)
        try:
            value = resolve_scalar(event.value)
            return Scalar(value, place, text="" if isinstance(value, str) else event.value)
        except NotFiniteError as error:
            self._report("Y114", str(error), "write a finite number; quote it if it is meant as text", place)
            return Scalar(None, place, broken=True)

    def _attach(self, node: Node) -> None:
        if not self.stack:
            self.root = node
            return
        top = self.stack[-1]
        if top.entries is None:
            top.items.append(node)
        elif top.key is None:
            top.key = node
        else:
            key, top.key = top.key, None
            self._enter(top.entries, key, node)

    def _enter(self, entries: dict[str, Entry], key: Node, value: Node) -> None:
        if self._splits_a_number(entries, key, value):
            return
        if not isinstance(key, Scalar) or not isinstance(key.value, str) or not key.value:
            if not (isinstance(key, Scalar) and key.broken):
                self._report("Y111", "a key must be plain text", "quote it if it is meant as text", key.place)
            return
        if key.value == "<<" and not key.quoted:
            self._report("Y108", "the merge key `<<` is refused", "write the keys out, or use `extends`", key.place)
            return
        first = entries.get(key.value)
        if first is not None:
            where = f"{first.place.line}:{first.place.column}"
            self._report("Y106", f"the key `{key.value}` is already at {where}", "remove one of the two", key.place)
            return
        if not key.broken:
            entries[key.value] = Entry(key.place, value)

    def _splits_a_number(self, entries: dict[str, Entry], key: Node, value: Node) -> bool:
        """Returns True if a key is the part after the comma of `2,0`: the only finding about the number then."""
        name = next(reversed(entries), None)
        whole = None if name is None else entries[name].value
        if name is None or not isinstance(whole, Scalar) or not isinstance(key, Scalar) or key.quoted or whole.quoted:
            return False
        if not isinstance(whole.value, int) or isinstance(whole.value, bool) or to_plain(value) is not None:
            return False
        place, rest = whole.place, self.text_at(key.place)
        after = (place.line, place.column + place.width + 1)
        if (key.place.line, key.place.column) != after or not _DECIMALS.fullmatch(rest):
            return False
        self.findings.append(report_split_number(whole.value, rest, place))
        entries[name] = Entry(entries[name].place, Scalar(None, place, broken=True))
        return True

    def text_at(self, place: Place) -> str:
        """Returns the text that is written at a place."""
        start = place.column - (self.column if place.line == 1 else 1)
        return self.lines[place.line - 1][start : start + place.width]

    def _place(self, event: Event) -> Place:
        start, end = event.start_mark, event.end_mark
        if start is None or end is None:  # the parser marks all its events
            return Place(self.file, 1, self.column)
        width = end.column - start.column if end.line == start.line else 1
        column = start.column + (self.column if start.line == 0 else 1)
        return Place(self.file, start.line + 1, column, max(1, width))

    def _report(self, code: str, message: str, remedy: str, place: Place) -> None:
        self.findings.append(Finding(code, message, remedy, place=place))


def parse(text: str, file: str, column: int = 1) -> tuple[Node | None, tuple[Finding, ...]]:
    """Reads a text. Never raises: errors are returned as findings, in the order of the text.

    The tree is None where the text could not be read to its end, and for an empty document. `column` is
    where the text begins on its first line (the value of an override begins after its path)."""
    unreadable = _not_text(text, file, column)
    if unreadable is not None:
        return None, (unreadable,)
    builder = _Builder(text, file, column)
    try:
        # The reader checks the text in its constructor, so it is constructed inside the `try`.
        events = _Events(text)
        while events.check_event():
            builder.feed(events.get_event())  # type: ignore[no-untyped-call]
        builder.end()
    except _UnreadableError as stop:
        return None, (*builder.findings, stop.finding)
    except MarkedYAMLError as error:
        findings = syntax.explain_syntax_error(error, builder.lines, file, column)
        slip = (
            find_space_before(builder.lines, findings.place.line, file, column)
            if findings.place and findings.code == "Y104"
            else None
        )
        return None, tuple(dict.fromkeys((*builder.findings, slip or findings)))
    except (YAMLError, ValueError, OverflowError):  # a character code beyond Unicode: chr() refuses
        place = Place(file, 1, column)
        return None, (
            *builder.findings,
            Finding("Y104", "the YAML can't be read", "check its escapes", place=place),
        )
    return builder.root, tuple(builder.findings)


def report_not_a_block(root: Node | None, file: str) -> Finding:
    """Returns the finding for a document that is not a block of keys."""
    empty = root is None or (isinstance(root, Scalar) and root.value is None)
    what = "the document is empty" if empty else "the document is a list or a single value"
    return Finding(
        "Y115",
        f"{what}; a recipe is a block of keys",
        "begin with `recipe: dprecipe/v1`; `dprecipe init` writes a starter",
        place=Place(file, 1, 1),
    )


def _not_text(text: str, file: str, column: int) -> Finding | None:
    if len(text) > MAX_BYTES:
        return report_too_large(file)
    match = FORBIDDEN.search(text)
    if match is None:
        return None
    lines = _LINE_BREAK.split(text[: match.start()])
    place = Place(file, len(lines), len(lines[-1]) + (column if len(lines) == 1 else 1))
    return Finding(
        "Y103",
        f"the character U+{ord(match[0]):04X} does not belong in a text",
        "save it as plain UTF-8",
        place=place,
    )


def report_too_large(file: str) -> Finding:
    """Returns the finding for a text that is too long."""
    return Finding(
        "Y102",
        f"a recipe has at most {MAX_BYTES // 1024} KiB",
        "keep data out of recipes: name a file",
        place=Place(file, 1, 1),
    )


def split_lines(text: str) -> list[str]:
    """Returns the lines of a text, as places count them."""
    return _LINE_BREAK.split(text)


def read_file(path: str) -> str:
    """Returns the text of a file, verbatim.

    Raises:
        RecipeError: it is missing, a folder, a device, unreadable, too large or not UTF-8; one finding.
    """
    try:
        # A pipe or device would block or never end, so the kind is asked before opening.
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise _refusal(path, "Y101", "it is a folder", "name a file")
        if not stat.S_ISREG(mode):
            raise _refusal(path, "Y101", "it is not a regular file", "name a file")
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _refusal(path, "Y101", "there is no such file", "check the path") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "the path is not valid"
        raise _refusal(
            path, "Y101", f"it can't be read: {reason.lower()}", "check the path and its permissions"
        ) from None
    if len(data) > MAX_BYTES:
        raise RecipeError((report_too_large(path),))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        finding = Finding(
            "Y103", "the file is not UTF-8 text", "save it as plain UTF-8", place=Place(path, line, column)
        )
        raise RecipeError((finding,)) from None


def _refusal(path: str, code: str, message: str, remedy: str) -> RecipeError:
    return RecipeError((Finding(code, message, remedy, place=Place(path, 1, 1)),))
