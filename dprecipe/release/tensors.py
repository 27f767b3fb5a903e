"""The tensors of a release: what is stated of them, held against the recipe and against `model.safetensors` itself.

Only the file's header is read, which names tensors, types, shapes and places; it is untrusted and bounded.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from dprecipe.data.facts import facts
from dprecipe.faults import Fault
from dprecipe.models.schema import Model, Pretrained
from dprecipe.models.size import layer_sizes
from dprecipe.planning.model import Plan
from dprecipe.release.schema import Predicate
from dprecipe.release.untrusted import ContentError, parse_object

WEIGHTS = "model.safetensors"
MAX_HEADER = 16 << 20
"""Bytes of names and shapes."""
MAX_AXES = 16
WIDTHS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}
"""Bytes of one number."""


def contradictions(stated: Predicate, plan: Plan) -> list[str]:
    """What no run of the plan can state of its tensors."""
    found, tensors, provenance = [], stated.tensors, stated.provenance
    if len({tensor.name for tensor in tensors}) != len(tensors):
        found.append("tensors: one stands twice")
    if all(tensor.made_by != "noisy_steps" for tensor in tensors):
        found.append("tensors: none was made by a noisy step")
    possible = {"noisy_steps", "python"}
    if provenance.model != "python":
        possible = {"noisy_steps", "file"} if provenance.initial_weights is not None else {"noisy_steps", "seed"}
    found += [
        f"tensors.{index}.made_by: {tensor.made_by}, in a run whose tensors are made by {' or '.join(sorted(possible))}"
        for index, tensor in enumerate(tensors)
        if tensor.made_by not in possible
    ][:5]
    if provenance.model == "python" and plan.runtime.python_tensors == "refuse" and "python" in _origins(stated):
        found.append("tensors: of a module from Python, which the recipe refuses (runtime.python_tensors)")
    if provenance.model == "recipe":
        made = sum(math.prod(tensor.shape) for tensor in tensors if tensor.made_by == "noisy_steps")
        held = sum(math.prod(tensor.shape) for tensor in tensors)
        trained, whole = trained_numbers(plan), whole_numbers(plan)
        if trained is not None and made != trained:
            found.append(f"tensors: noisy steps made {made:,} numbers, the recipe's model has {trained:,} to train")
        if whole is not None and held != whole:
            found.append(f"tensors: they hold {held:,} numbers, the recipe's model has {whole:,}")
    return found


def _origins(stated: Predicate) -> set[str]:
    return {tensor.made_by for tensor in stated.tensors}


def trained_numbers(plan: Plan) -> int | None:
    """How many numbers of the recipe's model are trained; None where that is not known without building it."""
    if isinstance(plan.model, Pretrained) and getattr(plan.model, "lora", None) is not None:
        return None  # what is trained is merged into what is not
    return _numbers(plan, plan.model)


def whole_numbers(plan: Plan) -> int | None:
    """How many numbers the recipe's model has, trained or not; None where that is not known without building it."""
    model = plan.model
    if isinstance(model, Pretrained):
        model = model.model_copy(update={"train": "all", **({"lora": None} if hasattr(model, "lora") else {})})
    return _numbers(plan, model)


def _numbers(plan: Plan, model: Model) -> int | None:
    public = facts(plan.data)
    try:
        sizes = layer_sizes(model, public.shape, public.classes, public.vocabulary)
    except (Fault, ValueError, ArithmeticError):
        return None
    return sum(sizes) if sizes else None


def differences(stated: Predicate, path: Path) -> list[str]:
    """What keeps a weights file from holding exactly the tensors that the certificate names."""
    try:
        held = header(path)
    except ContentError as error:
        return list(error.failures)
    named = {tensor.name: tensor.shape for tensor in stated.tensors}
    found = [f"tensors: {WEIGHTS} has no {name!a}, which the certificate names" for name in named if name not in held]
    found += [
        f"tensors: {WEIGHTS} holds {name!a}, which the certificate does not name" for name in held if name not in named
    ]
    found += [
        f"tensors: in {WEIGHTS} {name!a} has the shape {list(shape)}, the certificate says {list(named[name])}"
        for name, shape in held.items()
        if name in named and named[name] != shape
    ]
    return found


def header(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a safetensors file, by name.

    Guarantees: every byte of the file is header or belongs to exactly one tensor: nothing else is carried along.

    Raises:
        ContentError: it is no such file, or has text or bytes that no tensor holds.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(MAX_HEADER, size - 8):
                raise ContentError(f"{WEIGHTS}: is no safetensors file")
            content = parse_object(file.read(length).rstrip(b" "), WEIGHTS)
    except OSError as error:
        raise ContentError(f"{WEIGHTS}: can't be read: {error.strerror}") from None
    places: list[tuple[int, int]] = []
    shapes: dict[str, tuple[int, ...]] = {}
    for name, entry in content.items():
        shape, place = _entry(name, entry)
        shapes[name] = shape
        places.append(place)
    end = 0
    for first, last in sorted(places):
        if first != end:
            raise ContentError(f"{WEIGHTS}: holds bytes that belong to no tensor, or to two")
        end = last
    if end != size - 8 - length:
        raise ContentError(f"{WEIGHTS}: holds bytes that belong to no tensor")
    return shapes


def _entry(name: str, entry: Any) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Shape, and first and last byte, of one tensor."""
    if name == "__metadata__":
        raise ContentError(f"{WEIGHTS}: holds text besides its tensors")
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(first), int(last)], **rest} if (
            not rest and len(shape) <= MAX_AXES and all(type(side) is int and side >= 0 for side in shape)
        ):
            if WIDTHS.get(dtype, 0) * math.prod(shape) == last - first and dtype in WIDTHS and first >= 0:
                return tuple(shape), (first, last)
    raise ContentError(f"{WEIGHTS}: what it says of {name[:80]!a} is not what tensors are: {_short(entry)}")


def _short(entry: Any) -> str:
    return ascii(json.dumps(entry))[:80]
