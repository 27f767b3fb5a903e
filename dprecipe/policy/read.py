"""A policy, and the reader of its file, which is untrusted input: every finding is at its place.

A policy has rules that each recipe has to keep to, for all data sets or for some. All rules that cover a data set
apply, so another rule only narrows what is allowed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from dprecipe.contract.plan import PolicyRecord
from dprecipe.contract.table import MECHANISMS
from dprecipe.faults import Finding, Place, RecipeError
from dprecipe.language.base import Block, Fraction, PositiveFloat, PositiveInt, Text
from dprecipe.language.statement import QUESTIONS, Line, Prose
from dprecipe.planning.accept import WARNINGS
from dprecipe.policy.find import POLICY_FILE, find_policies
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.recipe.read import sort_findings
from dprecipe.recipe.root import Recipe
from dprecipe.recipe.vocabulary import expect_form, list_keys, list_kinds
from dprecipe.text.load import parse, read_file
from dprecipe.text.spelling import nearest_word
from dprecipe.text.tree import Mapping, find_node, to_plain

Word = Annotated[str, Field(min_length=1, max_length=100)]
KeyId = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

ANYONE = "anyone"
"""A word that replaces a key: accepting a warning takes no signature."""
OTHERS = "*"
"""A word that replaces a code: every warning that a rule does not name."""


class PolicyRule(Block):
    """A rule that a recipe has to keep to if it covers one of the recipe's private data sets. A key that is left out
    restricts nothing."""

    name: Line
    data: Annotated[tuple[Text, ...], Field(min_length=1, max_length=100)] | None = Field(
        None, description="data sets that the rule covers: names or globs; all of them when left out"
    )
    excluded: Annotated[tuple[Text, ...], Field(min_length=1, max_length=100)] | None = Field(
        None, alias="except", description="data sets that it does not cover: names or globs"
    )
    max_epsilon: PositiveFloat | None = None
    max_delta: Fraction | None = None
    max_records: PositiveInt | None = Field(None, description="of one unit")
    units: tuple[Text, ...] | None = Field(None, description="who may be protected: columns, or `record`")
    neighbouring: tuple[Word, ...] | None = None
    accountants: tuple[Word, ...] | None = None
    accounts: tuple[Text, ...] | None = Field(
        None, description="where the cost has to be charged: names or globs of budget.account"
    )
    signed: Literal[True] | None = Field(None, description="the certificate has to be signed")
    signed_by: tuple[Word, ...] | None = Field(None, description="… by one of these keys")
    mechanisms: tuple[Word, ...] | None = Field(None, description="`none`: also recipes without privacy")
    models: tuple[Word, ...] | None = Field(None, description="kinds; `python`: also modules and trainers from Python")
    sources: tuple[Word, ...] | None = Field(None, description="kinds; `python`: also records from Python")
    versions: dict[Word, tuple[Word, ...]] | None = Field(
        None, description="allowed versions of packages, as globs: {dprecipe: ['0.1.*']}"
    )
    statement: tuple[Word, ...] | None = Field(None, description="keys of release.statement that have to be stated")
    accept: dict[Word, tuple[Word, ...]] | None = Field(
        None, description="who may accept a warning, by its code or `*`: names of keys, `anyone`, or no one: []"
    )


class Policy(Block):
    """The rules of an organisation."""

    policy: Literal["dprecipe/v1"] = Field(description="the version of the language")
    name: Line
    description: Prose | None = None
    keys: dict[Word, KeyId] = Field(
        default_factory=dict, max_length=100, description="Ed25519 keys by name: SHA-256 of the public key (DER)"
    )
    rules: Annotated[tuple[PolicyRule, ...], Field(min_length=1, max_length=200)]


def policy_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a policy."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dprecipe policy",
        **Policy.model_json_schema(by_alias=True),
    }


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy with its text."""

    policy: Policy
    file: str
    text: str
    tree: Mapping

    @property
    def record(self) -> PolicyRecord:
        """The policy's name and the SHA-256 of its text."""
        return PolicyRecord(self.policy.name, "sha256:" + hashlib.sha256(self.text.encode()).hexdigest())

    @property
    def folders(self) -> tuple[str, ...]:
        """The policy's folder, under each of its names."""
        paths = (os.path.abspath(self.file), os.path.realpath(self.file))
        return tuple(dict.fromkeys(Path(path).parent.as_posix() for path in paths))

    @property
    def names_data(self) -> bool:
        """True if a rule names data sets, to cover or to exclude."""
        return any(rule.data or rule.excluded for rule in self.policy.rules)

    def place(self, path: str) -> Place:
        """Returns the place where a dotted path is written."""
        return find_node(self.tree, path)[1]


def load_policies(recipe: str | os.PathLike[str], more: Path | None = None) -> tuple[LoadedPolicy, ...]:
    """Loads the policies that a recipe has to keep to: see `find_policies`.

    Raises:
        RecipeError: one of them is wrong. A policy that can't be read allows nothing.
    """
    return tuple(read_policy(path) for path in find_policies(recipe, more))


def read_policy(path: str | os.PathLike[str]) -> LoadedPolicy:
    """Reads a policy.

    Raises:
        RecipeError: with all that is wrong, each at its place.
    """
    file = os.fspath(path)
    return read_policy_text(read_file(file), file)


def read_policy_text(text: str, file: str = POLICY_FILE) -> LoadedPolicy:
    """Reads a policy from a text. Raises like `read_policy`."""
    root, findings = parse(text, file)
    if not isinstance(root, Mapping):
        message, remedy = "a policy is a block of keys", "begin with `policy: dprecipe/v1`; see docs/how-to/policy.md"
        raise RecipeError(findings or (Finding("Y115", message, remedy, place=Place(file, 1, 1)),), {file: text})
    if findings:
        raise RecipeError(sort_findings(findings, {file: text}), {file: text})
    try:
        policy = Policy.model_validate_json(json.dumps(to_plain(root)))
    except ValidationError as error:
        from dprecipe.recipe.wording import word_document_error  # needed only by policies that are wrong

        raise RecipeError(sort_findings(word_document_error(error, root, Policy), {file: text}), {file: text}) from None
    loaded = LoadedPolicy(policy, file, text, root)
    wrong = [
        Finding(each.code, each.message, each.remedy, each.path, loaded.place(each.path))
        for each in _find_unknown_words(policy)
    ]
    if wrong:
        raise RecipeError(sort_findings(wrong, {file: text}), {file: text})
    return loaded


def list_known_words() -> dict[str, Collection[str]]:
    """Returns the words that each list of a rule may hold, by its key."""
    budget, data = (list_keys(Recipe)[key].blocks[0] for key in ("budget", "data"))
    sources = expect_form(data.model_fields["train"].annotation)
    models = expect_form(Recipe.model_fields["model"].annotation)
    return {
        "neighbouring": [relation.value for relation in Neighbouring],
        "accountants": [str(word) for word in list_keys(budget)["accountant"].words],
        "mechanisms": [*MECHANISMS, "none"],
        "models": [*list_kinds(models.blocks), "python"],
        "sources": [*list_kinds(sources.blocks), "python"],
        "statement": list(QUESTIONS),
    }


def _find_unknown_words(policy: Policy) -> Iterator[Finding]:
    """Yields a finding for each unknown word: a misspelt one would forbid what is meant to be allowed, or the
    reverse."""
    known = list_known_words()
    for index, rule in enumerate(policy.rules):
        path = f"rules.{index}"
        for key, words in known.items():
            for position, word in enumerate(getattr(rule, key) or ()):
                yield from _check_word(word, words, f"{path}.{key}.{position}")
        for position, name in enumerate(rule.signed_by or ()):
            yield from _check_word(name, policy.keys, f"{path}.signed_by.{position}")
        yield from _check_acceptances(policy, rule, path)


def _check_acceptances(policy: Policy, rule: PolicyRule, path: str) -> Iterator[Finding]:
    for code, names in (rule.accept or {}).items():
        yield from _check_word(code, [*WARNINGS, OTHERS], f"{path}.accept.{code}")
        for position, name in enumerate(names):
            yield from _check_word(name, [*policy.keys, ANYONE], f"{path}.accept.{code}.{position}")


def _check_word(word: str, known: Collection[str], path: str) -> Iterator[Finding]:
    if word in known:
        return
    near = nearest_word(word, known)
    choice = ", ".join(f"`{each}`" for each in known) or "none: `keys` is empty"
    yield Finding(
        "R106",
        f"`{word[:60]}` is not known here" + (f"; did you mean `{near}`?" if near else ""),
        f"write `{near}`" if near else f"known: {choice}",
        path,
    )
