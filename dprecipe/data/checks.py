"""Checks of the data block, its parts against each other. No data is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from dprecipe.data import step_checks
from dprecipe.data.facts import column_facts, feature_shape, model_shape, sequences_step, source_shape
from dprecipe.data.schema import AnySource, Data, Source
from dprecipe.data.sequence_checks import check_sequences
from dprecipe.data.targets import ClassTarget, NumberTarget, SeveralTarget, Target
from dprecipe.faults import Finding

DENSE_LIMIT = 1 << 40
MAX_CHANNELS = 4


def check_data(data: Data) -> list[Finding]:
    """Contradictions in the data block (R2xx), with their paths but without places."""
    findings = [finding for rule in _SOURCE_RULES for role, source in _sources(data) for finding in rule(source, role)]
    findings += _declared_size(data)
    findings += step_checks.check_operations(data)
    if not findings:
        of_features = (step_checks.check_steps, step_checks.check_encodings, step_checks.check_tokens)
        is_text = sequences_step(data.preprocess) is not None
        rules = (
            check_sequences,
            *(() if is_text else of_features),
            _test_matches,
            _public_matches,
        )
        findings = [finding for rule in rules for finding in rule(data)]
    return findings if findings else list(_fits_a_disk(data))


def _sources(data: Data) -> Iterator[tuple[str, AnySource]]:
    for role, source in (("train", data.train), ("public", data.public), ("test", data.test_source)):
        if source is not None:
            yield f"data.{role}", source


def _range_of_records(source: AnySource, path: str) -> Iterator[Finding]:
    if source.records is not None and source.records[0] >= source.records[1]:
        first, end = source.records
        yield Finding(
            "R205",
            f"[{first}, {end}] selects no record: a range includes its first number and excludes its second",
            f"write [{end}, {first}]" if first > end else f"write [{first}, {first + 1}] for one record",
            f"{path}.records",
        )


def _columns(source: AnySource, path: str) -> Iterator[Finding]:
    for name, column in (source.table_columns or {}).items():
        yield from column.contradictions(f"{path}.columns.{name}")


def _shape(source: AnySource, path: str) -> Iterator[Finding]:
    shape = source.record_shape
    where = f"{path}.{source.shape_key}"
    if len(shape) > 3:
        yield Finding(
            "R213",
            f"{list(shape)} is neither a vector [D] nor an image [height, width] or [height, width, channels]",
            "store each record as one of these",
            where,
        )
    elif len(shape) == 3 and shape[2] > MAX_CHANNELS:
        order = " (channels come last here)" if shape[0] <= MAX_CHANNELS else ""
        yield Finding(
            "R213",
            f"{list(shape)} would be an image of {shape[2]} channels{order}; at most {MAX_CHANNELS} are supported",
            "store images as height, width, channels, or the features as a vector",
            where,
        )


_SOURCE_RULES: tuple[Callable[[AnySource, str], Iterator[Finding]], ...] = (
    _range_of_records,
    lambda source, path: source.contradictions(path),
    _columns,
    _shape,
)


def _declared_size(data: Data) -> Iterator[Finding]:
    records = data.train.records
    if records is None or data.unit != "record" or records[0] >= records[1]:
        return
    count = records[1] - records[0]
    if not data.hides_size and count != data.max_units:
        yield Finding(
            "R218",
            f"data.train.records selects {count} records, but data.size declares {data.max_units}",
            f"write size: {count}, or change the range",
            "data.size",
        )


def _test_matches(data: Data) -> Iterator[Finding]:
    test = data.test_source
    if test is None:
        return
    labels = (_label_subject(data.train.target, test.target), data.train.target, test.target)
    yield from _differ("data.test", (labels, *_features(data.train, test)))


def _label_subject(one: Target, other: Target) -> str:
    """Returns what two labels differ in, if they do."""
    if type(one) is not type(other):
        return "kind of label"
    if isinstance(one, ClassTarget):
        return "classes" if one.outputs != other.outputs else "class names"
    if isinstance(one, SeveralTarget):
        return "names of what may apply"
    return "range of the labels" if isinstance(one, NumberTarget) else "largest count"


def _public_matches(data: Data) -> Iterator[Finding]:
    if data.public is not None:
        yield from _differ("data.public", _features(data.train, data.public))


def _features(train: Source, other: AnySource) -> tuple[tuple[str, object, object], ...]:
    """Returns what both sources' features must have in common: for each property its name and both values."""
    return (
        ("columns", _listed(train), _listed(other)),
        ("shape", model_shape(train.record_shape), model_shape(other.record_shape)),
    )


def _differ(path: str, pairs: Sequence[tuple[str, object, object]]) -> Iterator[Finding]:
    for subject, train_value, other_value in pairs:
        if train_value != other_value:
            yield Finding(
                "R214",
                f"{path} and data.train differ in their {subject}: one model can't read both",
                f"give both the same {subject}, in the same order",
                path,
            )
            return


def _listed(source: AnySource) -> list[tuple[str, object]]:
    return list((source.table_columns or {}).items())


def _fits_a_disk(data: Data) -> Iterator[Finding]:
    columns = data.train.table_columns
    scattered = any(step.scattering is not None for step in data.preprocess)
    if columns is None and not scattered:
        return
    before = source_shape(column_facts(columns or {}, data.preprocess), data.train.record_shape)
    width = math.prod(feature_shape(before, data.preprocess))
    records = data.max_units if data.unit == "record" else data.max_units * data.unit.max_records
    needed = 4 * records * width
    remedy = (
        "write fewer angles or more scales" if scattered else "hash into fewer buckets, or declare fewer categories"
    )
    if sequences_step(data.preprocess) is not None:
        remedy = "write a smaller max_length, or fewer max_sequences"
    if needed > DENSE_LIMIT:
        yield Finding(
            "R219",
            f"{records} records of {width} features take {needed / 2**30:.0f} GiB; "
            f"at most {DENSE_LIMIT >> 30} GiB are supported",
            remedy,
            "data.preprocess",
        )
