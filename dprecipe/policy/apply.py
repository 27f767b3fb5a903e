"""Checks of recipes, plans and certificates against policies.

A run that violates a policy is refused before anything is spent. The code that reads and compares policies is
imported only if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dprecipe.contract.plan import Plan, PolicyRecord
from dprecipe.faults import CertificateInvalid, Finding, PlanRefused
from dprecipe.policy.find import find_policies
from dprecipe.recipe.read import Loaded, LoadedPublic, read_source

if TYPE_CHECKING:
    from dprecipe.policy.facts import GovernedFacts
    from dprecipe.policy.read import LoadedPolicy
    from dprecipe.release.verify import Verified


def check_loaded(loaded: Loaded | LoadedPublic, more: Path | None = None) -> tuple[Finding, ...]:
    """Returns what the policies found above a recipe, and `more`, do not allow of it, each finding at its place.

    Raises:
        RecipeError: a policy is wrong.
    """
    if not find_policies(loaded.source.file, more):
        return ()
    from dprecipe.policy.facts import read_facts
    from dprecipe.policy.read import load_policies
    from dprecipe.policy.rules import check_policies

    return loaded.located(check_policies(read_facts(loaded.recipe), load_policies(loaded.source.file, more)))


def enforce_on_recipe(loaded: Loaded | LoadedPublic, root: Path | None = None) -> None:
    """Refuses a recipe that a policy does not allow, where it is used without a plan: to run one without privacy, or to
    publish something about its public records. `root`: the data root, if data are about to be read.

    Raises:
        RecipeError: a policy is wrong.
        PlanRefused: with what is not allowed.
    """
    if not find_policies(loaded.source.file):
        return
    from dprecipe.policy.facts import read_facts
    from dprecipe.policy.read import load_policies

    policies = load_policies(loaded.source.file)
    _refuse(loaded, _place(read_facts(loaded.recipe), root, policies), policies)


def enforce_on_sample(file: Path, root: Path, recipe: Path) -> None:
    """Refuses to read `file`, an absolute path, as a public sample for `recipe` if a policy above the recipe names it.

    Raises:
        RecipeError: a policy is wrong.
        PlanRefused: the policy names it.
    """
    if not find_policies(recipe):
        return
    from dprecipe.policy.facts import name_sample
    from dprecipe.policy.read import load_policies
    from dprecipe.policy.rules import check_policies

    policies = load_policies(recipe)
    if findings := check_policies(_place(name_sample(file.as_posix()), root, policies), policies):
        remedy = "draft names and kinds alone (--private), or from another file"
        raise PlanRefused([replace(finding, path="", remedy=remedy) for finding in findings])


def enforce_on_plan(plan: Plan) -> Plan:
    """Checks a plan against the policies found above its recipe; returns it with the policies that it keeps to.

    Raises:
        RecipeError: a policy is wrong.
        PlanRefused: with what is not allowed.
    """
    return _enforce(plan, {})


def enforce_on_run(
    plan: Plan, root: Path | None, from_python: Sequence[str] = (), began: Sequence[PolicyRecord] | None = None
) -> Plan:
    """Does the same for a run that is about to begin: also checks its key, the installed packages, and where its files
    lie below the data root. `root`: None if no more files are read. `from_python`: the parts of the recipe replaced
    from Python, by the keys `model`, `trainer`, `data.train`, `data.test`, `data.public`. `began`: for a resumed run,
    the policies that it kept to when it began. A resumed run has to keep to today's policies: earlier ones, recorded
    in its folder, permit nothing and affect only the wording of a refusal.

    Raises:
        RecipeError, PlanRefused: as `enforce_on_plan`.
        UsageFault: the key that signs can't be used.
    """
    from dprecipe.release.facts import list_versions  # slow to import, and needed only for runs

    try:
        return _enforce(plan, list_versions(), from_python, root)
    except PlanRefused as refused:
        if began is None:
            raise
        raise PlanRefused([_advise_resumed(finding, began, plan) for finding in refused.findings]) from None


def _advise_resumed(finding: Finding, began: Sequence[PolicyRecord], plan: Plan) -> Finding:
    """Rewrites a finding for a resumed run: its recipe can't be changed, so the finding's own remedy does not help."""
    from dprecipe.policy.read import load_policies

    now = {policy.record for policy in load_policies(plan.source.file)}
    gone = ", ".join(f"{policy.name} ({policy.digest[:19]}…)" for policy in began if policy not in now)
    change = f"; the run began under another text: {gone}" if gone else "" if began else "; the run began without one"
    return replace(
        finding,
        message=finding.message + change,
        remedy="a run that has begun keeps its recipe: ask the policy's owner to let it end (by the earlier text, or "
        "by an exception for these data, until then), and continue with --resume; or leave it: what it drew stays "
        "spent",
    )


def hold_certificate(verified: Verified, path: Path, public_key: Path | None = None) -> str:
    """Checks a verified certificate, no matter who made it, against the policy at `path`; returns what holds, in words.

    The recipe is that of the certificate, ε its claim, and the signature counts if it was checked with `public_key`.

    Raises:
        RecipeError: the policy is wrong.
        CertificateInvalid: with what the policy does not allow.
    """
    from dprecipe.policy.facts import forget_name, read_facts
    from dprecipe.policy.read import read_policy
    from dprecipe.policy.rules import check_policies
    from dprecipe.release.rebuild import stated_source
    from dprecipe.release.sign import key_id, load_public_key

    loaded_policy = read_policy(path)
    predicate = verified.statement.predicate
    provenance = predicate.provenance
    loaded = read_source(stated_source(predicate))
    facts = read_facts(loaded.recipe)
    if provenance.model == "python":
        facts = replace(facts, model="python")
    if provenance.trainer == "python":
        facts = replace(facts, trainer="python")
    if provenance.data == "python":  # which of the sources, the certificate does not say
        data = tuple(map(forget_name, facts.data))
        facts = replace(facts, sources=(*facts.sources, ("data", "python")), data=data)
    key = None if public_key is None else key_id(load_public_key(public_key))
    facts = replace(
        facts,
        epsilon=verified.claim.epsilon,
        delta=verified.claim.delta,
        signing="none" if key is None else "known",
        key=key,
        versions=provenance.versions,
    )
    findings = loaded.located(check_policies(facts, [loaded_policy]))
    if findings:
        raise CertificateInvalid([f"{finding.headline}: {finding.message}" for finding in findings])
    record = loaded_policy.record
    known = any(policy.digest == record.digest for policy in provenance.policies)
    unseen = "; the targets of links and the data root were not checked" if loaded_policy.names_data else ""
    before = "the run was checked against the same text" if known else f"the run names other policies, or none{unseen}"
    return f"it keeps to the policy {record.name!a} ({record.digest}); {before}"


def _enforce(
    plan: Plan, versions: Mapping[str, str], from_python: Sequence[str] = (), root: Path | None = None
) -> Plan:
    if not find_policies(plan.source.file):
        return plan
    from dprecipe.policy.facts import read_facts
    from dprecipe.policy.read import load_policies

    policies = load_policies(plan.source.file)
    loaded = read_source(plan.source)
    facts = _replace_parts(read_facts(loaded.recipe), from_python)
    facts = replace(facts, epsilon=plan.budget.epsilon)
    if versions:
        facts = replace(facts, versions=versions)
    facts = _place(facts, root, policies)
    if versions and plan.release.sign is not None:
        from dprecipe.release.sign import key_id, load_private_key

        key = load_private_key(Path(plan.source.file).parent / plan.release.sign.key)
        facts = replace(facts, signing="known", key=key_id(key.public_key()))
    _refuse(loaded, facts, policies)
    return replace(plan, policies=tuple(policy.record for policy in policies))


def _replace_parts(facts: GovernedFacts, from_python: Sequence[str]) -> GovernedFacts:
    """Returns the facts where a model or records come from Python: their kind is then `python`, their name unknown."""
    from dprecipe.policy.facts import forget_name

    sources = [(path, kind) for path, kind in facts.sources if path.removesuffix(".source") not in from_python]
    sources += [(f"{path}.source", "python") for path in from_python if path not in ("model", "trainer")]
    begins = tuple(f"{path}." for path in from_python)
    data = tuple(forget_name(name) if name.key.startswith(begins) else name for name in facts.data)
    model = "python" if "model" in from_python else facts.model
    trainer = "python" if "trainer" in from_python else facts.trainer
    return replace(facts, model=model, trainer=trainer, sources=tuple(sources), data=data)


def _place(facts: GovernedFacts, root: Path | None, policies: Sequence[LoadedPolicy]) -> GovernedFacts:
    """Returns the facts with the places of the run's files, if a rule asks for them."""
    if root is None or not any(policy.names_data for policy in policies):
        return facts
    from dprecipe.policy.facts import place_data

    return replace(facts, data=place_data(facts.data, root, [policy.file for policy in policies]))


def _refuse(loaded: Loaded | LoadedPublic, facts: GovernedFacts, policies: Sequence[LoadedPolicy]) -> None:
    from dprecipe.policy.rules import check_policies

    if findings := check_policies(facts, policies):
        raise PlanRefused(loaded.located(findings))
