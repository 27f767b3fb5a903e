"""Reading what a stranger handed over: bounded, no duplicate keys, no NaN, never a traceback."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

MAX_BYTES = 16 * 1024 * 1024
MAX_ERRORS = 20
MAX_WHOLE = 1 << 128
"""Seeds are whole numbers of any size; nothing else comes near. A float still holds it."""
ESSENTIAL = ("predicateType", "predicate")
WORDS = {"missing": "it is missing", "extra_forbidden": "a certificate has no such field"}

NOT_WRITTEN = "says what it should, and is not written as dprecipe writes it: blanks, an order or digits can hide data"

M = TypeVar("M", bound=BaseModel)


class ContentError(Exception):
    """The content is not what it should be; `failures` says why, one line each."""

    def __init__(self, *failures: str) -> None:
        super().__init__("; ".join(failures))
        self.failures = failures


def read_bytes(path: Path) -> bytes:
    """The content of a regular file of at most 16 MiB.

    Raises:
        ContentError: it is none.
    """
    try:
        # A pipe or a device would block or never end, so the kind is asked before opening.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ContentError(f"{path.name}: not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ContentError(f"{path.name}: can't be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise ContentError(f"{path.name}: larger than {MAX_BYTES // 1024**2} MiB")
    return content


def parse_object(content: bytes, name: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ContentError: not UTF-8, not JSON, a key twice, a number that is not finite, a whole one of more than 128 bits,
            nested too deep, no object.
    """
    try:
        parsed = json.loads(content.decode(), object_pairs_hook=_unique, parse_constant=_refuse, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else _short(error)
        raise ContentError(f"{name}: not JSON: {reason}") from None
    if not isinstance(parsed, dict):
        raise ContentError(f"{name}: not a JSON object")
    return parsed


def to_bytes(content: Mapping[str, Any]) -> bytes:
    """A JSON object as the text of a release's file: one way to write each value, so that nothing else is in it."""
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode(errors="surrogatepass")


def validate_document(model: type[M], parsed: dict[str, Any], name: str) -> M:
    """A value of `model`.

    Raises:
        ContentError: naming each field that is missing, unknown, mistyped or out of range.
    """
    try:
        return model.model_validate_json(json.dumps(parsed, allow_nan=False))
    except ValidationError as error:
        result = error.errors(include_url=False, include_input=False, include_context=False)
        if {(e["type"], e["loc"]) for e in result} >= {("missing", (field,)) for field in ESSENTIAL}:
            raise ContentError(f"{name}: this is no certificate of dprecipe") from None
        failures = [f"{_place(e['loc'], parsed) or name}: {_worded(e)}" for e in result[:MAX_ERRORS]]
        if len(result) > MAX_ERRORS:
            failures.append(f"{name}: and {len(result) - MAX_ERRORS} more")
        raise ContentError(*failures) from None
    except (ValueError, RecursionError) as error:
        raise ContentError(f"{name}: {_short(error)}") from None


def _place(loc: Sequence[int | str], parsed: Any) -> str:
    """The path of a field; the tag by which a block was told apart, its `kind`, is none of its keys."""
    path, value = [], parsed
    for step in loc:
        if isinstance(value, dict) and step not in value and step == value.get("kind"):
            continue
        path.append(str(step))
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
    return ".".join(path)


def one_line(text: str) -> str:
    """Somebody else's text without what would start a line, steer a terminal or turn the direction of writing."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _worded(error: ErrorDetails) -> str:
    """What is wrong with a field, in words of ours where a reader meets it often."""
    return WORDS.get(error["type"]) or error["msg"][:1].lower() + error["msg"][1:]


def sha256_of(path: Path) -> str:
    """`sha256:…` of a file's content, read in pieces.

    Raises:
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("an object holds a key twice")
    return content


def _whole(digits: str) -> int:
    if len(digits) > 40 or not -MAX_WHOLE <= (number := int(digits)) < MAX_WHOLE:
        raise ValueError(f"a whole number of {len(digits.lstrip('-'))} digits, which is too large")
    return number


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
