"""Documents: infinity is null, names are those of JSON, and the schema says whether other keys may come."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
from pydantic import ConfigDict, Field

from dprecipe.contract.document import Document, OrInfinite, Part, schema_of
from tests.schemas import validator_of


class Cost(Part):
    epsilon: OrInfinite
    exact: OrInfinite | None = None


class Costs(Document):
    model_config = ConfigDict(title="costs")

    schema_: Literal["costs/v1"] = Field("costs/v1", alias="schema")
    costs: tuple[Cost, ...]


class Closed(Costs):
    model_config = ConfigDict(extra="forbid")


def open_schema() -> dict[str, Any]:
    return schema_of(Costs)


def closed_schema() -> dict[str, Any]:
    return schema_of(Closed)


def test_a_document_as_text_fits_its_schema() -> None:
    document = Costs(costs=(Cost(epsilon=math.inf), Cost(epsilon=1.5, exact=1.0)))
    written = json.loads(document.to_text())
    assert written == {
        "schema": "costs/v1",
        "costs": [{"epsilon": None, "exact": None}, {"epsilon": 1.5, "exact": 1.0}],
    }
    assert document.costs[0].epsilon == math.inf
    validator_of(open_schema).validate(written)


def test_what_has_a_default_is_required_as_it_is_always_written() -> None:
    assert not validator_of(open_schema).is_valid({"costs": []})
    assert not validator_of(open_schema).is_valid({"schema": "costs/v1", "costs": [{"epsilon": 1.0}]})


@pytest.mark.parametrize(("schema", "valid"), [(open_schema, True), (closed_schema, False)])
def test_only_a_closed_document_has_no_other_keys(schema: Callable[[], dict[str, Any]], valid: bool) -> None:
    content = {"schema": "costs/v1", "costs": [], "more": 1}
    assert validator_of(schema).is_valid(content) is valid
