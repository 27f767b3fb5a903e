"""The container files: what they copy is there, they run as nobody in particular, and the verifier has no torch."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from dprecipe.libraries import EXTRAS
from tests.packaging.container_files import CONTAINERS, ROOT, copied, instructions

VERIFY = ROOT / "containers" / "verify.Dockerfile"


def installs(path: Path) -> list[str]:
    """The files that pip installs from the copied source."""
    commands = [command for name, text in instructions(path) if name == "RUN" for command in text.split("&&")]
    words = [shlex.split(command) for command in commands if "install" in command]
    return [word for command in words for word in command if word == "." or word.startswith(".[")]


def test_there_is_one_that_verifies_and_one_that_trains() -> None:
    assert [path.name for path in CONTAINERS] == ["train.Dockerfile", "verify.Dockerfile"]
    assert installs(VERIFY) == ["."]
    assert installs(VERIFY.with_name("train.Dockerfile")) == [".[train]"]


def test_the_verifier_names_no_library_of_an_extra() -> None:
    said = " ".join(text for _, text in instructions(VERIFY))
    assert [name for names in EXTRAS.values() for name in names if re.search(rf"\b{name}\b", said)] == []


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.stem)
def test_what_is_copied_is_there_and_not_left_out_by_dockerignore(path: Path) -> None:
    allowed = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    assert len(copied(path)) >= 5
    assert [source for source in copied(path) if not (ROOT / source).exists()] == []
    assert set(copied(path)) == allowed


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.stem)
def test_a_base_is_pinned_to_a_version_of_python_that_is_promised(path: Path) -> None:
    bases = [text.split()[0] for name, text in instructions(path) if name == "FROM"]
    assert len(set(bases)) == 1, "the environment is of the Python that runs it"
    found = re.fullmatch(r"python:(3\.\d+)-slim-\w+", bases[0])
    assert found
    assert f"Python :: {found[1]}" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.stem)
def test_it_runs_without_rights_and_what_it_runs_was_installed(path: Path) -> None:
    final = instructions(path)
    final = final[max(index for index, (name, _) in enumerate(final) if name == "FROM") :]
    users = [text for name, text in final if name == "USER"]
    assert len(users) == 1
    assert all(int(part) >= 1000 for part in users[0].split(":"))
    names = [name for name, _ in final]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "RUN" not in names, "the last stage holds what was copied into it"
    (program,) = json.loads(next(text for name, text in final if name == "ENTRYPOINT"))
    assert any(text == f"--from=build {Path(program).parents[1]} {Path(program).parents[1]}" for _, text in final)


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.stem)
def test_every_install_takes_the_pinned_packages(path: Path) -> None:
    commands = [command for name, text in instructions(path) if name == "RUN" for command in text.split("&&")]
    installing = [command for command in commands if " install " in command]
    assert len(installing) == 2
    assert [command for command in installing if "-c constraints.txt" not in command] == []
