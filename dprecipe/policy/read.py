"""The reader of policies, with every finding at its place. Policies are untrusted input."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from dprecipe.contract.plan import PolicyRecord
from dprecipe.contract.table import MECHANISMS
from dprecipe.faults import Finding, Place, RecipeError
from dprecipe.language.statement import QUESTIONS
from dprecipe.planning.accept import WARNINGS
from dprecipe.policy.find import POLICY_FILE, find_policies
from dprecipe.policy.schema import ANYONE, OTHERS, Policy, PolicyRule
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.recipe.read import sort_findings
from dprecipe.recipe.root import Recipe
from dprecipe.recipe.vocabulary import expect_form, list_keys, list_kinds
from dprecipe.text.files import read_file
from dprecipe.text.load import parse
from dprecipe.text.near import nearest_word
from dprecipe.text.tree import Mapping, find_node, to_plain


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
