"""A runner as the action needs it: it fills in expressions, runs each step, and reads what they print.

Source: docs.github.com, "Metadata syntax for GitHub Actions" and "Workflow commands for GitHub Actions".
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
COMMAND = re.compile(r"::(error|warning|notice) ([^:]*)::(.*)")
Texts = Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """The results of a run of the action."""

    code: int
    annotations: list[dict[str, str]]
    outputs: dict[str, str]
    log: str
    errors: str


def run_action(
    checkout: Path, temporary: Path, inputs: Texts | None = None, *, skipped: tuple[str, ...] = ()
) -> Outcome:
    """Runs the steps of `action.yml` in a checkout, but for those `skipped`, until one fails."""
    values = {f"inputs.{name}": str(each.get("default", "")) for name, each in ACTION["inputs"].items()}
    values |= {f"inputs.{name}": value for name, value in (inputs or {}).items()} | {"github.action_path": str(ROOT)}
    code, log, errors = 0, "", ""
    for number, step in enumerate(ACTION["runs"]["steps"]):
        if code or step["name"] in skipped:
            continue
        file = temporary / f"output-{number}"
        file.touch()
        script = temporary / f"script-{number}.sh"
        script.write_text(step["run"], encoding="utf-8")
        variables = {name: fill(text, values) for name, text in step["env"].items()}
        done = subprocess.run(
            [shutil.which("bash") or "bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=checkout,
            env={**os.environ, "RUNNER_TEMP": str(temporary), "GITHUB_OUTPUT": str(file), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        code, log, errors = done.returncode, log + done.stdout, errors + done.stderr
        named = dict(line.split("=", 1) for line in file.read_text(encoding="utf-8").splitlines())
        values |= {f"steps.{step.get('id')}.outputs.{name}": value for name, value in named.items()}
    outputs = {name: fill(each["value"], values) for name, each in ACTION["outputs"].items()}
    return Outcome(code, read_annotations(log), outputs, log, errors)


def fill(text: str, values: Texts) -> str:
    """Replaces each expression by its value; one without a value is empty."""
    return re.sub(r"\$\{\{\s*([\w.-]+)\s*\}\}", lambda found: values.get(found[1], ""), text)


def read_annotations(log: str) -> list[dict[str, str]]:
    """The annotations among the printed lines: level, properties, and the message with its escapes undone."""
    annotations = []
    for line in log.splitlines():
        if found := COMMAND.fullmatch(line):
            properties = dict(each.split("=", 1) for each in found[2].split(","))
            texts = {name: unescape(value) for name, value in properties.items()}
            annotations.append({"level": found[1], **texts, "message": unescape(found[3])})
    return annotations


def unescape(text: str) -> str:
    """Undoes the escapes of a workflow command; the percent sign is last."""
    for code in ("0D", "0A", "3A", "2C", "25"):
        text = text.replace(f"%{code}", chr(int(code, 16)))
    return text
