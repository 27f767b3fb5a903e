"""`dprecipe validate --watch`: a process that sees changes, and ends when it is told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from dprecipe.cli import watch as module
from dprecipe.cli.watch import watch
from dprecipe.faults import UsageFault
from dprecipe.recipe.starters import make_starter

ROOT = Path(__file__).parents[2]
RECIPE = make_starter("dpsgd", "digits", "watched")
POLICY = "policy: dprecipe/v1\nname: house\nrules:\n  - {name: strict, max_epsilon: 1.0}\n"
SECONDS = 60


class Watching:
    """A process that watches, and the lines that it prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: Queue[str] = Queue()
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def wait_for(self, words: str) -> str:
        """The text up to the line that has these words."""
        lines = []
        while not lines or words not in lines[-1]:
            lines.append(self._lines.get(timeout=SECONDS))
        return "\n".join(lines)

    def end(self) -> None:
        self.process.kill()
        self._thread.join(SECONDS)


def start(*arguments: str, folder: Path, output: int = subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dprecipe", "validate", "--watch", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=output,
        stderr=subprocess.STDOUT if output == subprocess.PIPE else subprocess.DEVNULL,
        text=True,
        # A shell's background jobs ignore the signal, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@contextmanager
def watching(*arguments: str, folder: Path) -> Iterator[Watching]:
    with start(*arguments, folder=folder) as process:
        shown = Watching(process)
        try:
            yield shown
        finally:
            shown.end()


@pytest.mark.slow
def test_a_process_sees_each_change_and_ends_with_130(tmp_path: Path) -> None:
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    (recipes / "a.yaml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "base.yaml").write_text(RECIPE, encoding="utf-8")
    with watching("recipes", folder=tmp_path) as shown:
        assert "1 recipe: no findings" in shown.wait_for("Ctrl-C ends")
        (recipes / "a.yaml").write_text(RECIPE.replace("epsilon:", "epsilom:"), encoding="utf-8")
        text = shown.wait_for("Ctrl-C ends")
        assert f"{Path('recipes/a.yaml')} has changed" in text
        assert "error[R101] budget.epsilom" in text
        (recipes / "a.yaml").write_text("extends: ../base.yaml\nname: child\n", encoding="utf-8")
        assert "1 recipe: no findings" in shown.wait_for("Ctrl-C ends")
        (tmp_path / "base.yaml").write_text(RECIPE.replace("noise:", "nose:"), encoding="utf-8")
        assert "base.yaml has changed" in (text := shown.wait_for("Ctrl-C ends"))
        assert "mechanism.nose" in text
        (tmp_path / "base.yaml").unlink()
        assert "there is no such file" in shown.wait_for("Ctrl-C ends")
        (tmp_path / "base.yaml").write_text(RECIPE, encoding="utf-8")
        shown.wait_for("Ctrl-C ends")
        (tmp_path / "dprecipe.policy.yaml").write_text(POLICY, encoding="utf-8")
        assert "error[Q" in shown.wait_for("Ctrl-C ends")
        (tmp_path / "dprecipe.policy.yaml").unlink()
        assert "1 recipe: no findings" in shown.wait_for("Ctrl-C ends")
        (recipes / "a.yaml").unlink()
        assert "error: recipes has no *.yaml or *.yml file" in shown.wait_for("Ctrl-C ends")
        (recipes / "b.yml").write_text(RECIPE, encoding="utf-8")
        assert "1 recipe: no findings" in shown.wait_for("Ctrl-C ends")
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(SECONDS) == 130
        shown.wait_for("interrupted")


def test_other_formats_are_printed_again_whole(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(RECIPE, encoding="utf-8")
    with watching("a.yaml", "--format", "json", "--set", "budget.epsilon=2", folder=tmp_path) as shown:
        for change in (1, 2):
            document, _, _ = shown.wait_for("Ctrl-C ends").rpartition("\n")
            assert json.loads(document[document.index("{") :])["recipes"] == 1
            (tmp_path / "a.yaml").write_text(RECIPE + "#" * change, encoding="utf-8")


def test_it_ends_with_the_next_change_when_nobody_reads(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(RECIPE, encoding="utf-8")
    reader, writer = os.pipe()
    with start("a.yaml", folder=tmp_path, output=writer) as process:
        try:
            os.close(writer)
            assert os.read(reader, 100) == b"1 recipe: no findings\n"
            os.close(reader)
            (tmp_path / "a.yaml").write_text(RECIPE + "#", encoding="utf-8")
            assert process.wait(SECONDS) == 4
        finally:
            process.kill()


def test_what_can_not_be_checked_at_first_ends_it(tmp_path: Path) -> None:
    def fail() -> list[str]:
        raise UsageFault("nothing there", "name a recipe")

    with pytest.raises(UsageFault):
        watch(fail, list)


def test_a_change_while_a_recipe_is_checked_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "a.yaml"
    recipe.write_text("a", encoding="utf-8")
    seen: list[str] = []

    def check() -> list[str]:
        seen.append(recipe.read_text("utf-8"))
        if len(seen) == 1:
            recipe.write_text("longer", encoding="utf-8")
        return [str(recipe)]

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", stop)
    with pytest.raises(KeyboardInterrupt):
        watch(check, lambda: [recipe])
    assert seen == ["a", "longer"]
