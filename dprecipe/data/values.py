"""Fields of a table to numbers and texts, a chunk of a column at a time.

A reader passes a chunk as a list of texts, numbers, truth values and None, or, if all of it are numbers, as a masked
array. Chunks of one type are converted at once: one value at a time takes most of the time of reading a table.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias, TypeVar, final, overload

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.writing import Writing
from dprecipe.text.spelling import normalise_text, normalise_texts

T = TypeVar("T")
MAX_VALUE_BYTES = 1 << 17
"""Upper bound on the size of a text; on that of a number or text of a Parquet row group, on average."""
Value = str | int | float | bool | bytes | None
Numbers: TypeAlias = "np.ma.MaskedArray[tuple[int], np.dtype[np.generic]]"
"""Numbers or truth values (N,); masked where a field is empty."""
Values: TypeAlias = "Sequence[Value] | Numbers"


@final
class NumberText(str):
    """A number that a library holds, as programs write it, whatever is declared of the texts of its column."""


@final
class CodedTexts(Sequence["str | None"]):
    """Texts with many repetitions: the different ones, and the place of each row's among them, (N,); -1: missing."""

    def __init__(self, distinct: Sequence[str], codes: NDArray[np.int64]) -> None:
        self.distinct, self.codes = distinct, codes

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, index: int) -> str | None: ...
    @overload
    def __getitem__(self, index: slice) -> CodedTexts: ...
    def __getitem__(self, index: int | slice) -> str | CodedTexts | None:
        if isinstance(index, slice):
            return CodedTexts(self.distinct, self.codes[index])
        code = int(self.codes[index])
        return None if code < 0 else self.distinct[code]

    def decode(self, distinct: Sequence[T], missing: T) -> list[T]:
        """Returns the value of each row's text, given the values of the different texts."""
        all_of = [*distinct, missing]  # the last one is where -1 leads
        return [all_of[code] for code in self.codes.tolist()]


WORD = re.compile(r"\w+")
MAX_WORD = 64
"""Characters of a token whose hash is remembered."""


def as_list(values: Values) -> Sequence[Value]:
    """Returns the values as Python's."""
    if isinstance(values, np.ma.MaskedArray):
        listed: list[Value] = values.tolist()
        return listed
    if isinstance(values, CodedTexts):
        return values.decode(values.distinct, None)
    return values


def select_rows(values: Values, rows: Sequence[int]) -> Values:
    """Returns the values of some rows."""
    if isinstance(values, np.ma.MaskedArray):
        chosen: Numbers = values[list(rows)]
        return chosen
    if isinstance(values, CodedTexts):
        return CodedTexts(values.distinct, values.codes[list(rows)])
    return [values[row] for row in rows]


def value_at(values: Values, row: int) -> Value:
    """Returns one value as Python's."""
    return as_list(values[row : row + 1])[0]


def parse_numbers(values: Values, writing: Writing | None = None) -> NDArray[np.float64]:
    """Numbers (N,); NaN for each value that is no finite number. `writing`: how texts write them, if it is declared."""
    if isinstance(values, np.ma.MaskedArray):
        numbers = values.data.astype(np.float64)
        if values.mask is not np.ma.nomask:
            numbers[values.mask] = np.nan
    elif isinstance(values, CodedTexts):
        distinct = _parse_distinct(values.distinct, writing)
        numbers = np.array([*distinct, math.nan])[values.codes]
    elif writing is not None:
        numbers = _parse_written(values, writing)
    else:
        numbers = _parse_texts(values)
    finite = np.isfinite(numbers)
    if not finite.all():
        numbers[~finite] = np.nan
    return numbers


def _parse_distinct(texts: Sequence[str], writing: Writing | None) -> list[float]:
    parsed = map(parse_number, texts) if writing is None else map(writing.parse, normalise_texts(texts))
    return [math.nan if number is None else number for number in parsed]


def _parse_written(values: Sequence[Value], writing: Writing) -> NDArray[np.float64]:
    """Numbers of texts, each different text once, and of values that are numbers already."""
    texts = list({value for value in values if type(value) is str})  # not a `NumberText`, which may equal one of them
    found = dict(zip(texts, _parse_distinct(texts, writing), strict=True))
    plain = (None if type(value) is str else parse_number(value) for value in values)
    numbers = (
        found[value] if type(value) is str else math.nan if number is None else number
        for value, number in zip(values, plain, strict=True)
    )
    return np.fromiter(numbers, np.float64, len(values))


def _parse_texts(values: Sequence[Value]) -> NDArray[np.float64]:
    if set(map(type, values)) <= {str} and "_" not in "".join(values):  # type: ignore[arg-type]
        try:
            return np.fromiter(map(float, values), np.float64, len(values))  # type: ignore[arg-type]
        except ValueError:
            pass
    parsed = map(parse_number, values)
    return np.fromiter((math.nan if number is None else number for number in parsed), np.float64, len(values))


def parse_number(value: Value) -> float | None:
    """Returns the finite number that a value is; None if it is none."""
    if isinstance(value, str):
        if "_" in value:  # Python's digit grouping is no number in a file
            return None
        try:
            number = float(value)
        except ValueError:
            return None
    elif isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            return None
    else:
        return None
    return number if math.isfinite(number) else None


def parse_integer(value: Value) -> int | None:
    """Returns the integer from 0 on that a value is, in at most 18 digits if it is a text; None if it is none."""
    if isinstance(value, int):  # true and false are 1 and 0
        return int(value)
    if isinstance(value, str):
        text = value.strip()
        return int(text.partition(".")[0]) if re.fullmatch(r"[0-9]{1,18}(?:\.0{1,6})?", text, re.ASCII) else None
    return int(value) if isinstance(value, float) and value.is_integer() else None


def text_of(value: Value) -> str:
    """Returns a value as the text that categories, labels and units are compared by (`dprecipe.text.spelling`)."""
    if value is None:
        return ""
    return normalise_text(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))


def texts_of(values: Values) -> list[str]:
    """Returns `text_of` of each value."""
    if isinstance(values, CodedTexts):
        return values.decode(normalise_texts(values.distinct), "")
    listed = as_list(values)
    if set(map(type, listed)) <= {str}:
        return normalise_texts(listed)  # type: ignore[arg-type]
    return list(map(text_of, listed))


def parse_integers(values: Values) -> list[int | None]:
    """Returns `parse_integer` of each value."""
    listed = as_list(values)
    found = {value: parse_integer(value) for value in set(listed)}  # equal values are equal integers
    return [found[value] for value in listed]


def whole_numbers(values: Values, end: int) -> NDArray[np.int64] | None:
    """Integers in 0 … end-1, (N,), at once; None where they are not all in an array of integers, and that."""
    if not isinstance(values, np.ma.MaskedArray) or values.mask is not np.ma.nomask or values.dtype.kind not in "iu":
        return None
    numbers = values.data
    if len(numbers) and not (int(numbers.min()) >= 0 and int(numbers.max()) < end):
        return None
    return numbers.astype(np.int64)


def look_up(texts: Sequence[str], numbers: Mapping[str, T], default: T) -> list[T]:
    """Looks up the value of each text; each different text once."""
    found = {text: numbers.get(text, default) for text in set(texts)}
    return [found[text] for text in texts]


def number_texts(values: Values, numbers: Mapping[str, int], default: int) -> NDArray[np.int64]:
    """Returns `look_up` of each value's text, (N,)."""
    if isinstance(values, CodedTexts):
        distinct = [numbers.get(text, default) for text in normalise_texts(values.distinct)]
        return np.array([*distinct, numbers.get("", default)], np.int64)[values.codes]
    return np.array(look_up(texts_of(values), numbers, default), np.int64)


def map_texts(texts: Sequence[str], parse: Callable[[str], T]) -> list[T]:
    """Parses each text; each different text once."""
    found = {text: parse(text) for text in set(texts)}
    return [found[text] for text in texts]


def hash_bucket(token: str, buckets: int) -> int:
    """Returns the bucket of a token: BLAKE2b of its UTF-8, the same on every machine and in every version."""
    return (_hash_word(token) if len(token) <= MAX_WORD else _hash_text(token)) % buckets


def _hash_text(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


_hash_word = lru_cache(maxsize=1 << 16)(_hash_text)
