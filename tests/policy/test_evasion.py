"""A policy rules over things, whatever a recipe calls them: other names of a file, tried with each command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dprecipe.cli.main import app
from dprecipe.faults import PlanRefused
from dprecipe.planning.make import plan as make_plan
from dprecipe.policy.apply import enforce_on_run
from dprecipe.policy.find import POLICY_FILE
from dprecipe.recipe.read import read
from tests.mechanisms.pate.conftest import AGGREGATORS, VOTES
from tests.recipe_texts import FULL_BATCH

CSV = "columns: {age: {kind: numeric, min: 0, max: 99}}, label: {column: y, values: [a, b]}"
PRIVATE = f"""\
recipe: dprecipe/v1
name: held
data:
  train: {{%s}}
  size: 1437
  unit: record
{FULL_BATCH}training: {{steps: 20, optimizer: {{kind: sgd, lr: 0.5}}}}
"""
PUBLIC = """\
recipe: dprecipe/v1
name: public
data: {train: {%s, access: public}, size: 1437}
model: {kind: logistic_regression}
mechanism: {kind: none}
training: {steps: 20, batch_size: 64, optimizer: {kind: sgd, lr: 0.5}}
"""
POLICY = "policy: dprecipe/v1\nname: hospital\nrules:\n  - {name: patients, data: [%s], %s}\n"
STRICT = "max_epsilon: 1.0"


def csv(path: str) -> str:
    return f"source: csv, path: {path}, {CSV}"


def postgres(table: str, connection: str = "DB_URL", more: str = "") -> str:
    query = "'SELECT age, y FROM t'"
    return f"source: postgres, connection: {connection}, tables: {{t: {table}}}, query: {query}, {CSV}{more}"


def duckdb(path: str) -> str:
    return f"source: duckdb, tables: {{t: {path}}}, query: 'SELECT age, y FROM t', {CSV}"


IMAGES = "source: image_folder, path: %s, shape: [8, 8, 1], label: {column: folder, values: [a, b]}"
TABLE = "source: %s, path: %s, " + CSV
LINES = "source: json_lines, path: %s, " + CSV
NPZ = "source: npz, path: %s, features: x, labels: y, shape: [64], classes: 10"
IDX = "source: idx, images: %s, labels: %s, shape: [8, 8], classes: 10"

OTHER_NAMES = {
    "letter": ("visits.csv", csv("'vis?ts.csv'")),
    "star": ("visits.csv", csv("'*isits.csv'")),
    "folders": ("visits1.csv", csv("'**/visits1.csv'")),
    "both have globs": ("vis*s?.csv", csv("'*1.csv'")),
    "a set": ("visits[0-9].csv", csv("'*1.csv'")),
    "in a list": ("visits.csv", csv("[a.csv, 'b/*.csv', 'v*.csv']")),
    "absolute": ("wards/visits.csv", csv("/srv/hospital/wards/visits.csv")),
    "up": ("wards/visits.csv", csv("../wards/visits.csv")),
    "detour": ("wards/visits.csv", csv("./x/..//wards/./visits.csv")),
    "capitals": ("wards/visits.csv", csv("Wards/VISITS.CSV")),
    "capitals and star": ("wards/visits.csv", csv("'WARDS/*.Csv'")),
    "the rule takes a detour": ("./wards//visits.csv", csv("wards/visits.csv")),
    "the rule is of a place": ("/srv/hospital/visits.csv", csv("visits.csv")),
    "composed": ("visit\u00e9.csv", csv("visite\u0301.csv")),
    "decomposed": ("visite\u0301.csv", csv("visit\u00e9.csv")),
    "composed and letter": ("visite\u0301.csv", csv("'visit?.csv'")),
    "decomposed and letters": ("visit\u00e9.csv", csv("'visite?.csv'")),
    "in a folder": ("wards", csv("wards/visits.csv")),
    "in a folder by a pattern": ("wards", csv("'w*s/visits.csv'")),
    "hive": ("visits/*", TABLE % ("parquet", "'visits/year=*/**/*.parquet'")),
    "a hive folder": ("year=2024", TABLE % ("parquet", "'visits/*/part.parquet'")),
    "backslashes": ("wards/visits.csv", csv(r"'wards\visits.csv'")),
    "folder of images": ("scans/*", IMAGES % "scans"),
    "folder with a slash": ("scans", IMAGES % "scans/"),
    "part of a folder": ("scans", IMAGES % "scans/2024"),
    "folder above": ("scans/2024/a/1.png", IMAGES % "scans"),
    "datasets": ("visits/train/*.arrow", TABLE % ("datasets", "visits")),
    "json lines": ("visits.jsonl", LINES % "'v*.jsonl'"),
    "arrays": ("visits.npz", NPZ % "a/../visits.npz"),
    "idx": ("labels.gz", IDX % ("scans.gz", "x/../labels.gz")),
    "query": ("visits.csv", duckdb("['a*.csv', 'v?sits.csv']")),
    "connection": ("postgres:DB_URL/wards.*", postgres("wards.visits", "MY_URL")),
    "table": ("postgres:DB_URL/wards.visits", postgres("WARDS.Visits")),
    "view": ("postgres:DB_URL/wards.*", postgres("mine.view", more=", rows: declared")),
}


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy to be written, a team's recipes below it, and data."""
    monkeypatch.delenv("DPRECIPE_DATA", raising=False)
    (tmp_path / "team").mkdir()
    (tmp_path / "wards").mkdir()
    (tmp_path / "wards" / "visits.csv").write_text("age,y\n1,a\n2,b\n", encoding="utf-8")
    return tmp_path


def write(folder: Path, recipe: str, names: str, rule: str = STRICT) -> Path:
    (folder / POLICY_FILE).write_text(POLICY % (names, rule), encoding="utf-8")
    file = folder / "team" / "recipe.yaml"
    file.write_text(recipe, encoding="utf-8")
    return file


def quoted(name: str) -> str:
    return f"'{name}'"


@pytest.mark.parametrize("case", OTHER_NAMES)
def test_another_name_of_a_data_set_is_ruled_too(case: str, hospital: Path, release_of: Any) -> None:
    rule, source = OTHER_NAMES[case]
    text = PRIVATE % source
    recipe = write(hospital, text, quoted(rule))
    for command in (["validate", recipe], ["plan", recipe], ["run", recipe, "--out", hospital / "out"]):
        result = call(*command)
        assert result.exit_code in (1, 3), (command, result.output)
        assert "Q101" in result.output, (command, result.output)
    assert not (hospital / "out").exists()
    release = release_of(text, hospital)
    assert call("verify", release).exit_code == 0
    result = call("verify", release, "--policy", hospital / POLICY_FILE)
    assert result.exit_code != 0
    assert "Q101" in result.output


@pytest.mark.parametrize("case", [case for case, (_, source) in OTHER_NAMES.items() if "postgres" not in source])
def test_no_name_lets_a_run_without_privacy_read_a_data_set_of_a_policy(case: str, hospital: Path) -> None:
    rule, source = OTHER_NAMES[case]
    recipe = write(hospital, PUBLIC % source, quoted(rule))
    for command in (["validate", recipe], ["run", recipe]):
        result = call(*command)
        assert result.exit_code in (1, 3)
        assert "Q108" in result.output, (command, result.output)


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        ("visits.csv", csv("'w*.csv'")),
        ("visits.csv", csv("'v?sit.csv'")),
        ("visits1.csv", csv("'**/1.csv'")),
        ("visits.csv", csv("'visits.csv?'")),
        ("wards/*", csv("research/visits.csv")),
        ("wards/*", csv("'research/*.csv'")),
        ("wards/visits.csv", csv("'*/visit.csv'")),
        ("admissions*.csv", IMAGES % "scans"),
        ("admissions*.csv", TABLE % ("parquet", "'visits/**/*.parquet'")),
        ("visits[0-9].csv", csv("'visitsa*.csv'")),
        ("ward", csv("wards/visits.csv")),
        ("visits.csv", csv("visits.csv.old")),
        ("postgres:DB_URL/wards.*", postgres("research.visits")),
        ("postgres:DB_URL/wards.*", csv("wards.csv")),
        ("visit\u00e9.csv", csv("'visita?.csv'")),
    ],
)
def test_what_can_not_be_the_data_set_is_not_ruled(rule: str, source: str, hospital: Path) -> None:
    result = call("validate", write(hospital, PRIVATE % source, quoted(rule)))
    assert "Q101" not in result.output
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("names", "source", "excluded"),
    [
        ("visits.csv", csv("visits.csv"), True),
        ("visits.csv", csv("'v*s.csv'"), False),
        ("v*.csv", csv("'vis*s.csv'"), True),
        ("v*.csv", csv("'**/v1.csv'"), True),
        ("*/v*.csv", csv("'**/v1.csv'"), False),  # the pattern also finds v1.csv in no folder
        ("v?.csv", csv("'v*.csv'"), False),
        ("v?.csv", csv("'v?.csv'"), True),
        ("v[!x].csv", csv("'v?.csv'"), False),
        ("wards/*", csv("'wards/*.csv'"), True),
        ("wards/*", csv("mine/wards/x.csv"), False),
        ("wards/*", csv("'WARDS/x.csv'"), False),
        ("wards/*", csv("wards/../secret.csv"), False),
        ("scans", IMAGES % "scans", True),
        ("wards/*", csv("[wards/a.csv, b.csv]"), False),
        ("v\ue000.csv", csv("'v*.csv'"), False),
        ("postgres:DB_URL/wards.*", postgres("wards.visits"), True),
        ("postgres:DB_URL/wards.*", postgres("Wards.visits"), False),
        ("postgres:DB_URL/wards.*", postgres("wards.visits", "MY_URL"), False),
        ("postgres:DB_URL/wards.view", postgres("wards.view", more=", rows: declared"), True),
    ],
)
def test_an_exception_is_for_what_is_surely_meant(names: str, source: str, excluded: bool, hospital: Path) -> None:
    recipe = write(hospital, PRIVATE % source, "'*'", f"except: ['{names}'], {STRICT}")
    assert ("Q101" not in call("validate", recipe).output) is excluded


# What only a run can see.


def link(place: Path, target: Path | str) -> None:
    place.parent.mkdir(exist_ok=True, parents=True)
    place.symlink_to(target)


def refuse(hospital: Path, source: str, rule: str, *more: object, form: str = PRIVATE, code: str = "Q101") -> str:
    recipe = write(hospital, form % source, quoted(rule))
    result = call("run", recipe, "--out", hospital / "out", *more)
    assert result.exit_code == 3, result.output
    assert code in result.output
    assert not (hospital / "out").exists()
    return str(result.output)


@pytest.mark.parametrize(("form", "code"), [(PRIVATE, "Q101"), (PUBLIC, "Q108")])
@pytest.mark.parametrize("rule", ["visits.csv", "wards/visits.csv", "wards/*", "wards", "vis*s.csv"])
def test_a_run_sees_where_a_link_leads(rule: str, form: str, code: str, hospital: Path) -> None:
    link(hospital / "team" / "mine.csv", "../wards/visits.csv")
    said = refuse(hospital, csv("mine.csv"), rule, form=form, code=code)
    assert "covers data.train.path" in said


def test_a_run_sees_links_on_the_way(hospital: Path) -> None:
    link(hospital / "team" / "own", "../wards")
    refuse(hospital, csv("own/visits.csv"), "wards/visits.csv")
    os.rename(hospital / "wards", hospital / "store")
    link(hospital / "wards", "store")  # the rule's name is that of a link, the recipe's that of another
    (hospital / "team" / "own").unlink()
    link(hospital / "team" / "own", "../wards")
    refuse(hospital, csv("own/visits.csv"), "wards/visits.csv")


def test_a_run_sees_that_a_link_to_the_file_has_the_name(hospital: Path) -> None:
    os.rename(hospital / "wards" / "visits.csv", hospital / "wards" / "blob")
    link(hospital / "wards" / "visits.csv", "blob")
    refuse(hospital, csv("../wards/blob"), "visits.csv")


def test_a_run_sees_other_names_of_a_file(hospital: Path) -> None:
    os.link(hospital / "wards" / "visits.csv", hospital / "team" / "mine.csv")
    refuse(hospital, csv("mine.csv"), "wards/visits.csv")


def test_a_run_sees_where_its_data_lie(hospital: Path) -> None:
    refuse(hospital, csv("visits.csv"), "wards/*", "--data-root", hospital / "wards")
    refuse(hospital, csv("visits.csv"), "wards", "--data-root", hospital / "wards")
    refuse(hospital, csv("'*.csv'"), "wards/visits.csv", "--data-root", hospital / "wards")


def test_a_run_sees_what_a_pattern_finds(hospital: Path) -> None:
    link(hospital / "team" / "a1.csv", "../wards/visits.csv")
    link(hospital / "team" / "a2.csv", "a1.csv")
    said = refuse(hospital, csv("'team/a?.csv'"), "visits.csv", "--data-root", hospital)
    assert "a1.csv" not in said  # names that a pattern finds may be private


def test_a_run_sees_images_that_are_links(hospital: Path) -> None:
    (hospital / "wards" / "1.png").write_bytes(b"")
    link(hospital / "team" / "scans" / "a" / "2.png", hospital / "wards" / "1.png")
    refuse(hospital, IMAGES % "scans", "wards/*.png")


def test_a_link_is_no_way_into_an_exception(hospital: Path) -> None:
    link(hospital / "team" / "free.csv", "../wards/visits.csv")
    recipe = write(hospital, PRIVATE % csv("free.csv"), "'*'", f"except: [free.csv], {STRICT}")
    assert "Q101" in call("run", recipe, "--out", hospital / "out").output
    write(hospital, PRIVATE % csv("free.csv"), "'*'", f"except: [free.csv, visits.csv], {STRICT}")
    assert "Q101" not in call("run", recipe, "--out", hospital / "out").output


@pytest.mark.parametrize("file", ["free.csv", "[free.csv, f2.csv]"])
def test_records_from_python_have_no_name_that_is_surely_excepted(file: str, hospital: Path, release_of: Any) -> None:
    text = PRIVATE % csv(file)
    recipe = write(hospital, text, "'*'", f"except: ['f*.csv'], {STRICT}")
    planned = make_plan(read(recipe))
    assert enforce_on_run(planned, hospital / "team").policies
    assert enforce_on_run(planned, hospital / "team", ["data.test", "model"]).policies
    with pytest.raises(PlanRefused, match="above 1"):
        enforce_on_run(planned, hospital / "team", ["data.train"])
    for data, holds in (("recipe", True), ("python", False)):
        (hospital / data).mkdir()
        release = release_of(text, hospital / data, data=data)
        assert (call("verify", release, "--policy", hospital / POLICY_FILE).exit_code == 0) is holds


def test_votes_from_a_file_are_a_data_set_too(hospital: Path) -> None:
    votes = VOTES % (AGGREGATORS["gnmax"], 3)
    recipe = write(hospital, votes.replace("epsilon: auto", "epsilon: 2.0"), "wards/*")
    call_auto = ["--set", "mechanism.aggregator.noise.multiplier=auto"]
    assert "Q101" not in call("validate", recipe, *call_auto).output
    named = [*call_auto, "--set", "mechanism.teachers.votes.path=wards/votes.npz"]
    assert "covers mechanism.teachers.votes.path" in call("validate", recipe, *named).output
    link(hospital / "team" / "votes.npz", "../wards/visits.csv")
    result = call("run", recipe, *call_auto, "--out", hospital / "out")
    assert "covers mechanism.teachers.votes.path" in result.output
    assert not (hospital / "out").exists()


def test_folders_above_the_policy_name_nothing_below_it(hospital: Path) -> None:
    recipe = write(hospital, PRIVATE % csv("other.csv"), f"'{hospital.name}'")
    (hospital / "team" / "other.csv").write_text("age,y\n1,a\n", encoding="utf-8")
    assert "Q101" not in call("run", recipe, "--out", hospital / "out").output


# Records that a recipe calls public, and units that a query makes.


@pytest.mark.parametrize(
    "more",
    [
        f"\n  test: {{{csv('wards/visits.csv')}, access: public}}",
        f"\n  public: {{{csv('wards/visits.csv')}}}",
    ],
)
def test_no_recipe_calls_a_data_set_of_a_policy_public(more: str, hospital: Path, release_of: Any) -> None:
    text = (PRIVATE % csv("mine.csv")).replace("\n  size", more + "\n  size")
    recipe = write(hospital, text, "visits.csv", "max_epsilon: 9.0")
    assert "Q114" in call("validate", recipe).output
    if "test" in more:  # this mechanism asks nothing of public records, and is refused for that
        assert "Q114" in call("run", recipe).output
        assert "Q114" in call("verify", release_of(text, hospital), "--policy", hospital / POLICY_FILE).output
    write(hospital, text, "visits.csv", "max_epsilon: 9.0, mechanisms: [dpsgd, none]")
    assert "Q114" not in call("validate", recipe).output


BOOK = """\
  kind: encoded
  codebook: {source: file, path: one.npz, norm: 0.5}
  noise: {family: gaussian, multiplier: auto}
  denoise: none
  sampling: {scheme: poisson, batch_size: 64}
"""


def test_no_codebook_is_made_from_a_data_set_of_a_policy(hospital: Path) -> None:
    text = (PRIVATE % csv("mine.csv")).replace("\n  size", f"\n  test: {{{csv('mine2.csv')}, access: public}}\n  size")
    begin, end = text.index("  kind: dpsgd"), text.index("budget:")
    recipe = write(hospital, text[:begin] + BOOK + text[end:], "visits.csv", "max_epsilon: 9.0")
    (hospital / "team" / "mine.csv").write_text("age,y\n3,a\n", encoding="utf-8")
    link(hospital / "team" / "mine2.csv", "../wards/visits.csv")
    out = hospital / "team" / "one.npz"
    refused = call("codebook", recipe, "--out", out)
    assert refused.exit_code == 3
    assert "Q114" in refused.output
    assert not out.exists()
    write(hospital, recipe.read_text(encoding="utf-8"), "visits.csv", "max_epsilon: 9.0, mechanisms: [encoded, none]")
    assert call("codebook", recipe, "--out", out).exit_code == 0
    write(hospital, recipe.read_text(encoding="utf-8"), "mine.csv")  # what a run may not do is not prepared, either
    assert "Q101" in call("codebook", recipe, "--out", out, "--force").output


@pytest.mark.parametrize("name", ["../wards/visits.csv", "mine.csv"])
def test_no_draft_takes_ranges_from_a_data_set_of_a_policy(name: str, hospital: Path) -> None:
    (hospital / POLICY_FILE).write_text(POLICY % ("visits.csv", STRICT), encoding="utf-8")
    link(hospital / "team" / "mine.csv", "../wards/visits.csv")
    recipe, sample = hospital / "team" / "new.yaml", hospital / "team" / name
    refused = call("init", recipe, "--from", sample, "--label", "y", "--public")
    assert refused.exit_code == 3
    assert "Q114" in refused.output
    assert not recipe.exists()
    assert "--private" in " ".join(refused.output.split())
    assert call("init", recipe, "--from", sample, "--label", "y", "--private").exit_code == 0


def test_another_name_beside_the_file_itself_is_seen(hospital: Path) -> None:
    os.link(hospital / "wards" / "visits.csv", hospital / "team" / "mine.csv")
    text = PRIVATE % csv("mine.csv") + "release: {report: false}\n"
    text = text.replace("\n  size", f"\n  test: {{{csv('../wards/visits.csv')}, access: public}}\n  size")
    recipe = write(hospital, text, "mine.csv", "max_epsilon: 9.0")
    assert "Q114" in call("run", recipe, "--out", hospital / "out").output


QUERIES = {
    "SELECT age, y, patient_id FROM t": True,
    "SELECT * FROM t": True,
    "SELECT age, y, t.patient_id FROM t WHERE age > 3": True,
    "SELECT age, y, PATIENT_ID FROM t": True,
    'SELECT age, y, \\"patient_id\\" AS patient_id FROM t': True,
    "SELECT age, y, visit_id AS patient_id FROM t": False,
    "SELECT age, y, visit_id patient_id FROM t": False,
    "SELECT age, y, concat(patient_id, visit_id) AS patient_id FROM t": False,
    "SELECT age, y, lower(patient_id) AS patient_id FROM t": False,
    "SELECT *, visit_id AS patient_id FROM t": False,
    'SELECT age, y, visit_id AS \\"Patient_ID\\" FROM t': False,
    "SELECT age, y, patient_id || '' AS patient_id FROM t": False,
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_unit_that_a_query_makes_is_not_the_column_of_its_name(query: str, hospital: Path, release_of: Any) -> None:
    source = f'source: duckdb, tables: {{t: visits.csv}}, query: "{query}", {CSV}'
    text = (PRIVATE % source).replace("unit: record", "unit: {column: patient_id, max_records: 2}")
    recipe = write(hospital, text, "visits.csv", "units: [patient_id]")
    assert ("Q115" in call("validate", recipe).output) is not QUERIES[query]
    assert ("Q115" in call("plan", recipe).output) is not QUERIES[query]
    if not QUERIES[query]:
        assert "Q115" in call("verify", release_of(text, hospital), "--policy", hospital / POLICY_FILE).output


def test_a_unit_that_a_declared_query_gives_is_not_known(hospital: Path) -> None:
    query = "SELECT a.age, a.y, b.patient_id FROM t AS a JOIN t AS b ON a.n = b.n"
    source = f"source: duckdb, tables: {{t: visits.csv}}, rows: declared, query: '{query}', {CSV}"
    text = (PRIVATE % source).replace("unit: record", "unit: {column: patient_id, max_records: 2}")
    assert "Q115" in call("validate", write(hospital, text, "visits.csv", "units: [patient_id]")).output


def test_verify_says_what_no_certificate_shows(hospital: Path, release_of: Any) -> None:
    (hospital / POLICY_FILE).write_text(POLICY % ("other.csv", STRICT), encoding="utf-8")
    release = release_of(PRIVATE % csv("mine.csv"), hospital)
    said = call("verify", release, "--policy", hospital / POLICY_FILE)
    assert said.exit_code == 0
    assert "the targets of links and the data root were not checked" in " ".join(said.output.split())
