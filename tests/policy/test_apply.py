"""Policies are obeyed by validate, plan, run, and verify."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

import dprecipe
from dprecipe.cli.main import app
from dprecipe.cli.render import as_sarif
from dprecipe.faults import CertificateInvalid, Finding, PlanRefused, RecipeError
from dprecipe.planning.make import plan as make_plan
from dprecipe.policy.apply import enforce_on_plan, enforce_on_run, hold_certificate
from dprecipe.policy.find import POLICY_FILE
from dprecipe.policy.read import read_policy
from dprecipe.recipe.read import read
from dprecipe.release.sign import key_id
from dprecipe.release.verify import Verified, verify
from dprecipe.training.run.account_run import open_account_of
from dprecipe.training.run.folder import RunFolder, enforce_policies
from tests.recipe_texts import SMALL
from tests.training.run.test_account_run import make_account

POLICY = "policy: dprecipe/v1\nname: hospital\nkeys: {}\nrules:\n  - {name: all, max_epsilon: 3.0}\n"
STRICT = POLICY.replace("3.0", "1.0")


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    folder = tmp_path / "team"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(SMALL, encoding="utf-8")
    return folder / "recipe.yaml"


@pytest.fixture
def office(tmp_path: Path) -> str:
    """The id of a key whose private part is beside the recipe, and the public one above it."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "key.pem").write_bytes(private)
    public = key.public_key()
    (tmp_path / "public.pem").write_bytes(
        public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return key_id(public)


def test_a_recipe_stays_below_its_policy_where_the_process_goes(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe.parent)
    plan = dprecipe.plan(dprecipe.load("recipe.yaml", {"budget.account": "a.db"}))
    (tmp_path / POLICY_FILE).write_text(STRICT, encoding="utf-8")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(PlanRefused, match="above 1"):
        dprecipe.run(plan, "out")
    make_account(recipe.parent / "a.db", 8.0)
    with closing(open_account_of(plan)) as account:  # and so does its account
        assert account.facts.epsilon == 8.0


def test_validate_finds_the_policy_above_and_the_one_it_is_given(recipe: Path, tmp_path: Path) -> None:
    assert call("validate", recipe).exit_code == 0
    (tmp_path / POLICY_FILE).write_text(STRICT, encoding="utf-8")
    result = call("validate", recipe)
    assert result.exit_code == 1
    assert f"{recipe}:10:19: error[Q101] budget.epsilon: ε = 2.0 is above 1.0" in result.stdout
    assert f"{POLICY_FILE}:5:30)" in result.stdout
    (tmp_path / POLICY_FILE).write_text(POLICY, encoding="utf-8")
    other = tmp_path / "other.yaml"
    other.write_text(STRICT, encoding="utf-8")
    assert call("validate", recipe).exit_code == 0
    assert call("validate", recipe, "--policy", other).exit_code == 1


def test_validate_checks_policies_as_policies(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / POLICY_FILE).write_text(POLICY, encoding="utf-8")
    result = call("validate", tmp_path)
    assert (result.exit_code, result.stdout) == (0, "2 recipes: no findings\n")
    (tmp_path / POLICY_FILE).write_text(POLICY.replace("max_epsilon", "max_epsilonn"), encoding="utf-8")
    result = call("validate", tmp_path, "--format", "json")
    assert result.exit_code == 1
    assert {finding["code"] for finding in json.loads(result.stdout)["findings"]} == {"R101"}


def test_plan_is_refused_or_states_what_it_keeps_to(recipe: Path, tmp_path: Path) -> None:
    before = enforce_on_plan(make_plan(read(recipe)))
    assert before.policies == ()
    (tmp_path / POLICY_FILE).write_text(POLICY, encoding="utf-8")
    plan = dprecipe.plan(dprecipe.load(recipe))
    assert plan.digest == before.digest
    assert [policy.name for policy in plan.policies] == ["hospital"]
    result = call("plan", recipe, "--format", "json")
    assert json.loads(result.stdout)["policies"] == [{"name": "hospital", "digest": plan.policies[0].digest}]
    (tmp_path / POLICY_FILE).write_text(STRICT, encoding="utf-8")
    refused = call("plan", recipe)
    assert refused.exit_code == 3
    assert refused.stderr.startswith("refused\n")
    assert "error[Q101]" in refused.stderr


def test_an_epsilon_to_be_solved_is_judged_by_the_plan(recipe: Path, tmp_path: Path) -> None:
    text = SMALL.replace("epsilon: 2.0", "epsilon: auto").replace("multiplier: auto", "multiplier: 9.0")
    recipe.write_text(text, encoding="utf-8")
    (tmp_path / POLICY_FILE).write_text(STRICT, encoding="utf-8")
    assert call("validate", recipe).exit_code == 0
    with pytest.raises(PlanRefused, match="Q101"):
        enforce_on_plan(make_plan(read(recipe)))


def test_a_run_is_refused_before_there_is_a_folder(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / POLICY_FILE).write_text(STRICT, encoding="utf-8")
    result = call("run", recipe, "--out", tmp_path / "out")
    assert result.exit_code == 3
    assert "error[Q101]" in result.stderr
    assert not (tmp_path / "out").exists()
    from dprecipe.api import run

    with pytest.raises(PlanRefused, match="Q101"):  # also of a plan that was made without asking
        run(make_plan(read(recipe)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_that_goes_on_under_a_stricter_policy_is_told_what_helps(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / POLICY_FILE).write_text(POLICY, encoding="utf-8")
    plan = enforce_on_run(make_plan(read(recipe)), recipe.parent)
    RunFolder.create(tmp_path / "out", plan)
    (tmp_path / POLICY_FILE).write_text(STRICT, encoding="utf-8")
    result = call("run", recipe, "--resume", "--out", tmp_path / "out")
    assert result.exit_code == 3
    assert f"began under another text: hospital ({plan.policies[0].digest[:19]}" in result.stderr.replace("\n", " ")
    assert "keeps its recipe" in result.stderr
    (tmp_path / POLICY_FILE).write_text(POLICY, encoding="utf-8")  # the remedy
    assert enforce_policies(plan, tmp_path / "out", resume=True, root=None).policies == plan.policies
    (tmp_path / "none").mkdir()
    (tmp_path / POLICY_FILE).write_text(STRICT, encoding="utf-8")
    with pytest.raises(PlanRefused, match="began without one"):
        enforce_policies(plan, tmp_path / "none", resume=True, root=None)


def test_a_run_is_held_with_its_key_its_versions_and_what_python_passes(
    recipe: Path, tmp_path: Path, office: str
) -> None:
    signed = SMALL + "release: {sign: {key: ../key.pem}}\n"
    recipe.write_text(signed, encoding="utf-8")
    plan = make_plan(read(recipe))
    rule = "signed_by: [office], models: [logistic_regression], sources: [digits], versions: {numpy: ['*']}"
    (tmp_path / POLICY_FILE).write_text(
        POLICY.replace("{}", f"{{office: {office}}}").replace("max_epsilon: 3.0", rule), encoding="utf-8"
    )
    assert len(enforce_on_run(plan, recipe.parent).policies) == 1
    for given, code in ((["model"], "Q109"), (["trainer"], "Q109"), (["data.train"], "Q110"), (["data.test"], "Q110")):
        with pytest.raises(PlanRefused, match=code):
            enforce_on_run(plan, recipe.parent, given)
    (tmp_path / POLICY_FILE).write_text(
        POLICY.replace("{}", f"{{office: {'0' * 64}}}").replace("max_epsilon: 3.0", rule.replace("'*'", "'0.0'")),
        encoding="utf-8",
    )
    assert len(enforce_on_plan(plan).policies) == 1  # neither the key nor numpy is judged before the run
    with pytest.raises(PlanRefused) as caught:
        enforce_on_run(plan, recipe.parent)
    assert {finding.code for finding in caught.value.findings} == {"Q107", "Q111"}


def test_a_policy_that_cannot_be_read_stops_everything(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / POLICY_FILE).write_text("rules: []\n", encoding="utf-8")
    assert call("validate", recipe).exit_code == 1
    with pytest.raises(RecipeError):
        enforce_on_plan(make_plan(read(recipe)))


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory, release_of: Any) -> Verified:
    return verify(release_of(SMALL, tmp_path_factory.mktemp("held")))


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("max_epsilon: 3.0", ""),
        ("max_epsilon: 1.9", "Q101"),
        ("signed: true", "Q107"),
        ("mechanisms: [pate]", "Q108"),
        ("versions: {numpy: ['0.0']}", "Q111"),
        ("statement: [curators]", "Q112"),
    ],
)
def test_a_certificate_is_held_against_a_policy(rule: str, code: str, verified: Verified, tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(POLICY.replace("max_epsilon: 3.0", rule), encoding="utf-8")
    if not code:
        assert "it keeps to the policy 'hospital' (sha256:" in hold_certificate(verified, file)
        return
    with pytest.raises(CertificateInvalid) as caught:
        hold_certificate(verified, file)
    (failure,) = caught.value.failures
    assert failure.startswith(f"error[{code}]")
    assert "theirs.yaml:5:" in failure


def test_the_certificate_names_the_policies_of_its_run(tmp_path: Path, release_of: Any) -> None:
    (tmp_path / POLICY_FILE).write_text(POLICY, encoding="utf-8")
    record = read_policy(tmp_path / POLICY_FILE).record
    verified = verify(release_of(SMALL, tmp_path, (record,)))
    (stated,) = verified.statement.predicate.provenance.policies
    assert (stated.name, stated.digest) == ("hospital", record.digest)
    assert "the same text" in hold_certificate(verified, tmp_path / POLICY_FILE)


def test_the_key_that_was_checked_is_the_signer(verified: Verified, tmp_path: Path, office: str) -> None:
    file = tmp_path / "theirs.yaml"
    rule = POLICY.replace("{}", f"{{office: {office}}}").replace("max_epsilon: 3.0", "signed_by: [office]")
    file.write_text(rule, encoding="utf-8")
    hold_certificate(verified, file, tmp_path / "public.pem")
    file.write_text(rule.replace(office, "0" * 64), encoding="utf-8")
    with pytest.raises(CertificateInvalid, match="not one of those that have to sign"):
        hold_certificate(verified, file, tmp_path / "public.pem")


def test_names_of_a_stranger_are_escaped(verified: Verified, tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(STRICT.replace("name: hospital", 'name: "x\\u202ey\\n- verified"'), encoding="utf-8")
    with pytest.raises(CertificateInvalid) as caught:
        hold_certificate(verified, file)
    assert "\u202e" not in str(caught.value)
    assert len(caught.value.failures[0].splitlines()) == 1


def test_sarif_names_the_rule() -> None:
    assert (
        "ε above what a policy allows"
        in json.loads(as_sarif([Finding("Q101", "m", "r")]))["runs"][0]["tool"]["driver"]["rules"][0][
            "shortDescription"
        ]["text"]
    )


@pytest.mark.slow
def test_a_run_under_a_policy_ends_in_a_certificate_that_keeps_to_it(
    recipe: Path, tmp_path: Path, office: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train, sign, verify; and the same release against a policy that became stricter."""
    monkeypatch.delenv("DPRECIPE_DATA", raising=False)
    text = SMALL.replace("1437", "1438") + "release: {sign: {key: ../key.pem}, statement: {curators: [Us]}}\n"
    recipe.write_text(text, encoding="utf-8")
    rules = "max_epsilon: 2.0, signed_by: [office], statement: [curators], versions: {torch: ['*']}"
    policy = POLICY.replace("{}", f"{{office: {office}}}").replace("max_epsilon: 3.0", rules)
    (tmp_path / POLICY_FILE).write_text(policy, encoding="utf-8")
    run = dprecipe.run(dprecipe.plan(dprecipe.load(recipe)), tmp_path / "out")
    verified = verify(run.release, tmp_path / "public.pem")
    kept = hold_certificate(verified, tmp_path / POLICY_FILE, tmp_path / "public.pem")
    assert "the run was checked against the same text" in kept
    with pytest.raises(CertificateInvalid, match="Q107"):  # a signature that nobody checked is none
        hold_certificate(verified, tmp_path / POLICY_FILE)
    (tmp_path / POLICY_FILE).write_text(policy.replace("2.0", "1.0"), encoding="utf-8")
    with pytest.raises(CertificateInvalid, match="Q101"):
        hold_certificate(verified, tmp_path / POLICY_FILE, tmp_path / "public.pem")
