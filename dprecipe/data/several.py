"""Labels where any of several names may apply, as one whole number a record: bit k is the answer for the k-th name.

So a label stays one value, and is kept, sampled and sent as the number of a class is.

Axes: N records, K names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.encoders import ColumnReport, parse_answers
from dprecipe.data.problems import Problems
from dprecipe.data.raw import record_number
from dprecipe.data.sources.labels import Label
from dprecipe.data.targets import SeveralTarget
from dprecipe.data.values import Values, texts_of
from dprecipe.data.words import MARKS

Answers = NDArray[np.bool_]
MISSING = "a label is empty, or holds a mark for a missing value, such as NA"


def pack_answers(answers: NDArray[Any]) -> NDArray[np.int64]:
    """Returns a yes (1, true) or a no for each name, (N, K), as numbers (N,). At most `MAX_NAMES` names."""
    bits = np.left_shift(np.int64(1), np.arange(answers.shape[1], dtype=np.int64))
    packed: NDArray[np.int64] = np.where(answers.astype(np.bool_), bits, np.int64(0)).sum(axis=1, dtype=np.int64)
    return packed


def unpack_answers(labels: NDArray[Any], names: int) -> Answers:
    """Numbers (N,) as a yes or a no for each name, (N, K)."""
    bits = np.right_shift(labels.astype(np.int64)[:, None], np.arange(names, dtype=np.int64))
    return (bits & 1).astype(np.bool_)


def are_answers(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Marks the records, (N,), for which all K entries of an array (N, K) are 0 or 1."""
    result: NDArray[np.bool_] = ((array == 0) | (array == 1)).all(axis=1)
    return result


def several_labels(
    array: NDArray[Any], subject: str, problems: Problems, numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns an array (N, K) of 0 and 1 as labels (N,). Other values are added to `problems`, by place and not by
    value.

    `numbers`: of the records in the source, (N,).
    """
    bad = np.flatnonzero(~are_answers(array))
    if len(bad) > 0:
        place = record_number(int(numbers[bad[0]]))
        problems.add(subject, "a label is neither 0 nor 1", "write 1 where a name applies, else 0", place, len(bad))
    return pack_answers(array)


def encode_several(
    columns: Mapping[str, Values], label: Label, target: SeveralTarget, report_of: Callable[[str], ColumnReport]
) -> NDArray[np.int64]:
    """Returns the labels of a chunk of rows, (N,): of columns that hold a yes or a no each, or of one that holds names.
    What is not declared is reported by its place.
    """
    if label.columns is not None:
        read = [_parse_answers(columns[name], label.values, report_of(name)) for name in label.columns]
        return pack_answers(np.stack(read, axis=1))
    (column,) = label.read_columns
    return _parse_names(texts_of(columns[column]), label, target, report_of(column))


def _parse_answers(values: Values, words: tuple[str, ...] | None, report: ColumnReport) -> NDArray[np.float64]:
    """Returns a column of yes and no, in the usual words or in the declared ones."""
    texts = texts_of(values)
    answers = parse_answers(texts, words)
    for row in np.flatnonzero(np.isnan(answers)).tolist():
        if texts[row] == "" or texts[row].casefold() in MARKS:
            report.add(row, MISSING, "answer with yes or no in each row, or remove the row from the file")
        else:
            which = "" if words is None else "the declared "
            report.add(
                row,
                f"a label is none of {which}values for no and yes",
                "declare the two texts, the one for no first: label.values: ['no', 'yes'], or correct the row",
            )
        answers[row] = 0.0
    return answers


def _parse_names(texts: Iterable[str], label: Label, target: SeveralTarget, report: ColumnReport) -> NDArray[np.int64]:
    """Returns a column of names, with the separator between them; in any order, and one that is there twice counts
    once.
    """
    bits = {name: 1 << place for place, name in enumerate(target.names)}
    separator, found = target.separator, dict[str, int | None]()
    result = []
    for row, text in enumerate(texts):
        if text not in found:
            parts = {part.strip() for part in text.split(separator)} - {""}
            known = [bits[part] for part in parts if part in bits]
            found[text] = sum(known) if len(known) == len(parts) else None
        number = found[text]
        if number == 0 and label.empty is None:
            report.add(
                row,
                "a label is empty",
                "write label.empty: none if it says that none of the names applies; or fill it in, or remove the row",
            )
        elif number is None:
            report.add(
                row,
                f"a label has a name that is not among the {len(bits)} declared ones",
                f"declare in label.several every name that can occur (from domain knowledge), as the file spells it; "
                f"between two names it has {separator!r} (label.separator); or correct the row",
            )
        result.append(number or 0)
    return np.array(result, np.int64)
