"""The assumptions about what came from Python: a module's tensors and initial weights, records, and a trainer.

No program can see whether a tensor holds private data, or whether records were prepared independently of each other.
Both are assumptions that the person who passed them declares; the certificate, the card and the report state them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from dprecipe.contract.facts import Access
from dprecipe.contract.plan import Assumption
from dprecipe.models.public_record import InitialWeights
from dprecipe.planning.from_python import LOSS, OPTIMIZER
from dprecipe.release.schema import Predicate

MODULE, RECORDS, BEHAVIOUR, TRAINER = "python_module", "python_records", "python_behaviour", "python_trainer"
LIBRARY, LEARNED = "library_tensors", "initial_weights_origin"
"""The ids of the assumptions."""
DECLARED = (MODULE, RECORDS, BEHAVIOUR, LIBRARY, TRAINER, LOSS, OPTIMIZER)
INDEPENDENT = (
    "the module came from Python: it processes each record independently also where no check looked (other batch "
    "sizes, values that no synthetic record had), and keeps nothing of the records outside its parameters"
)
"""Text of the assumption about somebody else's program that no probe can check."""
OUTSIDE = (
    "a trainer from Python took the steps, and its callbacks ran between them, in reach of records and gradients: what "
    "they kept or published was made of covered values alone, and they changed nothing of a step. Each began on the "
    "model and the state that the one before had left, which was compared"
)
"""Text of the assumption about callbacks."""
INDEPENDENCE = "independence"
PROBED = Assumption(
    INDEPENDENCE,
    "no record influences the gradient of another: the module came from Python, so no code of this program ensures it. "
    "A probe on synthetic records (usual ones, 10 and 100 times as large, and at the ends of their range) found none "
    f"that does, and the person who passed the module declares the rest ({BEHAVIOUR})",
    "probe and declaration",
)
"""Assumption of a probed module; it replaces a plan's assumption, which is about this program's own models."""
MAX_NAMES = 12
"""Tensors named in one sentence; the certificate lists all of them."""
PUBLIC_PREPROCESSING = "constants of the recipe, the same for every record; nothing was fitted to the data"
PYTHON_PREPROCESSING = (
    "records came from Python: their earlier preparation was declared to depend on no other record; the recipe's own "
    "preprocessing is constant"
)


class Tensor(Protocol):
    """A tensor of the release: of a run's facts or of a certificate."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def made_by(self) -> str: ...


def qualify_assumptions(planned: Sequence[Assumption], model: str) -> tuple[Assumption, ...]:
    """Returns the assumptions of a plan as a run can state them: `model` is "recipe" or "python"."""
    return tuple(PROBED if model == "python" and a.id == INDEPENDENCE else a for a in planned)


def list_assumptions(
    model: str,
    data: str,
    tensors: Sequence[Tensor],
    known: bool = True,
    initial: InitialWeights | None = None,
    trainer: str = "recipe",
) -> tuple[Assumption, ...]:
    """Returns the assumptions of a run beyond those of its plan. `model`, `data` and `trainer` are "recipe" or
    "python". `known`: the tensors of the recipe's model are known without building it. `initial`: the file that it
    started from."""
    results = []
    if initial is not None and initial.learned is not None:
        results.append(
            Assumption(
                LEARNED,
                f"the file of initial weights {initial.name} ({initial.digest}) says of itself, and nobody signs it: "
                f"{initial.learned.describe()}",
                "declaration",
            )
        )
    if model == "recipe" and not known:
        results.append(Assumption(LIBRARY, describe_library(tensors), "declaration"))
    if model == "python":
        results.append(Assumption(MODULE, describe_module(tensors), "declaration"))
        results.append(Assumption(BEHAVIOUR, INDEPENDENT, "declaration"))
    if data == "python":
        results.append(
            Assumption(
                RECORDS,
                "records came from Python: their earlier preparation (scaling, imputation, selection) used no other "
                "private record; no mean, range, vocabulary or choice was learned from them; and `batch` returns the "
                "same values for a record at any time and in any batch",
                "declaration",
            )
        )
    if trainer == "python":
        results.append(Assumption(TRAINER, OUTSIDE, "declaration"))
    return tuple(results)


def describe_preprocessing(data: str) -> Access:
    """Describes what is known about how records were prepared."""
    return (
        Access(status="declared", text=PYTHON_PREPROCESSING)
        if data == "python"
        else Access(status="public", text=PUBLIC_PREPROCESSING)
    )


def list_declared(predicate: Predicate) -> list[str]:
    """Returns the assumptions of a certificate about what came from Python or from a library's model, one sentence
    each."""
    return [a.text for a in predicate.assumptions if a.id in DECLARED]


def find_contradictions(predicate: Predicate) -> list[str]:
    """Finds where the provenance and the assumptions disagree about what came from Python."""
    result, assumed = [], {assumption.id for assumption in predicate.assumptions}
    for name, origin, assumption_id in (
        ("model", predicate.provenance.model, MODULE),
        ("data", predicate.provenance.data, RECORDS),
        ("trainer", predicate.provenance.trainer, TRAINER),
    ):
        if (origin == "python") != (assumption_id in assumed):
            result.append(f"provenance.{name}: {origin}, but the assumptions say otherwise")
    if predicate.provenance.model == "recipe" and assumed & {LOSS, OPTIMIZER}:
        result.append("provenance.model: recipe, and the recipe leaves its loss or its optimiser to a module")
    return result


def describe_module(tensors: Sequence[Tensor]) -> str:
    """Returns the assumption about the tensors of a module from Python."""
    unchanged = list_unchanged(tensors)
    text = (
        "the module came from Python: its tensors hold nothing of the private records. These are the initial values of "
        "its trained parameters"
    )
    if not unchanged:
        return f"{text}; none of its other tensors is released"
    count = f"{len(unchanged)} tensors" if len(unchanged) > 1 else "one tensor"
    return f"{text}, and {count} released unchanged, without noise: {list_tensors(unchanged)}"


def describe_library(tensors: Sequence[Tensor]) -> str:
    """Returns the assumption about the tensors of a library's model, which is not built here. The largest are named."""
    results = [tensor for tensor in tensors if tensor.made_by == "noisy_steps"]
    rest = sorted((t for t in tensors if t.made_by != "noisy_steps"), key=_size, reverse=True)
    text = (
        "the model's tensors are not known without its library, so the certificate's list was not compared with a "
        f"model: noisy steps made {len(results):,} tensors of {sum(map(_size, results)):,} numbers"
    )
    if not rest:
        return f"{text}; no others are released"
    source = "the declared file" if rest[0].made_by == "file" else "the recipe's seed"
    unnamed = rest[MAX_NAMES:]
    more = (
        f" and {len(unnamed):,} more of {sum(map(_size, unnamed)):,} numbers, listed under tensors" if unnamed else ""
    )
    return f"{text}; no noisy step made these, whose values come from {source}: {list_tensors(rest[:MAX_NAMES])}{more}"


def _size(tensor: Tensor) -> int:
    return math.prod(tensor.shape)


def list_unchanged(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns the tensors that came with a module from Python and that no noisy step changed."""
    return [tensor for tensor in tensors if tensor.made_by == "python"]


def list_tensors(tensors: Sequence[Tensor]) -> str:
    """Names and shapes as text. A name is untrusted text: it is quoted and cut."""
    names = [f"{_quote(tensor.name)} {list(tensor.shape)}" for tensor in tensors[:MAX_NAMES]]
    more = len(tensors) - len(names)
    return ", ".join(names) + (f" and {more} more, listed under tensors" if more else "")


def quote_names(names: Sequence[str]) -> str:
    """Quotes at most `MAX_NAMES` names, each one cut."""
    more = len(names) - MAX_NAMES
    return ", ".join(map(_quote, names[:MAX_NAMES])) + (f" and {more} more" if more > 0 else "")


def _quote(name: str) -> str:
    quoted = ascii(name)
    return quoted if len(quoted) <= 80 else f"{quoted[:76]}...'"
