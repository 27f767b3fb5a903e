"""Checks of the data block: what its parts say about one another. No data is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from dprecipe.data.facts import (
    class_names,
    classes,
    column_facts,
    declared_shape,
    feature_shape,
    layout,
    one_hot_columns,
    shape_after,
    source_shape,
    table_columns,
    target,
    tokenized,
)
from dprecipe.data.schema import (
    AnySource,
    Category,
    Columns,
    Crop,
    Csv,
    Data,
    Flatten,
    Flip,
    GroupNorm,
    Hash,
    Npz,
    Numeric,
    OneHot,
    Parquet,
    PublicCsv,
    PublicParquet,
    Scale,
    Scattering,
    Source,
    Step,
    TextColumn,
    Tokenize,
)
from dprecipe.faults import Finding
from dprecipe.text.near import near

DENSE_LIMIT = 32 << 30
MOST_CHANNELS = 4


def check(data: Data) -> list[Finding]:
    """What contradicts itself in the data block (R2xx); paths are set, places are not."""
    findings = [finding for rule in _SOURCE_RULES for role, source in _sources(data) for finding in rule(source, role)]
    findings += _declared_size(data)
    findings += _one_operation_a_step(data)
    if not findings:
        rules = (_steps, _encoded, _tokens_alone, _test_matches, _public_matches)
        findings = [finding for rule in rules for finding in rule(data)]
    return findings if findings else list(_fits_memory(data))


def _sources(data: Data) -> Iterator[tuple[str, AnySource]]:
    for role, source in (("train", data.train), ("public", data.public), ("test", data.test)):
        if source is not None:
            yield f"data.{role}", source


def _range_of_records(source: AnySource, path: str) -> Iterator[Finding]:
    if source.records is not None and source.records[0] >= source.records[1]:
        first, end = source.records
        yield Finding(
            "R205",
            f"[{first}, {end}] holds no record: the range goes from its first record up to, and without, its end",
            f"write [{end}, {first}]" if first > end else f"write [{first}, {first + 1}] for one record",
            f"{path}.records",
        )


def _label(source: AnySource, path: str) -> Iterator[Finding]:
    if isinstance(source, Npz):
        yield from _one_kind({"classes": source.classes, "range": source.range}, path)
        yield from _empty_range(source.range, f"{path}.range")
    if not isinstance(source, Csv | Parquet):  # of a public source it is never read
        return
    label = source.label
    yield from _one_kind({"values": label.values, "classes": label.classes, "range": label.range}, f"{path}.label")
    yield from _empty_range(label.range, f"{path}.label.range")
    if label.values is not None:
        yield from _repeated(label.values, f"{path}.label.values")
    if label.column in (table_columns(source) or {}):
        yield Finding(
            "R216",
            f"column {label.column!r} is the label and a feature: the model would read the answer",
            f"remove {label.column!r} from `columns`",
            f"{path}.columns.{label.column}",
        )


_KINDS = {
    "values": "`values` (class names, in order)",
    "classes": "`classes` (for integers 0 … classes-1)",
    "range": "`range` (for a number to be predicted)",
}
"""What labels can be, by the key that says so."""


def _one_kind(declared: Mapping[str, object], path: str) -> Iterator[Finding]:
    given = [key for key, value in declared.items() if value is not None]
    if len(given) != 1:
        *others, last = (_KINDS[key] for key in declared)
        yield Finding(
            "R201",
            f"labels need exactly one of {', '.join(others)} and {last}",
            f"keep one of {' and '.join(given)}" if given else f"add {' or '.join(declared)}",
            path,
        )


def _empty_range(found: Sequence[float] | None, path: str) -> Iterator[Finding]:
    if found is not None and not found[0] / 2 < found[1] / 2:  # what is divided by, in smallest numbers too
        yield Finding(
            "R203",
            f"{found[0]:g} is not below {found[1]:g}",
            "write [lowest, highest] of the values that can occur: from domain knowledge, not measured on private data",
            path,
        )


def _columns(source: AnySource, path: str) -> Iterator[Finding]:
    for name, column in (table_columns(source) or {}).items():
        if isinstance(column, Category):
            yield from _repeated(column.values, f"{path}.columns.{name}.values")
        if isinstance(column, Numeric) and not column.min < column.max:
            yield Finding(
                "R203",
                f"min {column.min:g} is not below max {column.max:g}",
                "write the range of values that can occur: from domain knowledge, not measured on private data",
                f"{path}.columns.{name}",
            )
        if isinstance(column, Numeric) and column.marks is not None and column.missing is None:
            yield Finding(
                "R203",
                "`marks` are texts that count as missing, and nothing says what a missing number counts as",
                f"add missing: {column.min:g}, or another number that it counts as",
                f"{path}.columns.{name}.marks",
            )


def _repeated(values: tuple[str, ...], path: str) -> Iterator[Finding]:
    stripped = [value.strip() for value in values]
    twice = sorted({value for value in stripped if stripped.count(value) > 1})
    if twice:
        yield Finding(
            "R202",
            f"{', '.join(map(repr, twice))} {'stands' if len(twice) == 1 else 'stand'} here more than once",
            "write each value once; blanks around a value do not count",
            path,
        )


def _table_or_images(source: AnySource, path: str) -> Iterator[Finding]:
    if isinstance(source, Parquet | PublicParquet) and (source.columns is None) == (source.image is None):
        yield Finding(
            "R204",
            "a parquet source is a table (`columns`) or images (`image`): exactly one of the two",
            "remove one of them" if source.image is not None else "add `columns` or `image`",
            path,
        )


def _delimiter(source: AnySource, path: str) -> Iterator[Finding]:
    if isinstance(source, Csv | PublicCsv) and (source.delimiter in '"\r\n\\' or not source.delimiter.isascii()):
        yield Finding(
            "R217",
            "a delimiter is one ASCII character, and no quote, backslash or line break",
            "write the character between the fields of a line, such as ',' or ';' or \"\\t\"",
            f"{path}.delimiter",
        )


def _shape(source: AnySource, path: str) -> Iterator[Finding]:
    shape = declared_shape(source)
    where = f"{path}.image.shape" if isinstance(source, Parquet | PublicParquet) else f"{path}.shape"
    if len(shape) > 3:
        yield Finding(
            "R213",
            f"{list(shape)} is neither a vector [D] nor an image [height, width] or [height, width, channels]",
            "store each record as one of these",
            where,
        )
    elif len(shape) == 3 and shape[2] > MOST_CHANNELS:
        order = " (channels come last here)" if shape[0] <= MOST_CHANNELS else ""
        yield Finding(
            "R213",
            f"{list(shape)} would be an image of {shape[2]} channels{order}; at most {MOST_CHANNELS} are supported",
            "store images as height, width, channels, or the features as a vector",
            where,
        )


_SOURCE_RULES: tuple[Callable[[AnySource, str], Iterator[Finding]], ...] = (
    _range_of_records,
    _label,
    _columns,
    _table_or_images,
    _delimiter,
    _shape,
)


def _declared_size(data: Data) -> Iterator[Finding]:
    records = data.train.records
    if records is None or data.unit != "record" or records[0] >= records[1]:
        return
    count = records[1] - records[0]
    if count != data.size:
        yield Finding(
            "R218",
            f"data.train.records selects {count} records, and data.size declares {data.size}",
            f"write size: {count}, or change the range",
            "data.size",
        )


def _one_operation_a_step(data: Data) -> Iterator[Finding]:
    for index, step in enumerate(data.preprocess):
        names = [name for name, value in step if value is not None]
        if len(names) != 1:
            yield Finding(
                "R206",
                f"a step is one operation, and this one has {len(names) or 'none'}"
                + (f": {', '.join(names)}" if names else ""),
                "begin each operation on a line of its own with a dash"
                if names
                else "write one operation, with its settings ({} where it has none)",
                f"data.preprocess.{index}",
            )


def _steps(data: Data) -> Iterator[Finding]:
    columns = table_columns(data.train)
    shape = source_shape(column_facts(columns or {}, data.preprocess), declared_shape(data.train))
    image = pixels = len(shape) == 3
    rank = 0
    for index, step in enumerate(data.preprocess):
        operation = step.operation
        path = f"data.preprocess.{index}.{_name(step)}"
        if isinstance(operation, OneHot | Hash | Tokenize):
            yield from _encoding(operation, columns, path)
        elif isinstance(operation, Crop | Flip):
            if not pixels:
                yield Finding(
                    "R212",
                    f"{_name(step)} moves pixels, and the features are no images here",
                    "remove the step" if len(shape) == 3 or not image else "remove `flatten`: models do it",
                    path,
                )
        elif isinstance(operation, Scale):
            yield from _scale(operation, shape, path)
        elif isinstance(operation, Scattering):
            yield from _scattering(operation, shape, path) if pixels else _no_image(shape, image, path)
            pixels = False
        elif isinstance(operation, GroupNorm) and shape[0] % operation.groups:
            yield _groups(operation, shape, path)
        if isinstance(operation, Flatten):
            pixels = False
        shape = shape_after(step, shape)
        if _rank(operation) < rank:
            yield Finding(
                "R207",
                f"{_name(step)} comes too late: encode columns first (one_hot, hash, tokenize), then scale, "
                "scattering, group_norm, clip_features and flatten, then augment (crop, flip)",
                "move the step up",
                path,
            )
        rank = max(rank, _rank(operation))


def _name(step: Step) -> str:
    return next(name for name, value in step if value is not None)


def _rank(operation: object) -> int:
    if isinstance(operation, OneHot | Hash | Tokenize):
        return 0
    return 2 if isinstance(operation, Crop | Flip) else 1


def _scale(step: Scale, shape: tuple[int, ...], path: str) -> Iterator[Finding]:
    for name, value in (("mean", step.mean), ("std", step.std)):
        if isinstance(value, tuple) and len(value) != shape[0]:
            what = "channel" if len(shape) == 3 else "feature"
            yield Finding(
                "R211",
                f"{len(value)} constants for {shape[0]} {what}{'s' if shape[0] > 1 else ''}",
                f"write one number for all, or one for each {what}",
                f"{path}.{name}",
            )


def _no_image(shape: tuple[int, ...], image: bool, path: str) -> Iterator[Finding]:
    again = ", they have been scattered before" if len(shape) == 3 else ""
    yield Finding(
        "R221",
        f"scattering transforms the pixels of an image, and the features are none here{again}",
        "remove the step" if len(shape) == 3 or not image else "remove `flatten`: models do it",
        path,
    )


def _scattering(step: Scattering, shape: tuple[int, ...], path: str) -> Iterator[Finding]:
    height, width = shape[1:]
    unit = 2**step.scales
    if height % unit or width % unit or min(height, width) < 2 * unit:
        fits = [scales for scales in range(1, step.scales) if not (height % 2**scales or width % 2**scales)]
        fits = [scales for scales in fits if min(height, width) >= 2 * 2**scales]
        yield Finding(
            "R221",
            f"an image of {height}×{width} has no scattering of {step.scales} scales: height and width have to be "
            f"multiples of {unit}, and at least {2 * unit}",
            f"write scales: {fits[-1]}" if fits else "store the images padded to such a size, or remove the step",
            f"{path}.scales",
        )


def _groups(step: GroupNorm, shape: tuple[int, ...], path: str) -> Finding:
    count = shape[0]
    what = "channels" if len(shape) == 3 else "features"
    fits = max(groups for groups in range(1, min(step.groups, count) + 1) if count % groups == 0)
    return Finding(
        "R222",
        f"{count} {what} do not make {step.groups} groups of one size",
        f"write groups: {fits}, or another divisor of {count}",
        f"{path}.groups",
    )


def _encoding(step: OneHot | Hash | Tokenize, columns: object, path: str) -> Iterator[Finding]:
    name = path.rpartition(".")[2]
    if not isinstance(columns, dict):
        yield Finding("R208", f"{name} encodes columns of a table, and this source has none", "remove the step", path)
        return
    right = Category if isinstance(step, OneHot) else TextColumn
    key = "column" if isinstance(step, Tokenize) else "columns"
    for index, column in enumerate(_encoded_by(step, columns)):
        at = "" if isinstance(step, Tokenize) else f".{index}"
        if column not in columns:
            close = near(column, [name for name, declared in columns.items() if isinstance(declared, right)])
            remedy = "declare it in data.train.columns" if close is None else f"write {close}"
            meant = "" if close is None else f"; did you mean {close!r}?"
            yield Finding("R208", f"no column {column!r} is declared{meant}", remedy, f"{path}.{key}{at}")
        elif not isinstance(columns[column], right):
            kind = columns[column].kind
            remedy = {
                "category": "encode it with one_hot, or declare it as {kind: text}",
                "text": "encode it with hash, or declare its values as {kind: category}",
                "numeric": "leave it out: a number needs no encoding",
            }[kind]
            yield Finding("R208", f"{name} does not encode the {kind} column {column!r}", remedy, f"{path}.{key}{at}")


def _encoded_by(step: OneHot | Hash | Tokenize, columns: Columns) -> tuple[str, ...]:
    match step:
        case OneHot():
            return one_hot_columns(step, columns)
        case Hash():
            return step.columns
        case Tokenize():
            return (step.column,)


def _encoded(data: Data) -> Iterator[Finding]:
    columns = table_columns(data.train)
    if columns is None:
        return
    times: dict[str, int] = dict.fromkeys(columns, 0)
    for step in data.preprocess:
        operation = step.operation
        if isinstance(operation, OneHot | Hash | Tokenize):
            for written in _encoded_by(operation, columns):
                # A misspelt name is told of by itself; the column that was meant counts as encoded.
                name = written if written in columns else near(written, columns) or written
                times[name] = times.get(name, 0) + 1
    for name, column in columns.items():
        if not isinstance(column, Numeric) and times[name] == 0:
            step_name = "one_hot" if isinstance(column, Category) else "hash"
            example = "one_hot: {}" if step_name == "one_hot" else f"hash: {{columns: [{name}], buckets: 256}}"
            yield Finding(
                "R209",
                f"the {column.kind} column {name!r} is not encoded as numbers",
                f"add a step to data.preprocess: {example}",
                f"data.train.columns.{name}",
            )
        if times[name] > 1:
            yield Finding(
                "R210",
                f"column {name!r} is encoded {times[name]} times",
                "keep one of the steps",
                "data.preprocess",
            )


def _tokens_alone(data: Data) -> Iterator[Finding]:
    tokens = tokenized(data.preprocess)
    columns = table_columns(data.train) or {}
    if tokens is None or tokens.column not in columns:
        return
    others = [name for name in columns if name != tokens.column]
    if others:
        yield Finding(
            "R220",
            f"tokens are read one after another, and {', '.join(map(repr, others))} would stand among them",
            f"declare {tokens.column!r} alone, or encode it with hash: {{columns: [{tokens.column}], buckets: "
            f"{tokens.buckets}, tokens: words}}",
            "data.train.columns",
        )
    for index, step in enumerate(data.preprocess):
        if not isinstance(step.operation, OneHot | Hash | Tokenize | Flatten):
            yield Finding(
                "R220",
                f"tokens are numbers of words, and {_name(step)} would make other words of them",
                "remove the step",
                f"data.preprocess.{index}.{_name(step)}",
            )


def _test_matches(data: Data) -> Iterator[Finding]:
    test = data.test
    if test is None:
        return
    labels = (
        ("classes", classes(data.train), classes(test)),
        ("class names", class_names(data.train), class_names(test)),
        ("range of the labels", target(data.train), target(test)),
    )
    yield from _differ("data.test", (*labels, *_features(data.train, test)))


def _public_matches(data: Data) -> Iterator[Finding]:
    if data.public is not None:
        yield from _differ("data.public", _features(data.train, data.public))


def _features(train: Source, other: AnySource) -> tuple[tuple[str, object, object], ...]:
    """What of the features has to agree, by name, in both sources."""
    return (
        ("columns", _listed(train), _listed(other)),
        ("shape", layout(declared_shape(train)), layout(declared_shape(other))),
    )


def _differ(path: str, pairs: Sequence[tuple[str, object, object]]) -> Iterator[Finding]:
    for what, train_value, other_value in pairs:
        if train_value != other_value:
            yield Finding(
                "R214",
                f"{path} and data.train differ in their {what}: one model can't read both",
                f"give both the same {what}, in the same order",
                path,
            )
            return


def _listed(source: AnySource) -> list[tuple[str, object]]:
    return list((table_columns(source) or {}).items())


def _fits_memory(data: Data) -> Iterator[Finding]:
    columns = table_columns(data.train)
    scattered = any(step.scattering is not None for step in data.preprocess)
    if columns is None and not scattered:
        return
    before = source_shape(column_facts(columns or {}, data.preprocess), declared_shape(data.train))
    width = math.prod(feature_shape(before, data.preprocess))
    records = data.size if data.unit == "record" else data.size * data.unit.max_records
    needed = 4 * records * width
    remedy = (
        "write fewer angles or more scales" if scattered else "hash into fewer buckets, or declare fewer categories"
    )
    if needed > DENSE_LIMIT:
        yield Finding(
            "R219",
            f"{records} records of {width} features take {needed / 2**30:.0f} GiB; "
            f"at most {DENSE_LIMIT >> 30} GiB are supported",
            remedy,
            "data.preprocess",
        )
