"""The rules of a policy, each a small function that checks what the policy governs. Findings name the place in the
recipe and that of the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from dprecipe.faults import Finding
from dprecipe.language.words import join_with_or
from dprecipe.planning.accept import WARNINGS
from dprecipe.policy.facts import DataName, GovernedFacts, covers, matches_account
from dprecipe.policy.read import ANYONE, OTHERS, LoadedPolicy, Policy, PolicyRule

POLICY_CODES: dict[str, str] = {
    "Q101": "ε above what a policy allows",
    "Q102": "δ above what a policy allows",
    "Q103": "a unit that a policy does not allow",
    "Q104": "a neighbouring relation that a policy does not allow",
    "Q105": "an accountant that a policy does not allow",
    "Q106": "an account that a policy requires",
    "Q107": "a signature that a policy requires",
    "Q108": "a mechanism that a policy does not allow",
    "Q109": "a model that a policy does not allow",
    "Q110": "a source that a policy does not allow",
    "Q111": "a version that a policy does not allow",
    "Q112": "a statement that a policy requires",
    "Q113": "an acceptance that a policy does not allow",
    "Q114": "a data set of a policy that is called public",
    "Q115": "a unit that a query makes",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that a rule does not allow. `path`: its path in the recipe; `key`: that of the rule, below the rule's
    own path."""

    code: str
    message: str
    remedy: str
    path: str
    key: str


Check = Callable[[GovernedFacts, PolicyRule, Policy], Iterator[Violation]]


def check_policies(facts: GovernedFacts, policies: Iterable[LoadedPolicy]) -> list[Finding]:
    """Returns the findings of all policies, without places in the recipe."""
    return [finding for loaded in policies for finding in _check_policy(facts, loaded)]


def _check_policy(facts: GovernedFacts, loaded: LoadedPolicy) -> Iterator[Finding]:
    folders = loaded.folders
    for index, rule in enumerate(loaded.policy.rules):
        name = find_covered(rule, facts, folders)
        found = [] if name is None else [each for check in CHECKS for each in check(facts, rule, loaded.policy)]
        found += _check_public(facts, rule, folders)
        covered = "" if name is None or rule.data is None else f", covers {name.key}"
        for each in found:
            place = loaded.place(f"rules.{index}.{each.key}")
            where = f"{place.file}:{place.line}:{place.column}"
            message = f"{each.message} (rule {rule.name!a} of the policy {loaded.policy.name!a}, {where}{covered})"
            yield Finding(each.code, message, each.remedy, each.path)


def find_covered(rule: PolicyRule, facts: GovernedFacts, folders: Sequence[str]) -> DataName | None:
    """Returns the first private data set that a rule covers; for a recipe without privacy, any that the rule names."""
    if facts.is_public and rule.data is None and rule.mechanisms is None:
        return None  # a rule for all private data; a recipe without privacy declares that it reads none
    ruled = (name for name in facts.data if facts.is_public or not name.is_public)
    return next((name for name in ruled if covers(rule, name, folders)), None)


def _check_public(facts: GovernedFacts, rule: PolicyRule, folders: Sequence[str]) -> Iterator[Violation]:
    """Refuses a data set that a rule names and a recipe with privacy declares public, unless the rule allows `none`."""
    if facts.is_public or rule.data is None or "none" in (rule.mechanisms or ()):
        return
    for name in facts.data:
        if name.is_public and covers(rule, name, folders):
            yield Violation(
                "Q114",
                "the rule names this data set, and the recipe reads it as public records, which nothing protects",
                "declare access: private_internal, or read other data; or ask the policy's owner for `none` in the "
                "rule's mechanisms",
                name.key,
                "data",
            )


def check_mechanism(facts: GovernedFacts, rule: PolicyRule, policy: Policy) -> Iterator[Violation]:
    """Checks the mechanism. Refuses a recipe without privacy that reads a data set named by a rule, unless the rule
    allows it."""
    if rule.mechanisms is not None and facts.mechanism not in rule.mechanisms:
        yield Violation(
            "Q108",
            f"mechanism {facts.mechanism} is not allowed",
            f"use {_join(rule.mechanisms)}",
            "mechanism.kind",
            "mechanisms",
        )
    elif rule.mechanisms is None and facts.is_public:
        yield Violation(
            "Q108",
            "the rule names this data set, and mechanism none protects nobody",
            "choose a mechanism with a guarantee, or read other data",
            "mechanism.kind",
            "data",
        )


def check_budget(facts: GovernedFacts, rule: PolicyRule, policy: Policy) -> Iterator[Violation]:
    """Checks ε and δ."""
    for code, name, value, most in (
        ("Q101", "epsilon", facts.epsilon, rule.max_epsilon),
        ("Q102", "delta", facts.delta, rule.max_delta),
    ):
        if value is not None and most is not None and not value <= most:
            yield Violation(
                code,
                f"{'ε' if name == 'epsilon' else 'δ'} = {value!r} is above {most!r}",
                f"set budget.{name} to at most {most!r}",
                f"budget.{name}",
                f"max_{name}",
            )


def check_protected(facts: GovernedFacts, rule: PolicyRule, policy: Policy) -> Iterator[Violation]:
    """Checks the unit, the relation and the accountant."""
    for code, path, value, key, allowed in (
        ("Q103", "data.unit", facts.unit, "units", rule.units),
        ("Q104", "budget.neighbouring", facts.neighbouring, "neighbouring", rule.neighbouring),
        ("Q105", "budget.accountant", facts.accountant, "accountants", rule.accountants),
    ):
        if value is not None and allowed is not None and value not in allowed:
            yield Violation(code, f"{value} is not allowed", f"use {_join(allowed)}", path, key)
    if rule.units is not None and facts.unit in rule.units and facts.is_unit_made:
        yield Violation(
            "Q115",
            f"the query may make the unit {facts.unit} from another column of that name's table",
            f"select the column as it is, by its own name: SELECT {facts.unit}, …, without rows: declared",
            "data.train.query",
            "units",
        )
    records, most = facts.max_records, rule.max_records
    if records is not None and most is not None and records > most:
        yield Violation(
            "Q103",
            f"a unit has up to {records:,} records, and {most:,} are allowed",
            f"set data.unit.max_records to at most {most:,}",
            "data.unit.max_records",
            "max_records",
        )


def check_account(facts: GovernedFacts, rule: PolicyRule, policy: Policy) -> Iterator[Violation]:
    """Checks that the cost is charged to one of the rule's accounts."""
    if rule.accounts is None or facts.is_public:
        return
    if facts.account is None or not matches_account(facts.account, rule.accounts):
        said = "no account is named" if facts.account is None else f"{facts.account!a} is none of the accounts"
        yield Violation(
            "Q106",
            f"the cost has to be charged to an account, and {said}",
            f"set budget.account: {_join(rule.accounts)}",
            "budget.account",
            "accounts",
        )


def check_signature(facts: GovernedFacts, rule: PolicyRule, policy: Policy) -> Iterator[Violation]:
    """Checks that there is a signature and that the key, if known, is one of those that may sign."""
    names = rule.signed_by
    if facts.is_public or not (rule.signed or names is not None):
        return
    key = "signed" if names is None else "signed_by"
    if facts.signing == "none":
        yield Violation(
            "Q107",
            "the certificate has to be signed",
            "set release.sign; of a certificate, give the key with --public-key",
            "release.sign",
            key,
        )
    elif names is not None and facts.key is not None and facts.key not in {policy.keys[name] for name in names}:
        yield Violation(
            "Q107",
            f"the key {facts.key[:16]}… is not one of those that have to sign",
            f"sign with the key of {_join(names)}",
            "release.sign.key",
            key,
        )


def check_kinds(facts: GovernedFacts, rule: PolicyRule, policy: Policy) -> Iterator[Violation]:
    """Checks the model, what trains it, and the sources."""
    if rule.models is not None and facts.model not in rule.models:
        yield Violation("Q109", f"model {facts.model} is not allowed", f"use {_join(rule.models)}", "model", "models")
    if rule.models is not None and facts.trainer == "python" and "python" not in rule.models:
        message = "a trainer from Python is not allowed: its callbacks run beside private records"
        yield Violation("Q109", message, "train by dprecipe run, or dprecipe.run", "model", "models")
    for path, kind in facts.sources:
        if rule.sources is not None and kind not in rule.sources:
            yield Violation("Q110", f"source {kind} is not allowed", f"use {_join(rule.sources)}", path, "sources")


def check_versions(facts: GovernedFacts, rule: PolicyRule, policy: Policy) -> Iterator[Violation]:
    """Checks the versions of packages, as far as known; the version of a package that nothing names is not known."""
    for name, patterns in (rule.versions or {}).items():
        version = facts.versions.get(name)
        if version is not None and not any(fnmatchcase(version, pattern) for pattern in patterns):
            yield Violation(
                "Q111",
                f"{name} {version} is not allowed",
                f"use {name} {_join(patterns)}",
                "",
                f"versions.{name}",
            )


def check_statement(facts: GovernedFacts, rule: PolicyRule, policy: Policy) -> Iterator[Violation]:
    """Checks that the required keys are stated."""
    if facts.is_public:
        return
    for index, key in enumerate(rule.statement or ()):
        if facts.statement is None or getattr(facts.statement, key) is None:
            path = f"release.statement.{key}"
            yield Violation("Q112", f"{path} has to be stated", f"write {path}", path, f"statement.{index}")


def check_acceptances(facts: GovernedFacts, rule: PolicyRule, policy: Policy) -> Iterator[Violation]:
    """Checks that warnings are accepted by someone who may: the one who signs the certificate."""
    allowed = rule.accept or {}
    for code in facts.accepted:
        key = code if code in allowed else OTHERS
        names = allowed.get(key, (ANYONE,))
        keys = {policy.keys[name] for name in names if name != ANYONE}
        if ANYONE in names or (keys and (facts.key in keys or (facts.key is None and facts.signing == "unknown"))):
            continue
        about = f"{code} ({WARNINGS.get(code, 'no warning')})"
        who = f"only {_join(names)} may accept it, by signing the certificate" if names else "no one may accept it"
        yield Violation(
            "Q113",
            f"{about} is accepted, and {who}",
            f"remove accept.{code} and its cause" + (f"; or sign as {_join(names)}" if names else ""),
            f"accept.{code}",
            f"accept.{key}",
        )


CHECKS: tuple[Check, ...] = (
    check_mechanism,
    check_budget,
    check_protected,
    check_account,
    check_signature,
    check_kinds,
    check_versions,
    check_statement,
    check_acceptances,
)


def _join(words: Sequence[str]) -> str:
    return join_with_or(list(words)) if words else "nothing: the list is empty"
