"""Checks of preprocessing steps, against each other and against the features before them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dprecipe.data.facts import (
    LARGEST,
    MAX_WHITENED,
    column_facts,
    one_hot_columns,
    shape_after,
    source_shape,
    tokenize_step,
)
from dprecipe.data.image_steps import Crop, Flip, Patches, Scattering, Whiten
from dprecipe.data.paid.checks import check_paid_step
from dprecipe.data.paid.schema import DpCategories, DpCount, DpPca, DpVocabulary, is_paid, item_columns
from dprecipe.data.schema import Columns, Data, Flatten, GroupNorm, Hash, OneHot, Scale, Step, Tokenize
from dprecipe.faults import Finding
from dprecipe.priors.schema import MAX_SIDE, MIN_SIDE, fits_generators
from dprecipe.text.spelling import nearest_word

Encoding = OneHot | Hash | Tokenize | DpCategories | DpVocabulary
"""Steps that turn a table's columns into numbers."""


def check_operations(data: Data) -> Iterator[Finding]:
    """Checks that each step is a mapping of one key (R206)."""
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


def check_steps(data: Data) -> Iterator[Finding]:
    """Steps fit the features before them, and are in order (R207, R208, R211, R212, R221, R222, R286)."""
    columns = data.train.table_columns
    shape = source_shape(column_facts(columns or {}, data.preprocess), data.train.record_shape)
    image = pixels = len(shape) == 3
    maps = False
    rank = 0
    for index, step in enumerate(data.preprocess):
        operation = step.operation
        path = f"data.preprocess.{index}.{_name(step)}"
        if isinstance(operation, Encoding):
            yield from _encoding(operation, columns, path)
        elif isinstance(operation, Crop | Flip):
            if not (pixels or (maps and isinstance(operation, Flip))):
                yield Finding(
                    "R212",
                    f"{_name(step)} moves pixels, and the features are not images here",
                    ("write flip: maps of scattering can be mirrored" if maps else "remove the step")
                    if len(shape) == 3 or not image
                    else "remove `flatten`: models do it",
                    path,
                )
        elif isinstance(operation, Scale):
            yield from _scale(operation, shape, path)
        elif isinstance(operation, Scattering):
            yield from _scattering(operation, shape, path) if pixels else _no_image(step, shape, image, path)
            pixels, maps = False, pixels
        elif isinstance(operation, Patches):
            yield from _patches(operation, shape, path) if pixels else _no_image(step, shape, image, path)
            pixels = False
        elif isinstance(operation, GroupNorm) and shape[0] % operation.groups:
            yield _groups(operation, shape, path)
        elif isinstance(operation, Whiten):
            yield from _whiten(operation, data, index, shape, path)
        yield from check_paid_step(data, index, shape, path)
        if isinstance(operation, Flatten | DpPca | Whiten):
            pixels = maps = False
        shape = shape_after(step, shape)
        if isinstance(operation, DpCount):  # it changes nothing, and may be anywhere
            continue
        if _rank(operation) < rank:
            yield Finding(
                "R207",
                f"{_name(step)} comes too late: encode columns first (one_hot, hash, tokenize, dp_categories, "
                "dp_vocabulary), then transform (scale, scattering, patches, group_norm, whiten, clip_features, "
                "flatten, dp_quantiles, dp_standardize, dp_pca), then augment (crop, flip)",
                "move the step up",
                path,
            )
        rank = max(rank, _rank(operation))


def _name(step: Step) -> str:
    return next(name for name, value in step if value is not None)


def _rank(operation: object) -> int:
    if isinstance(operation, Encoding):
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
    means, stds = (value if isinstance(value, tuple) else (value,) for value in (step.mean, step.std))
    largest, smallest = max(map(abs, means)), min(stds)
    if not (largest <= LARGEST and max(stds) <= LARGEST and (1 + largest) / smallest <= LARGEST):
        yield Finding(
            "R211",
            f"features of size 1 would become larger than {LARGEST:g}, or constants are: single precision can't hold "
            "what is made of them, and no record would count",
            "write the mean and the standard deviation that features have, from public data or the range of values",
            path,
        )


def _no_image(step: Step, shape: tuple[int, ...], image: bool, path: str) -> Iterator[Finding]:
    again = ": a step before has made maps of them" if len(shape) == 3 else ""
    yield Finding(
        "R221" if step.patches is None else "R286",
        f"{_name(step)} transforms the pixels of an image, and the features are not pixels here{again}",
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
            f"an image of {height}×{width} has no scattering of {step.scales} scales: height and width must be "
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
        f"{count} {what} can't be divided into {step.groups} groups of equal size",
        f"write groups: {fits}, or another divisor of {count}",
        f"{path}.groups",
    )


def _patches(step: Patches, shape: tuple[int, ...], path: str) -> Iterator[Finding]:
    side = min(shape[1:])
    if not fits_generators(shape):
        yield Finding(
            "R286",
            f"patches takes images of 1 or 3 channels and {MIN_SIDE} to {MAX_SIDE} pixels a side: its filters are "
            "parts of generated images",
            "remove the step; `scattering` takes any number of channels",
            path,
        )
    elif step.size + step.grid - 1 > side:
        size = min(step.size, side)
        yield Finding(
            "R286",
            f"an image with a side of {side} has no {step.grid} × {step.grid} averages of parts of {step.size} × "
            f"{step.size} pixels",
            f"write size: {size} and grid: {min(step.grid, side - size + 1)}, or less",
            path,
        )


def _whiten(step: Whiten, data: Data, index: int, shape: tuple[int, ...], path: str) -> Iterator[Finding]:
    before = data.preprocess[:index]
    images = source_shape((), data.train.record_shape)
    if data.train.table_columns is not None or not fits_generators(images):
        yield Finding(
            "R286",
            f"whiten takes images of 1 or 3 channels and {MIN_SIDE} to {MAX_SIDE} pixels a side: its constants are "
            "those of generated images, and the records are none",
            "remove the step; `scale` takes constants that you write, and `dp_standardize` pays for them",
            path,
        )
        return
    if any(is_paid(each.operation) or each.whiten is not None for each in before):
        yield Finding(
            "R286",
            "whiten makes its constants of images that go through the steps before it, and a paid step, or whiten "
            "itself, is among these",
            "move it before the first paid step, and whiten once",
            path,
        )
        return
    if step.across == "channels" and len(shape) != 3:
        yield Finding(
            "R286",
            "whiten evens out channels of maps, and the features are one vector here",
            "write across: features, or move the step before what makes a vector",
            f"{path}.across",
        )
        return
    count = math.prod(shape) if step.across == "features" else shape[0]
    if count > MAX_WHITENED:
        yield Finding(
            "R286",
            f"whiten takes at most {MAX_WHITENED:,} {step.across}, and there are {count:,}",
            "write across: channels"
            if len(shape) == 3 and shape[0] <= MAX_WHITENED
            else "write fewer filters of patches, fewer angles of scattering, or remove the step",
            path,
        )


def _encoding(step: Encoding, columns: object, path: str) -> Iterator[Finding]:
    name = path.rpartition(".")[2]
    if not isinstance(columns, dict):
        yield Finding("R208", f"{name} encodes columns of a table, and this source has none", "remove the step", path)
        return
    expected = "one_hot" if isinstance(step, OneHot) else "hash"
    key = "column" if isinstance(step, Tokenize | DpVocabulary) else "columns"
    for index, column in enumerate(_encoded_by(step, columns)):
        at = "" if key == "column" else f".{index}"
        if column not in columns:
            close = nearest_word(column, [name for name, declared in columns.items() if declared.step == expected])
            remedy = "declare it in data.train.columns" if close is None else f"write {close}"
            meant = "" if close is None else f"; did you mean {close!r}?"
            yield Finding("R208", f"no column {column!r} is declared{meant}", remedy, f"{path}.{key}{at}")
        elif columns[column].step != expected:
            kind, own = columns[column].kind, columns[column].step
            remedy = {
                "one_hot": "encode it with one_hot, or declare it as {kind: text}",
                "hash": "encode it with hash, or declare its values as {kind: category}",
                "sequences": "leave it out: `sequences` makes tokens of a chat column, alone",
                None: f"leave it out: {'an' if kind[0] in 'aeiou' else 'a'} {kind} column needs no encoding",
            }[own]
            yield Finding("R208", f"{name} does not encode the {kind} column {column!r}", remedy, f"{path}.{key}{at}")


def _encoded_by(step: Encoding, columns: Columns) -> tuple[str, ...]:
    match step:
        case OneHot():
            return one_hot_columns(step, columns)
        case Hash():
            return step.columns
        case Tokenize():
            return (step.column,)
        case _:
            return item_columns(step)


def check_encodings(data: Data) -> Iterator[Finding]:
    """Checks that each column of a table becomes numbers by one step (R209, R210)."""
    columns = data.train.table_columns
    if columns is None:
        return
    times: dict[str, int] = dict.fromkeys(columns, 0)
    for step in data.preprocess:
        operation = step.operation
        if isinstance(operation, Encoding):
            for written in _encoded_by(operation, columns):
                # A misspelt name is a finding of its own; the column that was meant counts as encoded.
                name = written if written in columns else nearest_word(written, columns) or written
                times[name] = times.get(name, 0) + 1
    for name, column in columns.items():
        if column.step is not None and times[name] == 0:
            example = {
                "one_hot": "one_hot: {}",
                "hash": f"hash: {{columns: [{name}], buckets: 256}}",
                "sequences": f"sequences: {{chat: {name}, roles: {{…}}, tokenizer: {{…}}, max_length: 1024}}",
            }[column.step]
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


def check_tokens(data: Data) -> Iterator[Finding]:
    """Tokens are hashed words or those of a tokeniser (R228). Their column is the only one, and no step changes them
    (R220)."""
    tokens = tokenize_step(data.preprocess)
    columns = data.train.table_columns or {}
    for index, step in enumerate(data.preprocess):
        if step.tokenize is not None:
            yield from _find_other_tokens(step.tokenize, f"data.preprocess.{index}.tokenize")
    if tokens is None or tokens.column not in columns:
        return
    others = [name for name in columns if name != tokens.column]
    if others:
        yield Finding(
            "R220",
            f"a model of tokens reads no other columns, and {', '.join(map(repr, others))} would be read as tokens",
            f"declare only {tokens.column!r}, or encode it with hash: {{columns: [{tokens.column}], buckets: "
            f"{tokens.buckets or 4096}, tokens: words}}",
            "data.train.columns",
        )
    for index, step in enumerate(data.preprocess):
        if not isinstance(step.operation, Encoding | Flatten | DpCount):
            yield Finding(
                "R220",
                f"tokens are numbers of words, and {_name(step)} would turn them into other words",
                "remove the step",
                f"data.preprocess.{index}.{_name(step)}",
            )


def _find_other_tokens(step: Tokenize, path: str) -> Iterator[Finding]:
    if (step.buckets is None) == (step.tokenizer is None):
        yield Finding(
            "R228",
            "tokens are hashed words (`buckets`) or those of a tokeniser (`tokenizer`): exactly one of the two",
            "add buckets: 4096" if step.buckets is None else "remove one of them",
            path,
        )
    elif step.tokenizer is not None and step.tokenizer.padding >= step.tokenizer.vocabulary:
        yield Finding(
            "R228",
            f"padding {step.tokenizer.padding} is no token: these are 0 … {step.tokenizer.vocabulary - 1}",
            "write the number of the tokeniser's own padding token",
            f"{path}.tokenizer.padding",
        )
