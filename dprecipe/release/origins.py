"""What a release rests on that came from Python, in words: a module's tensors and first weights, and records.

No program can see whether a tensor that somebody passes holds private data, or whether records were prepared one by
one. Both are assumptions, declared by who passed them and named in certificate, card and report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from dprecipe.mechanisms.facts import Access
from dprecipe.mechanisms.plan import Assumption
from dprecipe.release.schema import Predicate

MODULE, RECORDS, BEHAVIOUR = "python_module", "python_records", "python_behaviour"
LIBRARY = "library_tensors"
"""The assumptions' names."""
ALIKE = (
    "the module came from Python: it treats records one by one where no check looked too, in batches of other "
    "sizes and for values that no synthetic record had, and keeps nothing of them outside of its parameters"
)
"""What no probe can exclude of a program that somebody else wrote."""
SHOWN = 12
"""Tensors that a sentence names; all of them are in the certificate."""
CONSTANT = "constants of the recipe, the same for every record; nothing was fitted to the data"
PREPARED = (
    "records came from Python: whatever was done to them before was declared to depend on no other record; what the "
    "recipe does is constant"
)


class Tensor(Protocol):
    """A tensor of the release: of a run's facts or of a certificate."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def made_by(self) -> str: ...


def list_assumptions(model: str, data: str, tensors: Sequence[Tensor], known: bool = True) -> tuple[Assumption, ...]:
    """What a run rests on beyond its plan; `model` and `data` are "recipe" or "python". `known`: which tensors the
    recipe's model has is known without building it."""
    results = []
    if model == "recipe" and not known:
        results.append(Assumption(LIBRARY, library_text(tensors), "declaration"))
    if model == "python":
        results.append(Assumption(MODULE, module_text(tensors), "declaration"))
        results.append(Assumption(BEHAVIOUR, ALIKE, "declaration"))
    if data == "python":
        results.append(
            Assumption(
                RECORDS,
                "records came from Python: whatever was done to one of them before (scaling, filling in, selecting) "
                "took account of no other private record; no mean, range, vocabulary or choice was learned from them; "
                "and what `batch` answers for a record is the same whenever and with whichever others it is asked for",
                "declaration",
            )
        )
    return tuple(results)


def describe_preprocessing(data: str) -> Access:
    """What is known of how records were prepared."""
    return Access(status="declared", text=PREPARED) if data == "python" else Access(status="public", text=CONSTANT)


def list_declared(made: Predicate) -> list[str]:
    """What a certificate rests on that came from Python, one sentence each."""
    return [a.text for a in made.assumptions if a.id in (MODULE, RECORDS, BEHAVIOUR, LIBRARY)]


def find_contradictions(made: Predicate) -> list[str]:
    """Where what came from Python is not among what is assumed, or the other way round."""
    result, assumed = [], {assumption.id for assumption in made.assumptions}
    for name, given, due in (("model", made.provenance.model, MODULE), ("data", made.provenance.data, RECORDS)):
        if (given == "python") != (due in assumed):
            result.append(f"provenance.{name}: {given}, and the assumptions say otherwise")
    return result


def module_text(tensors: Sequence[Tensor]) -> str:
    """What a module from Python is assumed to be."""
    given = untouched_tensors(tensors)
    text = (
        "the module came from Python: what came with it holds nothing of the private records. That is the first values "
        "of its trained parameters"
    )
    if not given:
        return f"{text}; no other tensor of it is released"
    many = f"{len(given)} tensors" if len(given) > 1 else "one tensor"
    return f"{text}, and {many} released as they came, which no noisy step made: {list_tensors(given)}"


def library_text(tensors: Sequence[Tensor]) -> str:
    """What a certificate says of the tensors of a model that nobody here can build. The largest are named."""
    results = [tensor for tensor in tensors if tensor.made_by == "noisy_steps"]
    rest = sorted((t for t in tensors if t.made_by != "noisy_steps"), key=_size, reverse=True)
    text = (
        "which tensors the model has is not known without its library, so it is as the certificate says and was held "
        f"against no model: noisy steps made {len(results):,} tensors of {sum(map(_size, results)):,} numbers"
    )
    if not rest:
        return f"{text}; no other is released"
    where = "the declared file" if rest[0].made_by == "file" else "the recipe's seed"
    hidden = rest[SHOWN:]
    more = f" and {len(hidden):,} more of {sum(map(_size, hidden)):,} numbers, listed under tensors" if hidden else ""
    return f"{text}; no noisy step made these, which hold what {where} gives: {list_tensors(rest[:SHOWN])}{more}"


def _size(tensor: Tensor) -> int:
    return math.prod(tensor.shape)


def untouched_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Those that came with a module from Python and that no noisy step made."""
    return [tensor for tensor in tensors if tensor.made_by == "python"]


def list_tensors(tensors: Sequence[Tensor]) -> str:
    """Names and shapes. A name is somebody else's text: it is quoted and cut."""
    shown = [f"{_short(tensor.name)} {list(tensor.shape)}" for tensor in tensors[:SHOWN]]
    more = len(tensors) - len(shown)
    return ", ".join(shown) + (f" and {more} more, listed under tensors" if more else "")


def quote_names(names: Sequence[str]) -> str:
    """Names, each quoted and cut, `SHOWN` of them at most."""
    more = len(names) - SHOWN
    return ", ".join(map(_short, names[:SHOWN])) + (f" and {more} more" if more > 0 else "")


def _short(name: str) -> str:
    quoted = ascii(name)
    return quoted if len(quoted) <= 80 else f"{quoted[:76]}...'"
