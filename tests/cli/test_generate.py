"""`dprecipe generate`: a release and a prompt in, texts out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from dprecipe.cli.main import app  # noqa: E402
from tests.languages import write_release  # noqa: E402


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["generate", *map(str, arguments)])


@pytest.fixture
def release(tmp_path: Path) -> Path:
    write_release(tmp_path / "release")
    return tmp_path / "release"


def test_texts_are_printed_and_a_seed_repeats_them(release: Path) -> None:
    flags = ("--prompt", "you ", "--count", 2, "--max-tokens", 6, "--temperature", 0.7, "--top-p", 0.9, "--no-verify")
    first, second = (call(release, *flags, "--seed", 3) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert first.stdout == second.stdout
    assert first.stdout.startswith("--- 1 of 2 ---\n")
    other = call(release, *flags, "--seed", 4, "--output", "json")
    document = json.loads(other.stdout)
    assert (document["schema"], document["prompt"], len(document["texts"])) == ("dprecipe.generated/v1", "you ", 2)


def test_a_release_without_a_certificate_is_refused_unless_asked(release: Path) -> None:
    done = call(release, "--prompt", "you")
    assert done.exit_code != 0
    assert "certificate.json" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--prompt", "a" * 40), "40 tokens, and the model reads 32"),
        (("--temperature", "-1"), "the temperature is -1.0"),
        (("--top-p", "0"), "top-p is 0.0"),
        (("--max-tokens", "0"), "0 tokens can't be generated"),
        (("--count", "0"), "0 texts can't be generated"),
        (("--seed", "-1"), "the seed is -1"),
        (("--output", "xml"), "'xml' is no output"),
        (("--base", "elsewhere"), "needs no base"),
        (("--device", "tpu"), "'tpu' is none of auto, cpu, cuda, mps"),
    ],
)
def test_wrong_use_is_told_in_a_line(release: Path, flags: tuple[str, ...], message: str) -> None:
    done = call(release, "--no-verify", *flags)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_control_characters_of_a_model_do_not_reach_the_terminal(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dprecipe.models.language_model import LanguageModel

    monkeypatch.setattr(LanguageModel, "generate", lambda *_, **__: ["\x1b[31mred\u202e"])
    assert call(release, "--no-verify").stdout == "\\u001b[31mred\\u202e\n"
