"""Values to text: YAML that this loader, and any other, reads back as the same values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dprecipe.faults import UsageFault
from dprecipe.screen import make_printable
from dprecipe.text.tree import NotFiniteError, Path, resolve_scalar

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*(?: [A-Za-z0-9_./+-]+)*")
# Words that YAML 1.1 readers take for something else than text.
_YAML_11 = re.compile(r"(?i)y|n|yes|no|on|off|true|false|null")

Comment = Callable[[Path], str]


def dump(values: Mapping[str, Any], comment: Comment | None = None) -> str:
    """Returns a block as YAML text; `comment(path)` ends the line of every scalar, flow list and empty block."""
    if not values:
        return "{}\n"
    lines: list[str] = []
    _block(values, (), "", lines, comment or (lambda path: ""))
    return "\n".join(lines) + "\n"


def dump_inline(value: Any) -> str:
    """Returns one value on one line, as `--set` takes it.

    Raises:
        UsageFault: the value is of a type that no recipe can hold.
    """
    return _flow(value)


def _block(values: Mapping[str, Any], path: Path, indent: str, lines: list[str], comment: Comment) -> None:
    for key, value in values.items():
        _entry(f"{indent}{_text(key)}:", value, (*path, key), indent + "  ", lines, comment)


def _entry(head: str, value: Any, path: Path, indent: str, lines: list[str], comment: Comment) -> None:
    if isinstance(value, Mapping) and value:
        lines.append(head)
        _block(value, path, indent, lines, comment)
    elif _is_list(value) and value and any(isinstance(item, Mapping) or _is_list(item) for item in value):
        lines.append(head)
        _items(value, path, indent, lines, comment)
    else:
        note = comment(path)
        lines.append(f"{head} {_flow(value)}" + (f"  # {note}" if note else ""))


def _items(values: Sequence[Any], path: Path, indent: str, lines: list[str], comment: Comment) -> None:
    for index, item in enumerate(values):
        here = (*path, index)
        if isinstance(item, Mapping) and item:
            start = len(lines)
            _block(item, here, indent + "  ", lines, comment)
            lines[start] = f"{indent}- {lines[start].lstrip(' ')}"
        else:
            _entry(f"{indent}-", item, here, indent + "  ", lines, comment)


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if _is_list(value):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return _number(value)
    if value is None or isinstance(value, int):
        return json.dumps(value)
    raise UsageFault(f"a recipe can't hold a {type(value).__name__}", "give a number, a text, a list or a mapping")


def _number(value: float) -> str:
    mantissa, e, exponent = repr(value).partition("e")
    # With a dot, readers of YAML 1.1 take it for a number too.
    return f"{mantissa}.0e{exponent}" if e and "." not in mantissa else repr(value)


def _text(value: str) -> str:
    if _PLAIN.fullmatch(value) and not _YAML_11.fullmatch(value) and len(value) <= 120:
        try:
            if resolve_scalar(value) == value:
                return value
        except NotFiniteError:
            pass
    return make_printable(json.dumps(value, ensure_ascii=False))


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)
