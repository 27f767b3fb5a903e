"""Checks of public records: only a mechanism with a student has them, and none of them is private.

Two files may contain the same records. Here sources are compared by what the recipe says; `dprecipe.data` compares the
files.
"""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.plan import Assumption
from dprecipe.contract.table import list_kinds
from dprecipe.data.facts import has_tokenizer
from dprecipe.data.schema import AnySource
from dprecipe.faults import Finding, Severity
from dprecipe.language.words import join_with_or
from dprecipe.models.schema import Pretrained, Primed
from dprecipe.planning.learning import has_student
from dprecipe.recipe.root import Recipe


def assume_public_weights(recipe: Recipe) -> Iterator[Assumption]:
    """Yields the assumption that initial weights are public or made from a seed, which can only be declared."""
    model = recipe.model
    if isinstance(model, Primed) and model.prior is not None:
        prior = model.prior
        yield Assumption(
            "initial_weights",
            f"the weights that training started from were learned from no real data: made from a seed, from "
            f"{prior.images:,} images of generator {prior.generator} (version {prior.version}, seed {prior.seed}); "
            "`dprecipe prior --check` makes the images again and compares their digest, and with --retrain that of the "
            "weights; neither generator nor seed was chosen by these records",
            "declaration",
        )
    elif isinstance(model, Pretrained) and model.starts_elsewhere:
        yield Assumption(
            "initial_weights",
            "the weights that training began from were learned from public data alone: neither these records nor "
            "anything made of them went into them, or into their choice",
            "declaration",
        )


def assume_public_tokenizer(recipe: Recipe) -> Iterator[Assumption]:
    """Yields the assumption that a tokeniser is public, which can only be declared."""
    if has_tokenizer(recipe.data.preprocess):
        yield Assumption(
            "tokenizer",
            "the tokeniser is public: neither these records nor anything made of them went into it, or into its choice",
            "declaration",
        )


def check_public_records(recipe: Recipe) -> Iterator[Finding]:
    """Checks that a student has public records, and that no other mechanism has any."""
    kind, public = recipe.mechanism.kind, recipe.data.public
    if has_student(recipe) and public is None and not recipe.data.is_elsewhere:
        yield Finding(
            "R272",
            f"{kind} trains a student on public records, and there are none",
            "add data.public: a source of records of the same shape that may be published; their labels are never read",
            "data",
        )
    elif public is not None and not has_student(recipe):
        others = list_kinds(lambda mechanism: mechanism.has_student)
        yield Finding(
            "R272",
            f"{kind} does not read data.public",
            "remove data.public" + (f", or choose mechanism.kind {join_with_or(others)}" if others else ""),
            "data.public",
        )


def check_disjoint_sources(recipe: Recipe) -> Iterator[Finding]:
    """Checks that no public record is private or scored: they are released with their labels."""
    train, public, test = recipe.data.train, recipe.data.public, recipe.data.test_source
    if public is None:
        return
    if share_records(train, public):
        yield Finding(
            "P150",
            "data.public reads records of data.train: they would be published without noise",
            "name other records (another file or split, or `records` ranges that do not overlap)",
            "data.public",
        )
    if test is not None and share_records(test, public):
        yield Finding(
            "P151",
            "data.test reads records of data.public, which the student has seen",
            "name other records (another file or split, or `records` ranges that do not overlap)",
            "data.test",
            severity=Severity.WARNING,
        )


def check_test_records(recipe: Recipe) -> Iterator[Finding]:
    """Refuses public scores on the training records, which would publish them outside the budget."""
    train, test = recipe.data.train, recipe.data.test_source
    if test is not None and test.access == "public" and share_records(train, test):
        yield Finding(
            "P113",
            "data.test is declared public but reads records of data.train: its scores would publish them outside the "
            "budget",
            "name other records (another file or split, or `records` ranges that do not overlap), or access: "
            "private_internal",
            "data.test",
        )


def share_records(one: AnySource, other: AnySource) -> bool:
    """Returns True if two sources read a record in common, as far as the recipe says."""
    if not set(one.origins) & set(other.origins):
        return False
    if one.origins != other.origins or one.records is None or other.records is None:
        return True
    (start, end), (first, last) = one.records, other.records
    return first < end and start < last
