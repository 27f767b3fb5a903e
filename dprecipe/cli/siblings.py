"""Recipes of one `validate` that differ in hyper-parameters alone: to run all and keep the best costs more than any of
them says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dprecipe.faults import Finding, Severity
from dprecipe.language.tuning import TUNABLE
from dprecipe.recipe.read import Loaded

WORDS = ("name", "description", "meta", "accept", "runtime", "release")
"""Keys of a recipe that make it no other run."""
MAX_SHOWN = 3


def find_siblings(recipes: Sequence[Loaded]) -> Iterator[Finding]:
    """Yields a warning for each recipe whose values, and nothing else, differ from those of one before it (P188).

    The same keys, the same data, budget and mechanism; at least one other number or word under `training`, `model`,
    `mechanism` or `data.preprocess`. Recipes with `tuning` have said what they try.
    """
    known: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}
    for loaded in recipes:
        if loaded.recipe.tuning is not None:
            continue
        leaves = dict(_list_leaves(loaded.recipe.model_dump(mode="json", by_alias=True, exclude=set(WORDS))))
        values = {path: value for path, value in leaves.items() if _is_tunable(path)}
        rest = {path: value for path, value in leaves.items() if path not in values}
        group = (tuple(values), tuple(rest.items()))
        if group not in known:
            known[group] = (loaded.source.file, values)
            continue
        file, others = known[group]
        paths = [path for path, value in values.items() if value != others[path]]
        if paths:
            shown = ", ".join(paths[:MAX_SHOWN]) + (" and others" if len(paths) > MAX_SHOWN else "")
            yield from loaded.located(
                [
                    Finding(
                        "P188",
                        f"it differs from {file} only in {shown}: whoever runs both on the same records and keeps the "
                        "better one spends more than either says",
                        "write one recipe with a block `tuning` over these keys, or keep one of them",
                        paths[0],
                        severity=Severity.WARNING,
                    )
                ]
            )


def _is_tunable(path: str) -> bool:
    tag = path.rpartition(".")[2] in ("kind", "family", "scheme", "mode", "source")
    return not tag and any(path.startswith(f"{root}.") for root in TUNABLE)


def _list_leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _list_leaves(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _list_leaves(inner, f"{path}.{index}")
    else:
        yield path, value
