"""Plants bugs in a copy of the package, and audits recipes with it. The package itself has no switch for that."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.planted.bug import Bug, Depth
from tests.planted.recipes import RECIPES

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "dprecipe"
MAX_SECONDS = 300
ACCUSED = 4
"""The exit code of an audit that found a fault, of a probe that did, and of a program that crashed."""
CRASHED = re.compile(r"internal (?:error|fault)|Traceback")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an audit said."""

    code: int
    seconds: float
    """Of the processor."""
    output: str
    audit: dict[str, Any] | None
    """As the command writes it; None where the program's own checks refused it before."""

    @property
    def accused_by(self) -> tuple[str, ...]:
        """The depths and names of the tests and bounds that accuse the program, or what its own checks say."""
        if self.audit is not None:
            failed = [test for test in self.audit["tests"] if not test["passed"]]
            failed += [bound for bound in self.audit["bounds"] if bound["refuted"]]
            return tuple(f"{one['depth']}: {one['id']}" for one in failed)
        return ("probe",) if self.code == ACCUSED and not CRASHED.search(self.output) else ()


class Workshop:
    """A copy of the package, and a server that runs its commands; a context manager."""

    def __init__(self, folder: Path, package: Path = PACKAGE) -> None:
        """`folder` is empty and of this workshop alone."""
        self._folder = folder
        self._copy = folder / "copy" / "dprecipe"
        self._package = package
        shutil.copytree(package, self._copy)
        self._number = 0

    def __enter__(self) -> Workshop:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}  # the copy keeps bytecode
        environment["PYTHONPATH"] = str(self._copy.parent)
        self._server = subprocess.Popen(
            [sys.executable, str(HERE / "server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=self._folder,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in (self._server.stdin, self._server.stdout):
            if stream is not None:
                stream.close()
        self._server.wait()

    @contextmanager
    def planted(self, bug: Bug) -> Iterator[None]:
        """Inside, the copy has this bug."""
        texts = bug.texts(self._package)
        try:
            for path, text in texts.items():
                (self._copy / path).write_text(text, encoding="utf-8")
                for compiled in (self._copy / path).parent.glob(f"__pycache__/{Path(path).stem}.*"):
                    compiled.unlink()
            yield
        finally:
            for path in texts:
                shutil.copy2(self._package / path, self._copy / path)

    def rehearse(self, recipe: str) -> Outcome:
        """Make the checks that every run makes before its first record, and a few steps."""
        file = self._write(RECIPES[recipe]) / "recipe.yaml"
        code, used, output = self.run(["run", str(file), "--rehearse"])
        return Outcome(code, used, output, None)

    def audit(self, recipe: str, depth: Depth, *more: str, seconds: int = MAX_SECONDS) -> Outcome:
        """Audit a recipe of `RECIPES` with the copy as it is."""
        folder = self._write(RECIPES[recipe])
        file, result = folder / "recipe.yaml", folder / "audit.json"
        code, used, output = self.run(["audit", str(file), "--depth", depth, "--out", str(result), *more], seconds)
        audit = json.loads(result.read_bytes())["audit"] if result.exists() else None
        return Outcome(code, used, output, audit)

    def run_with_canaries(self, text: str) -> dict[str, Any]:
        """Run a recipe that has canaries: the bound of their names and the test of their scores, as the certificate
        has them, or the file that says why there is none."""
        folder = self._write(text)
        code, _, output = self.run(["run", str(folder / "recipe.yaml"), "--out", str(folder / "run")])
        if code == ACCUSED and (folder / "run/private/refuted.json").exists():
            told: dict[str, Any] = json.loads((folder / "run/private/refuted.json").read_bytes())
            return told
        assert code == 0, output
        audit = json.loads((folder / "run/release/certificate.json").read_bytes())["predicate"]["audit"]
        return {"bound": audit["bounds"][-1], "specification": audit["specification"]}

    def run(self, arguments: Sequence[str], seconds: int = MAX_SECONDS) -> tuple[int, float, str]:
        """Run a command of the copy: its exit code, its processor time, and what it wrote."""
        output = self._folder / "output.txt"
        request = {"root": str(self._copy.parent), "arguments": list(arguments), "output": str(output)}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps({**request, "seconds": seconds}) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        return answer["code"], answer["seconds"], output.read_text(encoding="utf-8", errors="replace")

    def _write(self, text: str) -> Path:
        """A new folder with this recipe's file."""
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir()
        (folder / "recipe.yaml").write_text(text, encoding="utf-8")
        return folder
