"""A policy: rules that each recipe has to keep to, for all data sets or for some.

All rules that cover a data set apply, so another rule only narrows what is allowed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dprecipe.language.base import Block, Fraction, PositiveFloat, PositiveInt, Text
from dprecipe.language.statement import Line, Prose

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
    models: tuple[Word, ...] | None = Field(None, description="kinds; `python`: also modules from Python")
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
