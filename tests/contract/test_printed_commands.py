"""Commands that a message names can be pasted: paths in them are quoted for a shell."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import typer

import dprecipe
from dprecipe.cli.main import app

SOURCES = sorted(Path(dprecipe.__file__).parent.rglob("*.py"))
NAMES = "|".join(sorted(typer.main.get_command(app).commands))  # type: ignore[attr-defined]
COMMAND = re.compile(rf"dprecipe ({NAMES})( [a-z]+)*( [A-Z]+)*( --[a-z-]+)? $")
NO_PATHS = ("dprecipe explain ", " --shard ")
"""Ends of a text that a code or a number follows, never a path."""


def test_no_message_names_a_command_with_an_unquoted_path() -> None:
    checked, unquoted = 0, []
    for source in SOURCES:
        for text in (
            node for node in ast.walk(ast.parse(source.read_text("utf-8"))) if isinstance(node, ast.JoinedStr)
        ):
            said = ""
            for part in text.values:
                if isinstance(part, ast.Constant):
                    said += str(part.value)
                    continue
                assert isinstance(part, ast.FormattedValue)
                if COMMAND.search(said) and not said.endswith(NO_PATHS):
                    checked += 1
                    if not ast.unparse(part.value).startswith("shlex."):
                        unquoted.append(f"{source.name}:{part.lineno}: {said}{{{ast.unparse(part.value)}}}")
                said += "…"
    assert checked > 10
    assert unquoted == []
