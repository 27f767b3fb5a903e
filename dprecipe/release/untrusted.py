"""Strangers' files: read with bounds, no duplicate keys, no NaN, never a traceback; and limits on what verifying takes.

The limits are on processor time and memory, measured by the system. An estimate from the document would not be enough:
many things are expensive (codewords, events, phases, positions), and later versions will add others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import stat
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dprecipe.faults import Fault

MAX_BYTES = 16 * 1024 * 1024
MAX_ERRORS = 20
MAX_INTEGER = 1 << 128
"""Only seeds are large integers. A float can still represent this."""
ESSENTIAL = ("predicateType", "predicate")
ERROR_TEXTS = {"missing": "it is missing", "extra_forbidden": "a certificate has no such field"}

NOT_CANONICAL = (
    "has the right content but is not written as dprecipe writes it; blanks, order or digits could hide data"
)

M = TypeVar("M", bound=BaseModel)


class ContentError(Exception):
    """The content is invalid; `failures` says why, one line each."""

    def __init__(self, *failures: str) -> None:
        super().__init__("; ".join(failures))
        self.failures = failures


def read_bytes(path: Path) -> bytes:
    """Returns the content of a regular file of at most 16 MiB.

    Raises:
        ContentError: not a regular file, larger, or unreadable.
    """
    try:
        # A pipe or a device would block or never end, so the kind is checked before opening.
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
    """Parses a JSON object.

    Raises:
        ContentError: not UTF-8, not JSON, a duplicate key, a number that is not finite, an integer of more than 128
            bits, nested too deeply, or not an object.
    """
    try:
        parsed = json.loads(
            content.decode(), object_pairs_hook=_build_object, parse_constant=_refuse_constant, parse_int=_parse_integer
        )
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else _first_line(error)
        raise ContentError(f"{name}: not JSON: {reason}") from None
    if not isinstance(parsed, dict):
        raise ContentError(f"{name}: not a JSON object")
    return parsed


def to_bytes(content: Mapping[str, Any]) -> bytes:
    """Returns a JSON object as the text of a release's file. Each value is written in one way, so the text hides
    nothing."""
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode(errors="surrogatepass")


def validate_document(model: type[M], parsed: dict[str, Any], name: str) -> M:
    """Returns a value of `model`.

    Raises:
        ContentError: naming each field that is missing, unknown, mistyped or out of range.
    """
    try:
        return model.model_validate_json(json.dumps(parsed, allow_nan=False))
    except ValidationError as error:
        result = error.errors(include_url=False, include_input=False, include_context=False)
        if {(e["type"], e["loc"]) for e in result} >= {("missing", (field,)) for field in ESSENTIAL}:
            raise ContentError(f"{name}: this is not a dprecipe certificate") from None
        failures = [f"{_field_path(e['loc'], parsed) or name}: {_describe_error(e)}" for e in result[:MAX_ERRORS]]
        if len(result) > MAX_ERRORS:
            failures.append(f"{name}: and {len(result) - MAX_ERRORS} more")
        raise ContentError(*failures) from None
    except (ValueError, RecursionError) as error:
        raise ContentError(f"{name}: {_first_line(error)}") from None


def _field_path(loc: Sequence[int | str], parsed: Any) -> str:
    """Returns the path of a field. Pydantic adds the `kind` of a block to the location; it is not a key, so it is left
    out."""
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
    """Puts untrusted text on one line: line breaks, control characters and changes of writing direction are escaped."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _describe_error(error: ErrorDetails) -> str:
    """Describes what is wrong with a field, in our own words for frequent errors."""
    return ERROR_TEXTS.get(error["type"]) or error["msg"][:1].lower() + error["msg"][1:]


def sha256_of(path: Path) -> str:
    """Returns `sha256:…` of a file's content, read in pieces.

    Raises:
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("an object has a duplicate key")
    return content


def _parse_integer(digits: str) -> int:
    if len(digits) > 40 or not -MAX_INTEGER <= (number := int(digits)) < MAX_INTEGER:
        raise ValueError(f"an integer of {len(digits.lstrip('-'))} digits, which is too large")
    return number


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


MAX_SECONDS = 120.0
"""Processor time that a stranger's document may take. The certificates of this repository's recipes take a few
seconds."""
MAX_MEMORY = 4 << 30
"""Bytes beyond what the process has at the start."""
REPEAT_SECONDS = 0.5
"""Seconds until the signal is sent again, in case some code caught the first exception."""
STATUS = Path("/proc/self/status")


class Exceeded(BaseException):
    """The time is over. Not an `Exception`: no handler on the way may swallow it and continue."""


@contextlib.contextmanager
def refusing_beyond(seconds: float | None, memory: int | None, refuse: Callable[[str], Fault]) -> Iterator[None]:
    """`bound_resources` for a block that recomputes a stranger's document. `refuse`: the fault for a message.

    Raises:
        Fault: of `refuse`, where the block needs more.
    """
    try:
        with bound_resources(seconds, memory):
            yield
    except (Exceeded, MemoryError) as error:
        is_memory = isinstance(error, MemoryError)
        spent = "memory" if is_memory else f"{seconds:g} s of processor time"
        raise refuse(
            f"recomputing it needs more than the allowed {spent}, so nothing of it is verified. If you trust its "
            f"source, allow more with --max-{'memory' if is_memory else 'seconds'}"
        ) from None


@contextlib.contextmanager
def bound_resources(seconds: float | None, memory: int | None) -> Iterator[None]:
    """Runs a block for at most `seconds` of the process's time on all processors, and with at most `memory` bytes more
    than the process has now. None: no bound.

    Guarantees: the handler, timer and limit are restored. Time is bounded in the main thread of systems that have
    timers (not Windows), memory on Linux; elsewhere the block runs without a bound.

    Raises:
        Exceeded: the time is over.
        MemoryError: from the allocation that would exceed the memory.
    """
    with _bound_memory(memory), _bound_time(seconds):
        yield


@contextlib.contextmanager
def _bound_time(seconds: float | None) -> Iterator[None]:
    has_timer = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if seconds is None or not has_timer or signal.getitimer(signal.ITIMER_PROF)[0]:  # somebody's profiler
        yield
        return

    def raise_exceeded(number: int, frame: types.FrameType | None) -> None:
        raise Exceeded

    previous = signal.signal(signal.SIGPROF, raise_exceeded)
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds, REPEAT_SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


@contextlib.contextmanager
def _bound_memory(memory: int | None) -> Iterator[None]:
    used = _read_data_size()
    if memory is None or used is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    max_data = used + memory
    for limit in (soft, hard):
        if limit != resource.RLIM_INFINITY:
            max_data = min(max_data, limit)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (max_data, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _read_data_size() -> int | None:
    """Bytes of data that the process has; None where the system does not report it."""
    try:
        match = re.search(r"^VmData:\s+(\d+) kB$", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else int(match[1]) * 1024
