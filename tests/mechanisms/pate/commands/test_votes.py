"""`dprecipe votes`: the words, the table, the document, the plot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator

from dprecipe.cli import files
from dprecipe.cli import main as cli
from dprecipe.cli.schema import SCHEMAS
from dprecipe.contract.mechanism import Facts
from dprecipe.faults import PlanRefused, UsageFault
from dprecipe.mechanisms.pate.commands.forecast import forecast_plan
from dprecipe.mechanisms.pate.commands.forecast_document import Forecast, plot_votes
from dprecipe.mechanisms.pate.commands.simulate import Agreement
from dprecipe.mechanisms.pate.commands.votes import forecast_votes
from dprecipe.mechanisms.pate.schema import Pate
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read

GOLDEN = Path(__file__).parents[3] / "golden" / "rules"
FINE = GOLDEN / "fine-pate.yaml"
FEW = "mechanism.queries.max=20"
GNMAX = "mechanism.aggregator={kind: gnmax, noise: {family: gaussian, multiplier: 40}}"
INTERACTIVE = (
    "mechanism.aggregator={kind: interactive_gnmax, noise: {family: gaussian, multiplier: 20}, "
    "selection: {threshold: 60, noise: {family: gaussian, multiplier: 40}}}"
)
MANY = [
    "data.size=100000",
    "data.train={source: npz, path: absent.npz, shape: [8, 8], classes: 10}",
    "data.public={source: npz, path: absent-too.npz, shape: [8, 8]}",
    "data.test=null",
    "mechanism.teachers.count=3000",
    "mechanism.aggregator.noise.multiplier=150",
    "mechanism.aggregator.selection={threshold: 1800, noise: {family: gaussian, multiplier: 600}}",
    "mechanism.queries.max=100",
    "budget={epsilon: 1, delta: 1e-6}",
]
"""Thousands of teachers; none of the data are there."""


def make_forecast(*overrides: str) -> Forecast:
    loaded = read(FINE, overrides)
    assert isinstance(loaded.recipe.mechanism, Pate)
    return forecast_plan(
        plan(loaded), loaded.recipe.mechanism, Facts.of(loaded.recipe), Agreement(), 0, lambda what: None
    )


def test_what_a_person_reads(capsys: pytest.CaptureFixture[str]) -> None:
    forecast_votes(FINE)
    out = capsys.readouterr().out
    assert out.startswith("example: confident_gnmax on simulated votes of 100 teachers for 10 classes\n")
    assert "50% to 100% of the teachers agree on a query, uniformly (seed 0); no data was read\n" in out
    assert "  worst case      ε = 3 at δ = 1e-05: what the certificate claims\n" in out
    assert "the papers' currency: no bound\n" in out
    assert "bound, exact\n" in out
    assert "answers: the filter holds no more\n" in out
    assert "  sanitize: {method: smooth_sensitivity, order: " in out
    rows = [line.split() for line in out.splitlines() if "%" in line and line.endswith(" 3")]
    assert len(rows) == 40
    assert [row[:2] for row in rows if "*" in row] == [["60", "*"]]
    assert "Publishing a data-dependent ε does not pay.\n" in out
    assert "below about 1,000 teachers" in out
    assert out.endswith("plan fewer, and they shrink.\n")


def test_the_suggested_block_is_one_that_a_recipe_takes(capsys: pytest.CaptureFixture[str]) -> None:
    forecast_votes(FINE, [FEW, "budget.epsilon=auto"])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  sanitize: "))
    block = line.removeprefix("  sanitize: ")
    forecast_votes(
        FINE, [FEW, "budget.epsilon=auto", "mechanism.analysis=data_dependent", f"mechanism.sanitize={block}"]
    )
    out = capsys.readouterr().out
    assert "by the recipe's constants\n" in out
    assert "With the recipe's constants ε = " in out


def test_thousands_of_teachers_make_it_pay() -> None:
    actual = make_forecast(*MANY)
    assert actual.pays
    assert actual.release is not None
    assert actual.release.epsilon < actual.worst_case
    words = actual.verdict
    assert words.startswith("Publishing a data-dependent ε would pay.\n")
    assert "its constants must be chosen before them" in words
    assert "Do not rely" not in words
    few = actual.model_copy(update={"teachers": 999})
    assert "Do not rely on it: below about 1,000 teachers" in few.verdict
    dear = actual.model_copy(update={"suggested": actual.release.model_copy(update={"worst_case": None, "stop": None})})
    assert not dear.pays
    assert dear.verdict.startswith("Publishing a data-dependent ε does not fit this budget")
    release = actual.release.model_copy(update={"epsilon": actual.worst_case})
    equal = actual.model_copy(update={"suggested": release})
    assert equal.verdict.startswith("Publishing a data-dependent ε does not pay.")
    assert "As a rule" not in equal.verdict


def test_a_student_is_a_chance() -> None:
    with pytest.raises(UsageFault, match=r"--student 1\.5 is no chance"):
        forecast_votes(FINE, [INTERACTIVE], student=1.5)


def test_all_rounds_of_an_interactive_run_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    forecast_votes(FINE, [INTERACTIVE])
    out = capsys.readouterr().out
    assert (
        "first round, 100 of 200 queries; in later ones, below, the student is assumed to know the class of 80%" in out
    )
    assert "all rounds: about " in out
    assert "sanitize:" not in out
    assert "A data-dependent ε can't be published here: what interactive queries cost depends on earlier answers" in out


def test_without_a_check_there_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forecast_votes(FINE, [GNMAX, FEW], out=tmp_path)
    out = capsys.readouterr().out
    assert "threshold" not in out
    assert "  answered        100.0% of the queries\n" in out
    assert json.loads((tmp_path / "votes.json").read_text("utf-8"))["rows"] == []
    assert "Threshold" not in (tmp_path / "votes.svg").read_text("utf-8")


@pytest.mark.parametrize("overrides", [[FEW], [GNMAX, FEW], [INTERACTIVE, FEW], [FEW, "budget.epsilon=1"]])
def test_the_document_fits_its_schema_and_is_what_is_written(
    overrides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "votes"
    forecast_votes(FINE, overrides, output="json", out=out)
    written = capsys.readouterr().out
    document = json.loads(written)
    Draft202012Validator(SCHEMAS["votes.schema.json"]()).validate(document)
    assert (out / "votes.json").read_text("utf-8") == written
    assert sorted(path.name for path in out.iterdir()) == ["votes.json", "votes.svg"]
    assert document["recipe"] == {"name": "example", "digest": read(FINE, overrides).source.digest}
    assert document["simulated"] == {"agreement": [0.5, 1.0], "student": 0.8, "seed": 0}
    assert document["worst_case"] == plan(read(FINE, overrides)).guarantee.epsilon


def test_seed_and_agreement_count(capsys: pytest.CaptureFixture[str]) -> None:
    actual = {}
    for name, agreement, seed in (("one", (0.5, 1.0), 0), ("again", (0.5, 1.0), 0), ("two", (0.5, 1.0), 1)):
        forecast_votes(FINE, [FEW], agreement, seed, "json")
        actual[name] = json.loads(capsys.readouterr().out)["data_dependent"]
    forecast_votes(FINE, [FEW], (0.9, 1.0), 0, "json")
    agreed = json.loads(capsys.readouterr().out)["data_dependent"]
    assert actual["one"] == actual["again"] != actual["two"]
    assert agreed["bound"] < actual["one"]["bound"]


def test_the_plot_stays_inside_its_frame() -> None:
    for actual in (make_forecast(FEW), make_forecast(GNMAX, FEW), make_forecast(INTERACTIVE, FEW)):
        svg = ElementTree.fromstring(plot_votes(actual))
        width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
        lines = list(svg.iter("{http://www.w3.org/2000/svg}polyline"))
        assert len(lines) == 2 + 2 * (actual.threshold is not None) + (actual.release is not None)
        for line in lines:
            points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
            assert len(points) >= 5
            assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
        for element in svg.iter():
            for names, most in ((("x", "x1", "x2", "cx"), width), (("y", "y1", "y2", "cy"), height)):
                assert all(0 <= float(element.attrib[name]) <= most for name in names if name in element.attrib)


def test_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="unknown format"):
        forecast_votes(FINE, output="xml")
    with pytest.raises(UsageFault, match=r"no share of teachers lies between 0\.9 and 0\.5"):
        forecast_votes(FINE, agreement=(0.9, 0.5))
    with pytest.raises(UsageFault, match="-1 is no seed"):
        forecast_votes(FINE, seed=-1)
    (tmp_path / "file").touch()
    with pytest.raises(UsageFault, match="can't be written"):
        forecast_votes(FINE, out=tmp_path / "file")
    with pytest.raises(UsageFault, match="mechanism dpsgd has no votes"):
        forecast_votes(FINE.parents[1] / "recipes" / "fine.yaml")
    with pytest.raises(PlanRefused) as refused:
        forecast_votes(FINE, ["budget.epsilon=0.01"])
    assert all(finding.place is not None for finding in refused.value.findings)


def test_notes_on_progress_come_after_some_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 1.0, 2.5, 3.0])
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: next(clock, 3.0)))
    forecast_votes(FINE, [GNMAX, FEW])
    assert capsys.readouterr().err == "now costs of the votes\n"


def test_as_a_user_calls_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["votes", str(FINE), "--set", GNMAX, "--set", FEW, "--agreement", "0.8", "0.9", "--seed", "3"]
    monkeypatch.setattr("sys.argv", ["dprecipe", *arguments, "--format", "json"])
    with pytest.raises(SystemExit) as done:
        cli.main()
    assert not done.value.code
    assert json.loads(capsys.readouterr().out)["simulated"] == {"agreement": [0.8, 0.9], "student": 0.8, "seed": 3}


def test_no_torch() -> None:
    code = f"""
import sys
from pathlib import Path
from dprecipe.mechanisms.pate.commands.votes import forecast_votes
forecast_votes(Path({str(FINE)!r}), [{FEW!r}])
assert not {{"torch", "sklearn", "matplotlib"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_paid_steps_are_in_every_worst_case_and_nothing_is_suggested_beside_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    step = "data.preprocess=[{flatten: {}}, {dp_pca: {components: 12, row_norm: 8, noise_multiplier: 4}}]"
    forecast, without = make_forecast(FEW, "budget.epsilon=auto", step), make_forecast(FEW, "budget.epsilon=auto")
    own = next(row for row in forecast.rows if row.chosen)
    assert own.worst_case == pytest.approx(forecast.worst_case, rel=1e-5)
    for row, bare in zip(forecast.rows, without.rows, strict=True):
        assert row.worst_case is not None
        assert bare.worst_case is not None
        assert row.worst_case > bare.worst_case
    assert all(a.worst_case > b.worst_case for a, b in zip(forecast.points, without.points, strict=True))
    assert forecast.data_dependent == without.data_dependent
    assert forecast.release is None
    assert "exclude each other" in forecast.verdict
    forecast_votes(FINE, (FEW, "budget.epsilon=auto", step))
    assert "of the votes alone" in capsys.readouterr().out
