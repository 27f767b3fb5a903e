"""Statements that only people can make about a release: who answers for it, for whom it is, and why it costs this.

All of it is declared. Nothing checks it, it changes neither cost nor claim, and every report that shows it says so.
"""

from __future__ import annotations

import json
from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from dprecipe.language.base import SparseBlock

Line = Annotated[str, Field(min_length=1, max_length=200)]
Prose = Annotated[str, Field(min_length=1, max_length=4000)]


class ReleaseStatement(SparseBlock):
    """Statement of the curator about a release; every key is optional. Source of the keys: the fields of the OpenDP
    Deployments Registry, and the topics of NIST SP 800-226, that a program can't answer."""

    curators: Annotated[tuple[Line, ...], Field(min_length=1, max_length=20)] | None = Field(
        None, description="who answers for the data and for the release"
    )
    contact: Line | None = Field(None, description="whom to ask about it: an address that may be published")
    intended_use: Prose | None = Field(None, description="what the model is for, and what not")
    region: Line | None = Field(None, description="where the people in the data live")
    sector: Line | None = Field(None, description="such as Healthcare, Education, Government, Finance, Technology")
    published: date | None = Field(None, description="the day of publication; that of the run when left out")
    deployment_model: Literal["central", "federated"] | None = Field(
        None, description="who holds the records: one curator, or several (the claim trusts the one who ran dprecipe)"
    )
    actors: Prose | None = Field(None, description="who takes part, and who has to trust whom")
    releases: Literal["one", "many"] | None = Field(None, description="of these data")
    future_releases: Prose | None = Field(None, description="plans for more, and how their cost is added up")
    data_changes: bool | None = Field(None, description="whether records are added or corrected over time")
    data_source: Prose | None = Field(None, description="whose data they are, how and with whose consent collected")
    security: Prose | None = Field(None, description="how the raw records are kept, and who has access")
    justification: Prose | None = Field(None, description="why this ε, this δ and this unit")
    sources: Prose | None = Field(None, description="papers, pages and addresses to read more")
    authors: Annotated[tuple[Line, ...], Field(min_length=1, max_length=20)] | None = Field(
        None, description="who wrote this statement"
    )

    def list_rows(self) -> list[tuple[str, str]]:
        """Returns the statement in words: what each row is about, and the author's text on one line."""
        return [(QUESTIONS[name], _write_value(value)) for name, value in self if value is not None]


QUESTIONS = {
    "curators": "who answers for it",
    "contact": "whom to ask",
    "intended_use": "intended use",
    "region": "region",
    "sector": "sector",
    "published": "published",
    "deployment_model": "deployment model",
    "actors": "who takes part and trusts whom",
    "releases": "releases of these data",
    "future_releases": "plans for further releases",
    "data_changes": "whether the data change",
    "data_source": "where the data come from",
    "security": "security of the raw data",
    "justification": "why this ε and δ",
    "sources": "to read more",
    "authors": "who states this",
}
"""Topic of each key, as cards and reports word it."""


def join_lines(text: str) -> str:
    """Returns a text of several lines as one paragraph."""
    return " ".join(text.split())


def quote_words(text: str) -> str:
    """Returns the author's words as they stand beside the program's: in quotes that they can't end."""
    return json.dumps(join_lines(text), ensure_ascii=False)


def _write_value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return join_lines(", ".join(value) if isinstance(value, tuple) else str(value))
