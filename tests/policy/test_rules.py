"""Every rule of a policy, held against recipes: what it finds, where, and what it leaves alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from dprecipe.policy.facts import GovernedFacts, read_facts
from dprecipe.policy.read import LoadedPolicy, read_policy_text
from dprecipe.policy.rules import POLICY_CODES, check_policies
from dprecipe.recipe.read import Loaded, read_any, read_text

ROOT = Path(__file__).parents[2]
KEY, OTHER = "ab" * 32, "cd" * 32
RECIPE = """\
recipe: dprecipe/v1
name: held
data:
  train: {source: csv, path: wards/Admissions.csv, columns: {age: {kind: numeric, min: 0, max: 99}},
    label: {column: y, values: [a, b]}}
  size: 20000
  unit: {column: patient_id, max_records: 4}
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-6}
training: {steps: 20, optimizer: {kind: sgd, lr: 0.5}}
release: {sign: {key: key.pem}, statement: {curators: [A hospital]}}
accept: {P112: mine}
"""
PUBLIC = """\
recipe: dprecipe/v1
name: public
data: {train: {source: digits, split: train, access: public}, size: 1437}
model: {kind: logistic_regression}
mechanism: {kind: none}
training: {steps: 20, batch_size: 64, optimizer: {kind: sgd, lr: 0.5}}
"""


TABLE = "wards/diagnoses.gz"


def read_held(text: str = RECIPE) -> Loaded:
    return read_text(text)


@pytest.fixture(scope="module")
def facts() -> GovernedFacts:
    return read_facts(read_held().recipe)


def policy_of(*rules: str, keys: str = f"{{office: {KEY}, ward: {OTHER}}}") -> LoadedPolicy:
    lines = "".join(f"  - {{name: rule {index}, {rule}}}\n" for index, rule in enumerate(rules))
    return read_policy_text(f"policy: dprecipe/v1\nname: hospital\nkeys: {keys}\nrules:\n{lines}")


def codes_of(facts: GovernedFacts, *rules: str) -> list[str]:
    return [finding.code for finding in check_policies(facts, [policy_of(*rules)])]


VIOLATED = {
    "Q101": ("max_epsilon: 2.9", "budget.epsilon"),
    "Q102": ("max_delta: 1.0e-7", "budget.delta"),
    "Q103": ("units: [ward_id]", "data.unit"),
    "Q104": ("neighbouring: [replace_one]", "budget.neighbouring"),
    "Q105": ("accountants: [rdp]", "budget.accountant"),
    "Q106": ("accounts: ['accounts/*']", "budget.account"),
    "Q108": ("mechanisms: [pate]", "mechanism.kind"),
    "Q109": ("models: [mlp]", "model"),
    "Q110": ("sources: [parquet]", "data.train.source"),
    "Q111": ("versions: {dprecipe: ['9.*']}", ""),
    "Q112": ("statement: [curators, region]", "release.statement.region"),
    "Q113": ("accept: {'*': []}", "accept.P112"),
}
KEPT = (
    "max_epsilon: 3.0, max_delta: 1.0e-6, units: [patient_id], max_records: 4, neighbouring: [add_or_remove_one]",
    "accountants: [pld], mechanisms: [dpsgd, pate], models: [logistic_regression], sources: [csv]",
    "versions: {dprecipe: ['0.*'], torch: ['9']}, statement: [curators], signed: true, signed_by: [office]",
    "accept: {P103: [], '*': [anyone]}",
    "accept: {P112: [office]}",
)


@pytest.mark.parametrize("code", VIOLATED)
def test_what_a_rule_does_not_allow_is_found_with_both_places(code: str, facts: GovernedFacts) -> None:
    rule, path = VIOLATED[code]
    (finding,) = check_policies(facts, [policy_of("max_epsilon: 3.0", rule)])
    assert (finding.code, finding.path) == (code, path)
    assert re.search(r"rule 'rule 1' of the policy 'hospital', dprecipe\.policy\.yaml:6:\d+\)$", finding.message)
    assert finding.remedy
    (located,) = read_held().located([finding])
    assert located.place is not None


@pytest.mark.parametrize("rule", KEPT)
def test_what_is_allowed_is_left_alone(rule: str, facts: GovernedFacts) -> None:
    assert codes_of(facts, rule) == []


def test_every_code_is_shown_and_has_a_page() -> None:
    assert VIOLATED.keys() | {"Q107", "Q114", "Q115"} == POLICY_CODES.keys()
    for code, title in POLICY_CODES.items():
        page = (ROOT / "docs" / "reference" / "findings" / f"{code}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {code}: {title}\n")
        assert "\n## Example\n" in page
        assert "\n## Remedy\n" in page


def test_all_rules_apply_so_one_more_only_narrows(facts: GovernedFacts) -> None:
    assert codes_of(facts, "max_epsilon: 9.0", "max_epsilon: 1.0", "max_epsilon: 2.0") == ["Q101", "Q101"]


@pytest.mark.parametrize(
    ("covering", "covered"),
    [
        ("data: ['wards/*.csv']", True),
        ("data: [admissions.csv]", True),  # the last part of the path, and whatever its case
        ("data: ['WARDS/*']", True),
        ("data: ['other/*']", False),
        ("except: ['wards/*']", False),
        ("except: ['WARDS/*']", True),  # another folder, where letters of other case are other letters
        ("data: ['*'], except: [Admissions.csv]", False),
    ],
)
def test_a_rule_covers_the_data_sets_that_it_names(covering: str, covered: bool, facts: GovernedFacts) -> None:
    assert (codes_of(facts, f"{covering}, max_epsilon: 1.0") == ["Q101"]) is covered


def test_a_path_does_not_escape_its_rule_by_a_detour() -> None:
    detour = read_facts(read_held(RECIPE.replace("wards/Adm", "./x/../wards//Adm")).recipe)
    assert codes_of(detour, "data: ['wards/*'], max_epsilon: 1.0") == ["Q101"]


@pytest.mark.parametrize(
    "source",
    [
        "{source: idx, images: scans.gz, labels: wards/./diagnoses.gz}",
        "{source: image_folder, path: scans, table: wards/diagnoses.gz, image_column: file, shape: [1, 8, 8], "
        "label: {column: y, values: [a, b]}}",
    ],
    ids=["labels", "a table"],
)
def test_a_file_of_labels_has_a_name(source: str) -> None:
    text = re.sub(r"train: .*?\]}}\n", f"train: {source}\n", RECIPE, flags=re.DOTALL)
    facts = read_facts(read_held(text.replace("unit: {column: patient_id, max_records: 4}", "unit: record")).recipe)
    assert [name.spellings[0].glob for name in facts.data] == ["scans.gz" if "idx" in source else "scans", TABLE]
    assert codes_of(facts, "data: ['diagnoses*'], max_epsilon: 1.0") == ["Q101"]


def test_tables_of_a_database_have_names() -> None:
    source = (
        "{source: postgres, connection: DB, tables: {t: public.admissions}, query: 'SELECT age, y, patient_id FROM t'"
    )
    text = RECIPE.replace("{source: csv, path: wards/Admissions.csv", source)
    facts = read_facts(read_held(text).recipe)
    for rule in ("postgres:DB/*", "postgres:DB", "public.admissions"):
        assert codes_of(facts, f"data: ['{rule}'], max_epsilon: 1.0") == ["Q101"]


def test_an_epsilon_that_is_not_solved_is_not_judged(facts: GovernedFacts) -> None:
    assert codes_of(replace(facts, epsilon=None), "max_epsilon: 0.1") == []
    assert codes_of(replace(facts, epsilon=0.10000001), "max_epsilon: 0.1") == ["Q101"]


@pytest.mark.parametrize(
    ("signing", "key", "rule", "expected"),
    [
        ("none", None, "signed: true", ["Q107"]),
        ("none", None, "signed_by: [office]", ["Q107"]),
        ("unknown", None, "signed_by: [office]", []),
        ("known", KEY, "signed_by: [office]", []),
        ("known", OTHER, "signed_by: [office]", ["Q107"]),
        ("known", OTHER, "signed: true", []),
        ("known", OTHER, "signed_by: []", ["Q107"]),
        ("none", None, "accept: {P112: [office]}", ["Q113"]),
        ("known", OTHER, "accept: {P112: [office]}", ["Q113"]),
        ("known", KEY, "accept: {P112: [office]}", []),
        ("known", KEY, "accept: {P112: []}", ["Q113"]),
    ],
)
def test_who_signs_is_who_may(signing: str, key: str | None, rule: str, expected: list[str]) -> None:
    facts = replace(read_facts(read_held().recipe), signing=signing, key=key)
    assert codes_of(facts, rule) == expected


def test_an_account_is_held_against_its_globs(facts: GovernedFacts) -> None:
    assert codes_of(replace(facts, account="accounts/wards.db"), "accounts: ['accounts/*.db']") == []
    for other in ("mine.db", "accounts/../mine.db", "Accounts/wards.db", "mine/accounts/wards.db"):
        assert codes_of(replace(facts, account=other), "accounts: ['accounts/*.db']") == ["Q106"]
    server = "postgresql://dp@host/accounts?sslmode=require#wards"
    assert codes_of(replace(facts, account=server), "accounts: ['postgresql://dp@host/accounts*']") == []


def test_records_of_a_unit_are_bounded(facts: GovernedFacts) -> None:
    assert codes_of(facts, "max_records: 3") == ["Q103"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("max_epsilon: 1.0, signed: true, statement: [region]", []),
        ("data: ['digits:'], max_epsilon: 1.0", ["Q108"]),
        ("data: ['digits:'], mechanisms: [dpsgd, none]", []),
        ("mechanisms: [dpsgd]", ["Q108"]),
    ],
)
def test_a_recipe_without_privacy_reads_no_data_set_that_a_rule_names(rule: str, expected: list[str]) -> None:
    loaded = read_any("public.yaml", open_text={"public.yaml": PUBLIC}.__getitem__)
    assert codes_of(read_facts(loaded.recipe), rule) == expected


def test_held_out_records_are_covered_too_unless_they_are_public() -> None:
    text = RECIPE.replace("  size: 20000", "  test: {path: late/x.csv}\n  size: 20000")
    assert codes_of(read_facts(read_held(text).recipe), "data: [x.csv], max_epsilon: 1.0") == ["Q101"]
    text = text.replace("late/x.csv", "late/x.csv, access: public")
    assert codes_of(read_facts(read_held(text).recipe), "data: [x.csv], max_epsilon: 1.0") == ["Q114"]
    assert codes_of(read_facts(read_held(text).recipe), "except: [Admissions.csv], max_epsilon: 1.0") == []


def test_records_cut_out_of_private_ones_are_not_public() -> None:
    text = RECIPE.replace("  size: 20000", "  test: {split: {share: 0.1}, access: public}\n  size: 20000")
    assert "Q114" in codes_of(read_facts(read_held(text).recipe), "data: [Admissions.csv]")
