"""Guards around a command: faults become a message and an exit code, and a failed write stops no run.

Exit codes are those of `docs/reference/contract.md`. Standard output may fail: a full disk, a reader that has gone, a
closed descriptor. That is reported at the end.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, ParamSpec, TextIO, final

import typer

from dprecipe import screen
from dprecipe.faults import Fault, Place, PlanRefused, RecipeError
from dprecipe.libraries import is_failure

P = ParamSpec("P")
INTERNAL, INTERRUPTED = 4, 130


def guard_faults(command: Callable[P, int | None]) -> Callable[P, None]:
    """Turns faults into a message and an exit code. A traceback is shown only with `--debug`."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with reporting_faults(kwargs.get("overrides")):
            code = command(*args, **kwargs)
        raise typer.Exit(code or 0)

    return run


@contextmanager
def reporting_faults(overrides: object = None) -> Iterator[None]:
    """Reports a fault of the block, and exits with its code. `overrides`: those of the command line, which a finding
    may point into."""
    try:
        yield
        return
    except Fault as fault:
        show_traceback()
        screen.write_note(*_describe_fault(fault, overrides))
        code = fault.exit_code
    except KeyboardInterrupt:
        show_traceback()
        screen.write_note("interrupted")
        code = INTERRUPTED
    except BaseException as error:  # the outermost guard: a bug of ours, reported in one line
        if not is_failure(error):
            raise
        show_traceback()
        screen.write_note(f"internal error: {_describe_error(error)}")
        code = INTERNAL
    raise typer.Exit(code)


def _describe_fault(fault: Fault, overrides: object) -> list[str]:
    from dprecipe.cli import render

    if isinstance(fault, RecipeError | PlanRefused):
        overrides_given = overrides if isinstance(overrides, list) else []
        texts = {f"--set #{index + 1}": str(override) for index, override in enumerate(overrides_given)}
        texts |= fault.texts if isinstance(fault, RecipeError) else _texts_of(fault)
        refused = [] if isinstance(fault, RecipeError) else ["refused"]
        hint = render.hint_at_pages(fault.findings, screen.is_watched())
        return [*refused, *render.as_lines(fault.findings, texts), *hint]
    lines = list_lines(fault)
    if fault.private:
        shown = [f"  in this terminal only: {line}" for line in fault.private.split("\n")]
        lines += shown if sys.stderr.isatty() else ["  (a terminal shows where and how many; a log must not)"]
    return lines


def list_lines(fault: Fault) -> list[str]:
    """Returns a fault's message and remedy, for any reader. A line break may come from a stranger: the lines after it
    are marked as part of the message."""
    first, *more = fault.message.split("\n")
    continuation = [line if line.startswith("- ") else f"  | {line}" for line in more]
    return [f"error: {first}", *continuation, *([f"  = {fault.remedy}"] if fault.remedy else [])]


def _describe_error(error: BaseException) -> str:
    """Describes an error; its message may quote a value of a record, so a terminal shows it and a log does not."""
    name, message = type(error).__name__, str(error)[:200]
    if _debugging():
        return f"{name}: {message}"
    if screen.is_watched():
        return f"{name}: {message}; run with --debug to see where"
    return f"{name}; a terminal, or --debug, shows what it says: a log must not, because it may quote a record"


def _texts_of(refusal: PlanRefused) -> dict[str, str]:
    """Returns the texts of the files that a refusal points into, to show the lines."""
    from dprecipe.text.load import read_file

    texts: dict[str, str] = {}
    for place in {finding.place for finding in refusal.findings if isinstance(finding.place, Place)}:
        with suppress(RecipeError):
            texts[place.file] = read_file(place.file)
    return texts


def _debugging() -> bool:
    return "--debug" in sys.argv


def show_traceback() -> None:
    if _debugging():
        traceback.print_exc()


CLOSED = "it is closed"


@final
class Output:
    """A text stream that remembers its first error, and drops everything after it."""

    def __init__(self, stream: TextIO | None) -> None:
        self.stream: TextIO = io.StringIO() if stream is None else stream
        self.error = CLOSED if stream is None else ""
        self.reader_left = False

    def write(self, text: str) -> int:
        self._try(lambda: self.stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(lambda: self.stream.flush())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def _try(self, act: Any) -> None:
        if self.error:
            return
        try:
            act()
        except (OSError, ValueError) as error:
            self.error = str(getattr(error, "strerror", None) or error)
            self.reader_left = isinstance(error, BrokenPipeError)
            with suppress(OSError, ValueError):
                # The buffered rest would fail again when the interpreter exits.
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.stream.fileno())
                os.close(null)


def is_output_read() -> bool:
    """Returns False once the reader of the output of this process has left."""
    return not (isinstance(sys.stdout, Output) and sys.stdout.reader_left)


def open_descriptors() -> None:
    """Opens the descriptors 0, 1 and 2 where they are closed. Otherwise the next file opened, such as a ledger, would
    receive what libraries print."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


@contextmanager
def guarded_output() -> Iterator[Output]:
    """Makes the standard streams `Output`s inside the block; yields the standard output."""
    previous = sys.stdout, sys.stderr
    open_descriptors()
    out, err = Output(previous[0]), Output(previous[1])
    sys.stdout, sys.stderr = out, err
    try:
        yield out
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = previous
