"""Checks of the data block, its parts against each other, and of the step `sequences`. No data is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from dprecipe.data import step_checks
from dprecipe.data.columns import ChatColumn, ColumnBlock, TextColumn, find_repeated
from dprecipe.data.facts import column_facts, feature_shape, is_slow, model_shape, sequences_step, source_shape
from dprecipe.data.paid.checks import check_paid_step
from dprecipe.data.paid.schema import DpCount
from dprecipe.data.schema import ASSISTANT, AnySource, Columns, Data, Sequences, Source
from dprecipe.data.targets import ClassTarget, NumberTarget, SeveralTarget, Target, TokenTarget
from dprecipe.faults import Finding
from dprecipe.text.spelling import nearest_word

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
    if test is None or data.is_elsewhere:
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
    if data.public is not None and not data.is_elsewhere:
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
    kept = any(is_slow(step) for step in data.preprocess)
    if columns is None and not kept:
        return
    before = source_shape(column_facts(columns or {}, data.preprocess), data.train.record_shape)
    width = math.prod(feature_shape(before, data.preprocess))
    records = data.max_units if data.unit == "record" else data.max_units * data.unit.max_records
    needed = 4 * records * width
    remedy = "write fewer angles or more scales" if kept else "hash into fewer buckets, or declare fewer categories"
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


MAX_PLACES = 1 << 16
"""Tokens of a record."""
FORMS = "`text`, `prompt` with `completion`, `chat` with `roles`, or `row`"


def check_sequences(data: Data) -> Iterator[Finding]:
    """Checks that `sequences` and `label: next_token` go together (R231); the step says what a sequence is made of
    (R232), of columns that hold that (R233), by tokens that there are (R228), and is alone (R234).
    """
    step, learned = sequences_step(data.preprocess), isinstance(data.train.target, TokenTarget)
    if step is None:
        if learned:
            yield Finding(
                "R231",
                "label: next_token learns the tokens of a text, and no step makes any",
                "add to data.preprocess: sequences: {text: …, tokenizer: {…}, max_length: …}",
                "data.train.label",
            )
        return
    index = next(index for index, other in enumerate(data.preprocess) if other.sequences is not None)
    path = f"data.preprocess.{index}.sequences"
    if not learned:
        yield Finding(
            "R231",
            f"`sequences` is for models that learn the next token, and the label is {data.train.target.describe()}",
            "write label: next_token instead of the label block; or replace `sequences` by `tokenize`",
            "data.train.label",
        )
    for place, other in enumerate(data.preprocess):
        name = next(name for name, value in other if value is not None)
        if isinstance(other.operation, DpCount):
            yield from check_paid_step(data, place, (2, step.places), f"data.preprocess.{place}.{name}")
        elif place != index:
            yield Finding(
                "R234",
                f"`sequences` makes all of a record's features, and {name} has nothing to do beside it",
                "remove the step",
                f"data.preprocess.{place}.{name}",
            )
    yield from _check_form(step, path)
    yield from _check_numbers(step, path)
    columns = data.train.table_columns
    if columns is None:
        yield Finding(
            "R233",
            f"sequences are made of a table's columns, and this {data.train.source} source has none",
            "declare the text column in data.train.columns",
            path,
        )
        return
    yield from _check_columns(step, columns, path)
    yield from _check_row(step, columns, path)


def _check_form(step: Sequences, path: str) -> Iterator[Finding]:
    pair = step.prompt is not None or step.completion is not None
    forms = [step.text is not None, pair, step.chat is not None, step.row is not None]
    if sum(forms) != 1:
        yield Finding(
            "R232",
            f"a sequence is made of {FORMS}: exactly one of these, and {sum(forms) or 'none'} is written",
            "keep one of them" if sum(forms) else "write text: and the name of the text column",
            path,
        )
    elif pair and (step.prompt is None or step.completion is None):
        missing = "prompt" if step.prompt is None else "completion"
        yield Finding(
            "R232",
            f"there is no `{missing}`: the tokens of a completion are learned, those of its prompt are read",
            f"add {missing}: and its column; or write text: where all of a text is learned",
            path,
        )
    elif pair and step.prompt == step.completion:
        yield Finding(
            "R232", "prompt and completion are one column", "name two columns, or write text:", f"{path}.completion"
        )
    if (step.chat is None) != (step.roles is None):
        yield Finding(
            "R232",
            "`chat` needs the texts around each turn" if step.roles is None else "`roles` are those of a chat column",
            'add roles: {user: ["<|user|>\\n", "\\n"], assistant: ["<|assistant|>\\n", "\\n"]}, as the checkpoint was '
            "trained with them"
            if step.roles is None
            else "remove `roles`, or write chat: instead of the other columns",
            path if step.roles is None else f"{path}.roles",
        )
    elif step.roles is not None and ASSISTANT not in step.roles:
        yield Finding(
            "R232",
            f"`roles` has no `{ASSISTANT}`, whose turns are the ones that are learned",
            f"add {ASSISTANT}: [before, after]",
            f"{path}.roles",
        )


def _check_row(step: Sequences, columns: Columns, path: str) -> Iterator[Finding]:
    """Checks that the lines of a row can be told apart, and have an end."""
    for index, name in enumerate(step.row or ()):
        if name not in columns:
            yield _unknown(name, columns, "text", f"{path}.row.{index}")
        elif isinstance(columns[name], ChatColumn):
            yield Finding(
                "R233",
                f"a line of a row has no room for the chat of {name!r}",
                "write chat: and its name, alone; or leave it out",
                f"{path}.row.{index}",
            )
        elif not name.isprintable() or ": " in name:
            yield Finding(
                "R233",
                f"{name!r} can't begin a line `name: value`: it has a line break or `: `",
                "rename the column in the file, and here",
                f"{path}.row.{index}",
            )
        elif any(not value.isprintable() for value in getattr(columns[name], "values", None) or ()):
            yield Finding(
                "R233",
                f"a declared value of {name!r} has a line break or another control character: a line has none",
                "write such values without them, in the file and here",
                f"{path}.row.{index}",
            )
        elif getattr(columns[name], "has_indicator", False):
            yield Finding(
                "R233",
                f"a line of a row has no feature that says that {name!r} was missing",
                f"write missing: {getattr(columns[name], 'fill', None)} in the column, the value that the line gets",
                f"{path}.row.{index}",
            )
    yield from find_repeated(step.row or (), f"{path}.row")
    if step.row is not None and step.end is None:
        yield Finding(
            "R232",
            "a row needs an `end`: without one a model never learns where a row stops",
            "add end: and the number of the checkpoint's own token (`eos_token`)",
            path,
        )


def _unknown(name: str, columns: Columns, kind: str, path: str) -> Finding:
    meant = nearest_word(name, columns)
    return Finding(
        "R233",
        f"no column {name!r} is declared" + (f"; did you mean {meant!r}?" if meant else ""),
        f"write {meant}" if meant else f"add to data.train.columns: {name}: {{kind: {kind}}}",
        path,
    )


def _check_numbers(step: Sequences, path: str) -> Iterator[Finding]:
    if step.max_sequences > 1 and step.text is None:
        yield Finding(
            "R232",
            "only a `text` is cut into several sequences: a prompt, a conversation or a row is read as a whole",
            "remove max_sequences, and write a larger max_length; or write text:",
            f"{path}.max_sequences",
        )
    if step.places > MAX_PLACES:
        yield Finding(
            "R232",
            f"{step.max_sequences:,} sequences of {step.max_length:,} tokens are more than the {MAX_PLACES:,} that "
            "a record may have",
            f"write max_sequences: {max(1, MAX_PLACES // step.max_length)} or less",
            f"{path}.max_sequences",
        )
    numbers = {"tokenizer.padding": step.tokenizer.padding, "begin": step.begin or 0, "end": step.end or 0}
    for key, number in numbers.items():
        if number >= step.vocabulary:
            yield Finding(
                "R228",
                f"{key.rpartition('.')[2]} {number} is no token: these are 0 … {step.vocabulary - 1}",
                "write the number that the tokeniser has for it",
                f"{path}.{key}",
            )


def _check_columns(step: Sequences, columns: Columns, path: str) -> Iterator[Finding]:
    expected: dict[str, tuple[type[ColumnBlock], str]] = {
        "text": (TextColumn, "text"),
        "prompt": (TextColumn, "text"),
        "completion": (TextColumn, "text"),
        "chat": (ChatColumn, "chat"),
    }
    for key, (kind, word) in expected.items():
        name = getattr(step, key)
        if name is None:
            continue
        if name not in columns:
            yield _unknown(name, columns, word, f"{path}.{key}")
        elif not isinstance(columns[name], kind):
            yield Finding(
                "R233",
                f"`{key}` reads a column of kind {word}, and {name!r} is of kind {columns[name].kind}",
                f"declare {name}: {{kind: {word}}}, or name another column",
                f"{path}.{key}",
            )
