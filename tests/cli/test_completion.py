"""Completion in bash, and in zsh where it is installed: the shells themselves ask, by the functions that they get.

Names of files are completed by the shell, which is told so by no answer (bash, `-o default`) or by `_files` (zsh).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dprecipe.cli.explain import read_titles
from dprecipe.cli.main import COMMANDS
from dprecipe.cli.validate import FORMATS
from dprecipe.contract.table import MECHANISMS
from dprecipe.faults import RunFailed
from dprecipe.release.exports import EXPORTS

ROOT = Path(__file__).parents[2]
BASH = """\
eval "$(_DPRECIPE_COMPLETE=source_bash dprecipe)"
registered=($(complete -p dprecipe))
test "${registered[*]:1:2}" = "-o default" || exit 9
while IFS= read -r line; do
  eval "COMP_WORDS=($line)"
  COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
  COMPREPLY=()
  "${registered[4]}" dprecipe "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
  (IFS=,; echo "${COMPREPLY[*]}")
done
"""
ZSH = """\
compdef() { :; }
_arguments() { print -r -- "${1//$'\\n'/ }"; }
_files() { print -r -- files; }
eval "$(_DPRECIPE_COMPLETE=source_zsh dprecipe)"
while IFS= read -r line; do
  eval "words=($line)"
  CURRENT=$#words
  _dprecipe_completion
done
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with a program `dprecipe`, which is this checkout's."""
    program = tmp_path / "dprecipe"
    lines = (f"#!{sys.executable}", "import sys", f"sys.path.insert(0, {str(ROOT)!r})")
    call = ("from dprecipe.__main__ import main", "main()")
    program.write_text("\n".join((*lines, *call, "")), encoding="utf-8")
    program.chmod(0o755)
    return tmp_path


def ask(shell: str, script: str, programs: Path, *lines: str) -> list[str]:
    """The answers of a shell to each line, whose last word is the one that is written."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    (programs / "script").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [program, str(programs / "script")],
        input="".join(f"dprecipe {line}\n" for line in lines),
        cwd=programs,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.slow
def test_bash_completes_commands_options_and_words(programs: Path) -> None:
    cases = {
        "v": [name for name in COMMANDS if name.startswith("v")],
        "validate --wa": ["--watch"],
        "validate --format ''": list(FORMATS),
        "validate rec": [],  # files: by bash itself
        "run recipes/q": [],
        "init --mechanism ''": list(MECHANISMS),
        "init --like tuned": ["tuned-adult", "tuned-digits"],
        "explain P10": [code for code in read_titles() if code.startswith("P10")],
        "verify --export ''": list(EXPORTS),
        "account sh": ["show"],
        "audit --depth st": ["steps"],
        "export release --format h": ["huggingface"],
    }
    answers = ask("bash", BASH, programs, *cases)
    assert dict(zip(cases, answers, strict=True)) == {line: ",".join(words) for line, words in cases.items()}


def test_zsh_completes_them_with_their_titles(programs: Path) -> None:
    code, title = next((code, title) for code, title in read_titles().items() if "`" in title)
    commands, watch, codes, files = ask(
        "zsh", ZSH, programs, "val", "validate --wa", f"explain {code}", "run recipes/q"
    )
    assert '"validate":' in commands
    assert '"--watch":' in watch
    assert f'"{code}":' in codes
    assert title.split("`")[0] in codes
    assert files == "files"


def test_a_broken_installation_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from dprecipe.cli import completion, explain, gallery

    assert completion.complete_gallery("quick") == ["quickstart"]

    def fail() -> None:
        raise RunFailed("the pages are not installed", "reinstall")

    monkeypatch.setattr(explain, "read_titles", fail)
    monkeypatch.setattr(gallery, "list_recipes", fail)
    assert completion.complete_codes("P") == completion.complete_gallery("") == []
