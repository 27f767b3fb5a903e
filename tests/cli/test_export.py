"""`dprecipe export`: what it writes, and what it refuses. The formats themselves: tests/models/test_onnx.py and
tests/release/test_distribution.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed")

from dprecipe.cli.main import app  # noqa: E402
from tests.cli.test_predict import TABLE, make_release  # noqa: E402


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


@pytest.fixture
def release(tmp_path: Path) -> Path:
    make_release(tmp_path / "release", TABLE)
    return tmp_path / "release"


@pytest.mark.slow
def test_an_onnx_file_names_what_it_was_made_from(release: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    (release / "certificate.json").write_text("{}")
    out = tmp_path / "model.onnx"
    done = call(release, "--format", "onnx", "--out", out, "--no-verify")
    assert done.exit_code == 0, done.output
    assert "its outputs differ from torch's by at most" in done.stderr
    metadata = runtime.InferenceSession(str(out)).get_modelmeta().custom_metadata_map
    assert {name for name in metadata if name.startswith("dprecipe:")} == {
        "dprecipe:model.json",
        "dprecipe:model.safetensors",
        "dprecipe:certificate.json",
    }
    assert metadata["dprecipe:certificate.json"] == (
        "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--format", "pickle", "--out", "x"], 2, "'pickle' is no format"),
        (["--format", "onnx", "--out", "release"], 2, "nothing is overwritten"),
        (["--format", "onnx", "--out", "x.onnx", "--license", "mit"], 2, "remove --license"),
        (["--format", "huggingface", "--out", "x", "--no-verify"], 2, "remove --no-verify"),
        (["--format", "huggingface", "--out", "x"], 2, "there is no certificate.json"),
    ],
)
def test_what_is_refused(
    release: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(release.parent)
    done = call(release, *arguments)
    assert (done.exit_code, message in done.stderr) == (code, True), done.output
    assert sorted(path.name for path in release.parent.iterdir()) == ["release"]


@pytest.mark.slow
def test_a_folder_for_the_hub_verifies_and_loads(tmp_path: Path) -> None:
    import dprecipe

    recipe = tmp_path / "digits.yaml"
    recipe.write_text(
        TABLE[: TABLE.index("data:")]
        + "data: {train: {source: digits, split: train}, size: 1438}\n"
        + TABLE[TABLE.index("model:") :]
        + "meta: {license: mit}\n"
    )
    run = dprecipe.run(dprecipe.plan(dprecipe.load(recipe)), out=tmp_path / "run")
    done = call(run.release, "--format", "huggingface", "--out", tmp_path / "hub")
    assert done.exit_code == 0, done.output
    assert 'license: "mit"' in (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
    dprecipe.verify(tmp_path / "hub" / "release")
    snapshot = tmp_path / "snapshot" / "release"  # as the hub's cache has it: links
    snapshot.mkdir(parents=True)
    for path in (tmp_path / "hub" / "release").iterdir():
        (snapshot / path.name).symlink_to(path)
    images = [[[0.5] * 8] * 8]
    assert (
        dprecipe.load_model(snapshot.parent).predict(images) == dprecipe.load_model(run.release).predict(images)
    ).all()
