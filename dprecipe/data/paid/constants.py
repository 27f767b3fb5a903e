"""Public constants that paid steps release, as a release and a certificate hold them.

They are read back from files that a stranger may have written. `parse_constants` accepts finite numbers of the
declared kinds within their bounds, and nothing else (`paid.fit` compares them with the recipe).
`dump_constants` writes one way for each value, so that a digest names it.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from dprecipe.data.facts import LARGEST
from dprecipe.data.paid.schema import MAX_CHARACTERS, MAX_ENTRIES, MAX_FEATURES, MAX_WIDTH

MAX_PLACES = 1 << 16

Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[float, Field(gt=0, le=LARGEST)]
Places = Annotated[tuple[Annotated[int, Field(ge=0, lt=1 << 24)], ...], Field(min_length=1, max_length=MAX_PLACES)]
Numbers = Annotated[tuple[Number, ...], Field(min_length=1, max_length=MAX_PLACES)]
Positives = Annotated[tuple[Positive, ...], Field(min_length=1, max_length=MAX_PLACES)]
ItemText = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]


class PublicConstants(BaseModel):
    """Constants of one step: frozen, strict, closed and finite."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def _aligned(*lists: tuple[object, ...]) -> None:
    if len({len(values) for values in lists}) != 1:
        raise ValueError("lists of different lengths")


def _rising(places: tuple[int, ...]) -> None:
    if any(first >= second for first, second in itertools.pairwise(places)):
        raise ValueError("features are not in rising order, each once")


class QuantileConstants(PublicConstants):
    """Constants of `dp_quantiles`: each feature and the interval that it is clipped to."""

    kind: Literal["dp_quantiles"] = "dp_quantiles"
    features: Places
    low: Numbers
    high: Numbers

    @model_validator(mode="after")
    def _check(self) -> Self:
        _aligned(self.features, self.low, self.high)
        _rising(self.features)
        if not all(low < high for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError("a lower bound is not below the upper one")
        return self


class MomentConstants(PublicConstants):
    """Constants of `dp_standardize`: each feature (of images: channel), its bounds, mean and standard deviation."""

    kind: Literal["dp_standardize"] = "dp_standardize"
    features: Places
    low: Numbers
    high: Numbers
    mean: Numbers
    std: Positives

    @model_validator(mode="after")
    def _check(self) -> Self:
        _aligned(self.features, self.low, self.high, self.mean, self.std)
        _rising(self.features)
        for low, high, mean, std in zip(self.low, self.high, self.mean, self.std, strict=True):
            if not (low < high and low <= mean <= high):
                raise ValueError("a mean outside its bounds, or bounds that are none")
            if not (high / 2 - low / 2) / 1000 <= std <= (high - low):
                raise ValueError("a standard deviation that no released one has within these bounds")
        return self


class ProjectionConstants(PublicConstants):
    """Constants of `dp_pca`: an orthonormal basis, (features, components) float32 in rows, little-endian in base 64.

    Its last columns are zero where `explained` chose fewer. `eigenvalues` are the noisy ones, a unit's share each, and
    `noise_edge` is about the largest that noise alone has.
    """

    kind: Literal["dp_pca"] = "dp_pca"
    features: Annotated[int, Field(ge=1, le=MAX_FEATURES)]
    components: Annotated[int, Field(ge=1, le=MAX_FEATURES)]
    row_norm: Positive
    eigenvalues: Numbers
    noise_edge: Positive
    basis: Annotated[str, Field(max_length=MAX_ENTRIES * 16 // 3 + 4)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.components > self.features or len(self.eigenvalues) != self.components:
            raise ValueError("more components than features, or not an eigenvalue for each")
        if self.features * self.components > MAX_ENTRIES:
            raise ValueError("a basis that is too large")
        matrix = self.matrix.astype(np.float64)
        if not np.isfinite(matrix).all() or np.abs(matrix).max() > 1.0001:
            raise ValueError("a basis with entries that no unit vector has")
        gram = matrix.T @ matrix
        norms = gram.diagonal()
        chosen = int((norms > 0.5).sum())
        wanted = np.diag((np.arange(self.components) < chosen).astype(np.float64))
        if chosen == 0 or np.abs(gram - wanted).max() > 1e-4:
            raise ValueError("a basis that is not orthonormal")
        return self

    @property
    def matrix(self) -> NDArray[np.float32]:
        """The basis, (features, components). Raises ValueError where `basis` holds none."""
        try:
            content = base64.b64decode(self.basis, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("a basis that is not base 64") from None
        if len(content) != 4 * self.features * self.components or base64.b64encode(content).decode() != self.basis:
            raise ValueError("a basis of another size")
        return np.frombuffer(content, "<f4").reshape(self.features, self.components).astype(np.float32)

    @staticmethod
    def pack(basis: NDArray[np.float64]) -> str:
        """Returns a basis as `basis` holds it."""
        return base64.b64encode(np.ascontiguousarray(basis, "<f4").tobytes()).decode()


class ItemConstants(PublicConstants):
    """Constants of `dp_categories` and `dp_vocabulary`: for each column the released items, in UTF-8 order."""

    kind: Literal["dp_categories", "dp_vocabulary"]
    width: Annotated[int, Field(ge=1, le=MAX_WIDTH)]
    threshold: Positive
    items: Annotated[
        tuple[Annotated[tuple[ItemText, ...], Field(max_length=MAX_WIDTH)], ...], Field(min_length=1, max_length=64)
    ]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for column in self.items:
            if len(column) > self.width:
                raise ValueError("more items than the declared width")
            try:
                texts = [item.encode() for item in column]
            except UnicodeEncodeError:
                raise ValueError("an item that is no Unicode text") from None
            if any(first >= second for first, second in itertools.pairwise(texts)):
                raise ValueError("items are not in order, each once")
        return self


class CountConstants(PublicConstants):
    """Constant of `dp_count`: the noisy number of units; it may be below 0."""

    kind: Literal["dp_count"] = "dp_count"
    units: Number


StageConstants = QuantileConstants | MomentConstants | ProjectionConstants | ItemConstants | CountConstants
AnyConstants = Annotated[StageConstants, Field(discriminator="kind")]
"""Constants of any paid step, as a field of a document."""
_PARSER: TypeAdapter[StageConstants] = TypeAdapter(AnyConstants)


def dump_constants(constants: StageConstants) -> dict[str, Any]:
    """Dumps constants as JSON types, in the order of the fields."""
    return constants.model_dump(mode="json")


def parse_constants(content: object) -> StageConstants:
    """Constants of JSON types that a stranger wrote.

    Raises:
        ValueError: of no known kind, or with a field too many, too few, of another type, not finite or out of range; or
            written in another way than `dump_constants` has it.
    """
    try:
        constants = _PARSER.validate_json(json.dumps(content))  # JSON's rules: a list is a tuple
    except (TypeError, RecursionError):
        raise ValueError("constants that are no JSON") from None
    # as text: to Python, 0 and False are equal to 0.0
    if json.dumps(dump_constants(constants), sort_keys=True) != json.dumps(content, sort_keys=True):
        raise ValueError("constants that are written in another way")
    return constants
