"""`dprecipe schema`: write the JSON Schemas, or check that the files are up to date."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dprecipe.faults import UsageFault
from dprecipe.schemas import SCHEMAS, schema_text
from dprecipe.screen import write_output


def schema(
    out: Annotated[Path | None, typer.Option(help="The folder; `schemas` by default.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file is out of date.")] = False,
) -> int:
    """Writes every schema into a folder (`schemas` by default); returns the exit code.

    With `check` nothing is written, and a missing or outdated file makes the exit code 1.

    Raises:
        UsageFault: the folder can't be written.
    """
    folder = out if out is not None else Path("schemas")
    stale = [name for name in SCHEMAS if check and _text(folder / name) != schema_text(name)]
    if check:
        for name in stale:
            write_output([f"{folder / name} is out of date: run `dprecipe schema --out {shlex.quote(str(folder))}`"])
        write_output([f"{len(SCHEMAS)} schemas, {len(stale)} out of date"])
        return int(bool(stale))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in SCHEMAS:
            (folder / name).write_text(schema_text(name), encoding="utf-8")
    except OSError as error:
        raise UsageFault(f"{folder} can't be written: {error.strerror}", "name another folder with --out") from None
    write_output([f"wrote {len(SCHEMAS)} schemas into {folder}"])
    return 0


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
