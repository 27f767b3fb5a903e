"""`dprecipe predict`: a release and a file in, a line for each record out."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow.parquet as pq  # noqa: E402
from pydantic import TypeAdapter  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from dprecipe.cli.main import app  # noqa: E402
from dprecipe.data.facts import describe_data  # noqa: E402
from dprecipe.data.schema import Data  # noqa: E402
from dprecipe.models.build import build  # noqa: E402
from dprecipe.models.file import describe_file  # noqa: E402
from dprecipe.models.load import load  # noqa: E402
from dprecipe.models.schema import Model  # noqa: E402
from dprecipe.recipe.read import read_text  # noqa: E402
from tests.recipe_texts import FULL_BATCH  # noqa: E402

REST = FULL_BATCH + "training: {steps: 5, optimizer: {kind: sgd, lr: 0.5}}\nrelease: {report: false}\n"
TABLE = f"""\
recipe: dprecipe/v1
name: ward
data:
  train:
    source: csv
    path: t.csv
    columns:
      age: {{kind: numeric, min: 0, max: 100, missing: 40}}
      sex: {{kind: category, values: [f, m]}}
    label: {{column: ill, values: ["no", "yes"]}}
  size: 1000
  preprocess: [{{one_hot: {{}}}}]
{REST}"""
IMAGES = f"""\
recipe: dprecipe/v1
name: pictures
data:
  train:
    source: parquet
    path: t.parquet
    image: {{column: image, shape: [8, 8, 1]}}
    label: {{column: y, classes: 10}}
  size: 1000
{REST}"""


def make_release(folder: Path, recipe: str, label: dict[str, Any] | None = None, kind: str = "") -> None:
    """Weights that no run has learned, with what describes them; `label` and `kind` (of the model) of another one."""
    content = read_text(recipe).recipe
    data, spec = content.data.model_dump(mode="json", exclude_none=True), content.model.model_dump(mode="json")
    if label is not None:
        data["train"]["label"] = label
    block = Data.model_validate_json(json.dumps(data))
    model: Model = TypeAdapter(Model).validate_json(json.dumps({"kind": kind} if kind else spec))
    facts = describe_data(block)
    module = build(model, facts.shape, facts.outputs, 0)
    generator = torch.Generator().manual_seed(1)
    state = {name: torch.randn(value.shape, generator=generator) for name, value in module.state_dict().items()}
    folder.mkdir()
    (folder / "model.json").write_text(json.dumps(describe_file(model, block)))
    save_file(state, folder / "model.safetensors")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    make_release(tmp_path / "release", TABLE)
    return tmp_path / "release"


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


ROWS = [("a", "50", "m"), ("b", "", "f"), ("c", "1000", "x"), ("d", "7", "f")]


def write_csv(path: Path, rows: Sequence[tuple[str, ...]] = ROWS, delimiter: str = ",", times: int = 1) -> Path:
    lines = [("id", "age", "sex"), *list(rows) * times]
    path.write_text("".join(delimiter.join(line) + "\n" for line in lines))
    return path


def expected_of(release: Path) -> list[str]:
    rows = [{"age": age, "sex": sex} for _, age, sex in ROWS]
    with pytest.warns(UserWarning, match="1 clamped"):
        return load(release).predict(rows).tolist()


def test_a_line_for_each_record_in_its_order(release: Path, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "new.csv")
    done = call(release, file, "--no-verify", "--keep", "id", "--probabilities")
    assert done.exit_code == 0, done.output
    rows = rows_of(done.stdout)
    assert [row["id"] for row in rows] == ["a", "b", "c", "d"]
    assert [row["prediction"] for row in rows] == expected_of(release)
    for row in rows:
        chances = {name: float(row[f"probability_{name}"]) for name in ("no", "yes")}
        assert sum(chances.values()) == pytest.approx(1)
        assert max(chances, key=chances.__getitem__) == row["prediction"]
    assert "the certificate protects the records of training, not those of new.csv" in done.stderr
    assert "clamped" not in done.stderr  # counts of records are for a terminal


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_the_delimiter_is_found_in_the_header(release: Path, tmp_path: Path, delimiter: str) -> None:
    done = call(release, write_csv(tmp_path / "new.csv", delimiter=delimiter), "--no-verify")
    assert [row["prediction"] for row in rows_of(done.stdout)] == expected_of(release)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_parquet_in_and_a_file_out(release: Path, tmp_path: Path, ending: str) -> None:
    columns = dict(zip(("id", "age", "sex"), map(list, zip(*ROWS, strict=True)), strict=True))
    columns["age"] = [float(age) if age else None for age in columns["age"]]
    columns["id"] = [1, 2, None, 4]
    pq.write_table(pa.table(columns), tmp_path / "new.parquet")
    out = tmp_path / f"out.{ending}"
    done = call(release, tmp_path / "new.parquet", "--no-verify", "--out", out, "--keep", "id", "--probabilities")
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    rows = pq.read_table(out).to_pylist() if ending == "parquet" else rows_of(out.read_text())
    assert [row["prediction"] for row in rows] == expected_of(release)
    expected = [1, 2, None, 4] if ending == "parquet" else ["1", "2", "", "4"]
    assert [row["id"] for row in rows] == expected
    assert float(rows[0]["probability_no"]) + float(rows[0]["probability_yes"]) == pytest.approx(1)
    again = call(release, tmp_path / "new.parquet", "--no-verify", "--out", out)
    assert (again.exit_code, "nothing is overwritten" in again.stderr) == (2, True)
    assert list(tmp_path.glob(".out*")) == []


def test_long_files_are_read_in_chunks(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dprecipe.models.load import Released

    sizes: list[int] = []
    outputs: Callable[[Any, Any], Any] = Released.outputs

    def watched(self: Released, features: Any) -> Any:
        sizes.append(len(features))
        return outputs(self, features)

    monkeypatch.setattr(Released, "outputs", watched)
    done = call(release, write_csv(tmp_path / "new.csv", times=1000), "--no-verify")
    assert len(rows_of(done.stdout)) == 4000 == sum(sizes)
    assert max(sizes) <= 1024


def test_a_file_that_does_not_match_leaves_nothing(release: Path, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "new.csv", [*ROWS, ("e", "twelve", "f")])
    done = call(release, file, "--no-verify", "--out", tmp_path / "out.csv")
    assert done.exit_code == 4
    assert "column 'age': a field is not a finite number" in done.stderr
    assert "line 6" not in done.stderr  # a log must not say where
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "release"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--out", "out.json"], 2, "written as CSV (.csv), JSON lines (.jsonl or .ndjson) or Parquet (.parquet)"),
        (["--out", "no/such/folder/out.csv"], 4, "can't be written"),
        (["--keep", "nothing"], 4, "'nothing' is not in the header line"),
        (["--keep", "prediction"], 2, "two columns would be called 'prediction'"),
    ],
)
def test_what_is_refused(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(release, write_csv(tmp_path / "new.csv"), "--no-verify", *arguments)
    assert done.exit_code == code, done.output
    assert message in done.stderr


def test_a_file_without_a_record(release: Path, tmp_path: Path) -> None:
    assert "no record" in call(release, write_csv(tmp_path / "new.csv", []), "--no-verify").stderr


def test_numbers_are_in_their_units_and_have_no_probabilities(tmp_path: Path) -> None:
    make_release(tmp_path / "release", TABLE, {"column": "stay", "range": [0, 10]}, "least_squares")
    file = write_csv(tmp_path / "new.csv")
    numbers = [float(row["prediction"]) for row in rows_of(call(tmp_path / "release", file, "--no-verify").stdout)]
    assert len(set(numbers)) > 1
    refused = call(tmp_path / "release", file, "--no-verify", "--probabilities")
    assert (refused.exit_code, "predicts a number" in refused.stderr) == (4, True)


def test_images_of_a_parquet_file(tmp_path: Path) -> None:
    from PIL import Image

    make_release(tmp_path / "release", IMAGES)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    encoded = []
    for image in pixels:
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "PNG")
        encoded.append({"bytes": stream.getvalue(), "path": None})
    pq.write_table(pa.table({"image": encoded, "id": ["x", "y", "z"]}), tmp_path / "new.parquet")
    done = call(tmp_path / "release", tmp_path / "new.parquet", "--no-verify", "--keep", "id")
    assert done.exit_code == 0, done.output
    expected = load(tmp_path / "release").predict(pixels[..., None])
    assert [(row["id"], int(row["prediction"])) for row in rows_of(done.stdout)] == list(
        zip("xyz", expected, strict=True)
    )
    (tmp_path / "pictures").mkdir()
    for name, image in zip("cab", encoded, strict=True):
        (tmp_path / "pictures" / f"{name}.png").write_bytes(image["bytes"])
    done = call(tmp_path / "release", tmp_path / "pictures", "--no-verify", "--keep", "file")
    assert {row["file"]: int(row["prediction"]) for row in rows_of(done.stdout)} == dict(
        zip(("c.png", "a.png", "b.png"), expected, strict=True)
    )
    refused = call(tmp_path / "release", write_csv(tmp_path / "new.csv"), "--no-verify")
    assert (refused.exit_code, "is neither of a folder of images, a Parquet file" in refused.stderr) == (4, True)


ONE = f"""\
recipe: dprecipe/v1
name: ages
data:
  train:
    source: csv
    path: t.csv
    columns: {{age: {{kind: numeric, min: 0, max: 110}}}}
    label: {{column: y, classes: 2}}
  size: 1000
{REST}"""
MISFITS = {
    "other capitals": (
        "AGE\n33\n",
        "column 'age' (the file has 'AGE') is not in the header",
        "rename the column in the file",
    ),
    "no such column": (
        "sex\nm\n",
        "column 'age' is not in the header",
        "must name the columns that the release reads: 'age'",
    ),
    "another delimiter": ("age;id\n33;1\n", "its fields are separated by a semicolon", 'name it: --delimiter ";"'),
    "a word": ("age\n33\nold\n", "a field is not a finite number", "write a number, as programs do: 1234.5"),
    "a comma": ('age\n"33,5"\n', "a field has a number with a comma", "write a number, as programs do: 1234.5"),
    "a gap": ("age,id\n,1\n", "a field is empty", "fill it in: the release has no value for a missing field"),
    "a row too long": ("age\n33,4\n", "a row has more fields", "name the delimiter: --delimiter"),
    "an archive of NumPy": ("\x93NUMPY", "is a NumPy array", "save the records as CSV (UTF-8) or as Parquet"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_remedies_are_for_the_file_and_not_for_the_recipe(case: str, tmp_path: Path) -> None:
    """Who predicts has a finished release, and can change no recipe."""
    content, says, remedy = MISFITS[case]
    make_release(tmp_path / "release", ONE)
    (tmp_path / "new.csv").write_text(content, encoding="latin-1")
    options = ["--delimiter", ","] if case == "another delimiter" else []
    refused = call(tmp_path / "release", tmp_path / "new.csv", "--no-verify", *options)
    assert refused.exit_code == 4, refused.output
    assert says in refused.stderr
    assert remedy in refused.stderr
    assert not any(word in refused.stderr for word in ("recipe", "declare", "`"))


def test_a_column_of_parquet_is_renamed_in_the_file(tmp_path: Path) -> None:
    make_release(tmp_path / "release", ONE)
    pq.write_table(pa.table({"Age": [33.0]}), tmp_path / "new.parquet")
    refused = call(tmp_path / "release", tmp_path / "new.parquet", "--no-verify")
    assert (refused.exit_code, "rename the column in the file" in refused.stderr) == (4, True)
    assert "recipe" not in refused.stderr


WRITTEN = TABLE.replace(
    "{kind: numeric, min: 0, max: 100, missing: 40}",
    "{kind: numeric, min: 0, max: 100, decimal: comma, affixes: [kg, €], missing: {fill: 40, indicator: true}}",
)


def test_new_records_are_written_as_those_of_training(tmp_path: Path) -> None:
    """`model.json` says how numbers are written, and that a feature says that one is missing."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    assert "decimal" in WRITTEN
    make_release(tmp_path / "release", WRITTEN)
    columns = json.loads((tmp_path / "release" / "model.json").read_text())["columns"]
    assert columns["age"] == {
        "kind": "numeric",
        "min": 0.0,
        "max": 100.0,
        "missing": {"indicator": True, "fill": 40.0},
        "decimal": "comma",
        "affixes": ["kg", "€"],
    }
    ages, plain = ["13,5 kg", "", "€ 40", "1.000,5"], [13.5, None, 40.0, 1000.5]
    rows = list(zip("abcd", ages, "mfmf", strict=True))
    done = call(tmp_path / "release", write_csv(tmp_path / "new.csv", rows, ";"), "--no-verify", "--probabilities")
    assert done.exit_code == 0, done.output
    chances = [float(row["probability_yes"]) for row in rows_of(done.stdout)]
    assert chances[1] != chances[2]  # a gap counts as 40, and is none
    model = load(tmp_path / "release")
    for age in (ages, plain):
        frame = pandas.DataFrame({"age": age, "sex": list("mfmf")})
        pq.write_table(pa.Table.from_pandas(frame), tmp_path / f"{age[0]}.parquet")
        again = call(tmp_path / "release", tmp_path / f"{age[0]}.parquet", "--no-verify", "--probabilities")
        assert [float(row["probability_yes"]) for row in rows_of(again.stdout)] == pytest.approx(chances)
        with pytest.warns(UserWarning, match="1 clamped"):
            np.testing.assert_allclose(model.predict_proba(frame)[:, 1], chances, rtol=1e-6)


def test_a_folder_of_images_with_other_files_and_with_its_table(tmp_path: Path) -> None:
    from PIL import Image

    make_release(tmp_path / "release", IMAGES)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    (tmp_path / "pictures").mkdir()
    for name, image in zip("cab", pixels, strict=True):
        Image.fromarray(image).save(tmp_path / "pictures" / f"{name}.png")
    (tmp_path / "pictures" / "logo.svg").write_text("<svg/>")
    (tmp_path / "t.csv").write_text("path;kind\nb.png;x\nc.png;y\n")
    expected = dict(
        zip(("c.png", "a.png", "b.png"), load(tmp_path / "release").predict(pixels[..., None]), strict=True)
    )
    done = call(tmp_path / "release", tmp_path / "pictures", "--no-verify", "--keep", "file")
    assert {row["file"]: int(row["prediction"]) for row in rows_of(done.stdout)} == expected
    assert "no PNG, JPEG or WebP image, by their names, are left out" in done.stderr
    assert "logo" not in done.stderr
    listed = ["--table", tmp_path / "t.csv", "--image-column", "path", "--keep", "path", "--keep", "kind"]
    done = call(tmp_path / "release", tmp_path / "pictures", "--no-verify", *listed)
    assert done.exit_code == 0, done.output
    rows = [(row["path"], row["kind"], int(row["prediction"])) for row in rows_of(done.stdout)]
    assert rows == [("b.png", "x", expected["b.png"]), ("c.png", "y", expected["c.png"])]
    (tmp_path / "t.csv").write_text("path\n../b.png\n")
    refused = call(tmp_path / "release", tmp_path / "pictures", "--no-verify", *listed[:4])
    assert (refused.exit_code, "no path below the folder" in refused.stderr) == (4, True)
    refused = call(tmp_path / "release", tmp_path / "pictures", "--no-verify", "--keep", "kind")
    assert (refused.exit_code, "lists the images: --table" in refused.stderr) == (4, True)
    refused = call(tmp_path / "release", tmp_path / "t.csv", "--no-verify", *listed[:2])
    assert (refused.exit_code, "leave out --table" in refused.stderr) == (4, True)


def test_a_table_of_images_is_of_no_use_to_a_model_of_columns(release: Path, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "new.csv")
    refused = call(release, file, "--no-verify", "--table", file)
    assert (refused.exit_code, "the model reads columns" in refused.stderr) == (2, True)
    assert call(release, file, "--no-verify", "--table", tmp_path / "none.csv").exit_code == 2


@pytest.fixture
def verifiable(tmp_path: Path, release_of: Any) -> Path:
    return release_of(TABLE, tmp_path)


def test_what_has_no_certificate_is_not_loaded(release: Path, tmp_path: Path) -> None:
    done = call(release, write_csv(tmp_path / "new.csv"), "--out", tmp_path / "out.csv")
    assert (done.exit_code, "there is no certificate.json" in done.stderr) == (2, True)
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.slow
def test_the_release_is_verified_first_and_nothing_of_a_changed_one_is_loaded(verifiable: Path, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "new.csv")
    done = call(verifiable.parent, file)  # the folder around it will do
    assert done.exit_code == 0, done.output
    assert "verified" in done.stderr
    assert "ε = 1.9" in done.stderr or "ε = 2" in done.stderr
    weights = verifiable / "model.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    refused = call(verifiable, file, "--out", tmp_path / "out.csv")
    assert (refused.exit_code, "does not verify" in refused.stderr) == (3, True)
    assert not (tmp_path / "out.csv").exists()
    assert call(verifiable, file, "--no-verify").exit_code == 0


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    done = CliRunner().invoke(app, ["predict", str(tmp_path), str(tmp_path / "none.csv")])
    assert done.exit_code == 2
    assert "none.csv: there is no such file" in done.stderr


@pytest.mark.parametrize(
    "line", ["predict {0} {0}/rows.csv", "export {0} --format onnx --out {0}.onnx", "generate {0}"]
)
def test_a_missing_library_is_named_before_the_release_is_verified(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dprecipe import libraries

    (tmp_path / "model.json").write_text("{}")
    (tmp_path / "rows.csv").write_text("a\n1\n")
    monkeypatch.setattr(libraries, "is_installed", lambda name: False)
    done = CliRunner().invoke(app, line.format(tmp_path).split())
    assert done.exit_code == 2
    assert "needs torch, which is not installed" in done.stderr
