"""`dprecipe verify`: what is printed, and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dprecipe.cli.main import app
from tests.recipe_texts import SMALL

RECIPE = SMALL + "release: {report: false}\n"


@pytest.fixture
def release(tmp_path: Path, release_of: Any) -> Path:
    return release_of(RECIPE, tmp_path)


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["verify", *map(str, arguments)])


def test_a_sound_release_exits_with_0_and_prints_the_claim(release: Path) -> None:
    result = call(release)
    assert result.exit_code == 0
    assert result.stdout.startswith("verified\n")
    for text in ("differential privacy with respect to adding or removing one record", "checked", "not shown"):
        assert text in result.stdout
    assert "\x1b" not in result.stdout


def test_a_changed_one_exits_with_3_and_names_everything(release: Path) -> None:
    file = release / "certificate.json"
    content = json.loads(file.read_bytes())
    content["predicate"]["claim"]["delta"] = 1e-9
    content["predicate"]["sampling"]["size"] = 7
    file.write_text(json.dumps(content), encoding="utf-8")
    result = call(release)
    assert result.exit_code == 3
    for field in ("claim.delta", "sampling.size"):
        assert f"- {field}: " in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_there_exits_with_2(tmp_path: Path) -> None:
    assert call(tmp_path / "absent").exit_code == 2
    (tmp_path / "certificate.json").write_text("{}", encoding="utf-8")
    assert call(tmp_path, "--public-key", tmp_path / "absent.pem").exit_code == 2


def test_garbage_exits_with_3_and_steers_no_terminal(tmp_path: Path) -> None:
    (tmp_path / "certificate.json").write_text('{"\\u001b[31m": 1}', encoding="utf-8")
    result = call(tmp_path)
    assert result.exit_code == 3
    assert "\x1b" not in result.output


@pytest.mark.slow
def test_it_imports_neither_torch_nor_lightning(release: Path) -> None:
    program = (
        "import sys\nclass Wall:\n def find_spec(self, name, *_):\n"
        "  if name.split('.')[0] in ('torch', 'lightning'): raise AssertionError(name)\n"
        "sys.meta_path.insert(0, Wall())\n"
        f"from dprecipe.cli.verify import verify; from pathlib import Path; verify(Path({str(release)!r}))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_an_export_is_printed_in_the_place_of_the_claim(release: Path) -> None:
    result = call(release, "--export", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["schema"] == "dprecipe.verified/v1"
    (release / "model.json").write_text("{}", encoding="utf-8")
    broken = call(release, "--export", "json")
    assert broken.exit_code == 3
    assert broken.stdout == ""
    wrong = call(release, "--export", "xml")
    assert wrong.exit_code == 2
    assert "registry, nist, sbom, json" in wrong.stderr


def test_card_and_report_are_written_in_the_words_of_this_version(tmp_path: Path, release_of: Any) -> None:
    release = release_of(RECIPE.replace("report: false", "report: true"), tmp_path)
    for form, name in (("card", "card.md"), ("report", "report.html")):
        result = call(release, "--export", form)
        assert result.exit_code == 0
        assert result.stdout.rstrip("\n") == (release / name).read_text(encoding="utf-8").rstrip("\n")
