"""Checks of what a paid step states about itself and about the features before it. No data is read.

Each takes the step as `PlacedStep` has it: at its place in the list, with the shape of the features by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dprecipe.data.columns import ColumnBlock
from dprecipe.data.facts import LARGEST, has_width, item_steps, share_of_range
from dprecipe.data.paid.schema import (
    MAX_COLUMNS,
    MAX_ENTRIES,
    MAX_FEATURES,
    Bound,
    DpCount,
    DpPca,
    DpQuantiles,
    DpStandardize,
    PaidStep,
)
from dprecipe.data.schema import Columns, Data, Flatten, Hash, OneHot, Step
from dprecipe.faults import Finding
from dprecipe.text.spelling import nearest_word


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """A paid step, its dotted path, the steps before it, and the shape of a record by then."""

    step: PaidStep
    path: str
    before: tuple[Step, ...]
    shape: tuple[int, ...]
    columns: Columns | None


def check_paid_step(data: Data, index: int, shape: tuple[int, ...], path: str) -> Iterator[Finding]:
    """Checks R223 to R226 of step `index`, a paid one whose columns of text are known."""
    step = data.preprocess[index].operation
    if isinstance(step, PaidStep):
        placed = PlacedStep(step, path, data.preprocess[:index], shape, data.train.table_columns)
        for rule in _RULES:
            yield from rule(placed)


def _price(placed: PlacedStep) -> Iterator[Finding]:
    step = placed.step
    given = [name for name in ("noise_multiplier", "share") if getattr(step, name) is not None]
    if len(given) != 1:
        yield Finding(
            "R223",
            "a step that reads private records has one price, "
            + ("and this one has two: noise_multiplier and share" if given else "and this one has none"),
            "remove one of them" if given else "add share: 0.1, or noise_multiplier: 20",
            placed.path,
        )


def _counts(placed: PlacedStep) -> Iterator[Finding]:
    if isinstance(placed.step, DpCount) and any(before.dp_count is not None for before in placed.before):
        yield Finding("R223", "the number of units is released twice", "remove one dp_count", placed.path)


def _columns(placed: PlacedStep) -> Iterator[Finding]:
    """Checks that named columns are numbers of the table, as it has them."""
    step = placed.step
    if not isinstance(step, DpQuantiles | DpStandardize) or step.columns == "all":
        return
    if placed.columns is None:
        yield Finding("R224", "this source has no columns", "write columns: all", f"{placed.path}.columns")
        return
    numeric = [name for name, column in placed.columns.items() if column.limits is not None]
    taken = item_steps(placed.before)
    for index, name in enumerate(step.columns):
        where = f"{placed.path}.columns.{index}"
        column = placed.columns.get(name)
        if column is None:
            close = nearest_word(name, numeric)
            meant = "" if close is None else f"; did you mean {close!r}?"
            remedy = "declare it in data.train.columns" if close is None else f"write {close}"
            yield Finding("R224", f"no column {name!r} is declared{meant}", remedy, where)
        elif column.limits is None:
            hashed = any(b.hash is not None and name in b.hash.columns for b in placed.before)
            how = "its words are in buckets: hash has encoded it" if hashed else f"it is a {column.kind} column"
            how = "its items are released by an earlier step" if name in taken else how
            yield Finding("R224", f"{name!r} holds no numbers; {how}", "remove it from columns", where)
        elif name in step.columns[:index]:
            yield Finding("R224", f"{name!r} is named twice", "remove one of them", where)
    changing = next((before for before in placed.before if not _keeps_units(before)), None)
    if changing is not None:
        name = next(key for key, value in changing if value is not None)
        yield Finding(
            "R224",
            f"after {name}, values are no longer in the units of their columns",
            f"move the step above {name}, or write columns: all with bounds in the units of features",
            f"{placed.path}.columns",
        )


def _keeps_units(step: Step) -> bool:
    operation = step.operation
    if isinstance(operation, PaidStep):
        return not isinstance(operation, DpStandardize | DpPca)
    return isinstance(operation, OneHot | Hash | Flatten) or step.tokenize is not None


def _bounds(placed: PlacedStep) -> Iterator[Finding]:
    step = placed.step
    if not isinstance(step, DpQuantiles | DpStandardize):
        return
    path, bounds = f"{placed.path}.bounds", step.bounds
    if isinstance(bounds, dict):
        if step.columns == "all":
            yield Finding(
                "R225", "bounds by column, for all features", "name the columns, or write one [low, high]", path
            )
            return
        for name, bound in bounds.items():
            if name not in step.columns:
                close = nearest_word(name, step.columns)
                remedy = f"write {close}" if close else "add it to columns, or remove its bounds"
                yield Finding("R225", f"{name!r} is not among the columns of this step", remedy, f"{path}.{name}")
            else:
                yield from _bound(bound, (placed.columns or {}).get(name), f"{path}.{name}")
    elif bounds is not None:
        columns = [None] if step.columns == "all" else [(placed.columns or {}).get(name) for name in step.columns]
        findings = [finding for column in columns for finding in _bound(bounds, column, path)]
        yield from findings[:1]
    elif step.columns == "all" and not _has_bounds(placed):
        yield Finding(
            "R225",
            "nothing bounds the features here, and a sum of private values needs bounds",
            "add bounds: [-1, 1], or the range from domain knowledge that features can have"
            + ("" if isinstance(step, DpQuantiles) else "; or release dp_quantiles of all columns before"),
            placed.path,
        )


def _has_bounds(placed: PlacedStep) -> bool:
    """Features whose range is known: a table's, in [0, 1] and not changed, or clipped to released quantiles."""
    if not isinstance(placed.step, DpQuantiles):
        quantiles = [n for n, before in enumerate(placed.before) if before.dp_quantiles is not None]
        if quantiles and all(map(_keeps_units, placed.before[quantiles[-1] :])):
            last = placed.before[quantiles[-1]].dp_quantiles
            if last is not None and last.columns == "all":
                return True
    known = placed.columns is not None and all(column.step != "hash" for column in placed.columns.values())
    return known and all(map(_keeps_units, placed.before))


def _bound(bound: Bound, column: ColumnBlock | None, path: str) -> Iterator[Finding]:
    low, high = bound
    if not low < high:
        yield Finding(
            "R225",
            f"the lower bound {low:g} is not below the upper one {high:g}",
            f"write [{high:g}, {low:g}]" if low > high else "write the range of values that can occur",
            path,
        )
    elif not high / 2 - low / 2 < LARGEST:
        yield Finding("R225", "bounds so far apart leave nothing to be seen", "write a range below 1e30", path)
    elif column is not None and column.limits is not None and column.limits[0] / 2 < column.limits[1] / 2:
        least, most = column.limits
        shares = share_of_range(column, bound)
        if not shares[0] < shares[1]:
            yield Finding(
                "R225",
                f"[{low:g}, {high:g}] and the declared range [{least:g}, {most:g}] do not overlap",
                "write bounds within the column's min and max",
                path,
            )
        elif not has_width(*shares):
            yield Finding(
                "R225",
                f"[{low!r}, {high!r}] is too small a part of the declared range [{least:g}, {most:g}]: features have "
                "7 digits",
                "write wider bounds, or a narrower min and max of the column",
                path,
            )
    elif not has_width(low, high):
        yield Finding(
            "R225",
            f"[{low!r}, {high!r}] has no width in the 7 digits that features have",
            "write wider bounds",
            path,
        )


def _levels(placed: PlacedStep) -> Iterator[Finding]:
    step = placed.step
    if isinstance(step, DpQuantiles):
        if not step.low < step.high:
            yield Finding(
                "R225",
                f"the lower level {step.low:g} is not below the upper one {step.high:g}",
                f"write low: {step.high:g} and high: {step.low:g}" if step.low > step.high else "write low: 0.02",
                f"{placed.path}.low",
            )
        if len(placed.shape) != 1:
            yield Finding(
                "R226",
                "quantiles are those of columns or features, and the records are images here",
                "remove the step: pixels are in [0, 1]; dp_standardize takes channels",
                placed.path,
            )
        elif step.columns == "all" and placed.shape[0] > MAX_COLUMNS:
            yield Finding(
                "R226",
                f"{placed.shape[0]} features take two draws each; at most {MAX_COLUMNS} columns are supported",
                "name the columns that need it, or write bounds in dp_standardize",
                f"{placed.path}.columns",
            )


def _pca(placed: PlacedStep) -> Iterator[Finding]:
    step, shape = placed.step, placed.shape
    if not isinstance(step, DpPca):
        return
    if len(shape) != 1:
        yield Finding(
            "R226",
            "components are those of vectors, and the records are images here",
            "add flatten: {} before",
            placed.path,
        )
        return
    where = f"{placed.path}.components"
    if step.components > shape[0]:
        yield Finding(
            "R226",
            f"{step.components} components of {shape[0]} features",
            f"write components: {shape[0]} or fewer",
            where,
        )
    elif shape[0] > MAX_FEATURES:
        yield Finding(
            "R226",
            f"a matrix of {shape[0]:,} × {shape[0]:,} noisy entries; at most {MAX_FEATURES:,} features are supported",
            "scatter, hash into fewer buckets, or store smaller images",
            placed.path,
        )
    elif shape[0] * step.components > MAX_ENTRIES:
        yield Finding(
            "R226",
            f"{step.components} components of {shape[0]} features are more numbers than a release may have",
            f"write components: {MAX_ENTRIES // shape[0]} or fewer",
            where,
        )


_RULES: tuple[Callable[[PlacedStep], Iterator[Finding]], ...] = (_price, _counts, _columns, _bounds, _levels, _pca)
