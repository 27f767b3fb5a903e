"""Holds recipes and plans against policies. A run under a policy that it violates is refused before
anything is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dprecipe.faults import Finding, PlanRefused
from dprecipe.mechanisms.plan import Plan
from dprecipe.policy.facts import GovernedFacts, read_facts
from dprecipe.policy.read import LoadedPolicy, load_policies
from dprecipe.policy.rules import check_policies
from dprecipe.recipe.read import Loaded, LoadedPublic, read_source


def check_loaded(loaded: Loaded | LoadedPublic, more: Path | None = None) -> tuple[Finding, ...]:
    """What the policies found above a recipe, and `more`, do not allow of it, each at its place.

    Raises:
        RecipeError: a policy is wrong.
    """
    policies = load_policies(loaded.source.file, more)
    return loaded.located(check_policies(read_facts(loaded.recipe), policies)) if policies else ()


def hold_public(loaded: LoadedPublic) -> None:
    """Refuse to run a recipe without privacy that a policy does not allow.

    Raises:
        RecipeError: a policy is wrong.
        PlanRefused: with what is not allowed.
    """
    if findings := check_loaded(loaded):
        raise PlanRefused(findings)


def hold_plan(plan: Plan) -> Plan:
    """The plan, with the policies found above its recipe, to which it keeps.

    Raises:
        RecipeError: a policy is wrong.
        PlanRefused: with what is not allowed.
    """
    return _hold(plan, {})


def hold_run(plan: Plan, from_python: Sequence[str] = ()) -> Plan:
    """The same, of a run that is about to begin: with its key and the installed packages. `from_python`: what replaces
    parts of the recipe, by the keys `model` and `data.train`, `data.test`, `data.public`.

    Raises:
        RecipeError, PlanRefused: as `hold_plan`.
        UsageFault: the key that signs can't be used.
    """
    from dprecipe.release.facts import list_versions  # what certificates need takes time to import, and is for runs

    return _hold(plan, list_versions(), from_python, with_key=True)


def _hold(plan: Plan, versions: Mapping[str, str], from_python: Sequence[str] = (), *, with_key: bool = False) -> Plan:
    policies = load_policies(plan.source.file)
    if not policies:
        return plan
    loaded = read_source(plan.source)
    facts = _replace_parts(read_facts(loaded.recipe), from_python)
    facts = replace(facts, epsilon=plan.budget.epsilon)
    if versions:
        facts = replace(facts, versions=versions)
    if with_key and plan.release.sign is not None:
        from dprecipe.release.sign import key_id, load_private_key

        key = load_private_key(Path(plan.source.file).parent / plan.release.sign.key)
        facts = replace(facts, signing="known", key=key_id(key.public_key()))
    _refuse(loaded, facts, policies)
    return replace(plan, policies=tuple(policy.record for policy in policies))


def _replace_parts(facts: GovernedFacts, from_python: Sequence[str]) -> GovernedFacts:
    """The facts where a model or records come from Python: their kind is then `python`."""
    sources = [(path, kind) for path, kind in facts.sources if path.removesuffix(".source") not in from_python]
    sources += [(f"{path}.source", "python") for path in from_python if path != "model"]
    return replace(facts, model="python" if "model" in from_python else facts.model, sources=tuple(sources))


def _refuse(loaded: Loaded, facts: GovernedFacts, policies: Sequence[LoadedPolicy]) -> None:
    if findings := check_policies(facts, policies):
        raise PlanRefused(loaded.located(findings))
