"""The tensors of a release: what is stated of them, held against the recipe and against `model.safetensors` itself.

Only the file's header is read, which names tensors, types, shapes and places; it is untrusted and bounded.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from dprecipe.data.facts import describe_data
from dprecipe.faults import Fault
from dprecipe.mechanisms.plan import Plan
from dprecipe.models import layout
from dprecipe.models.schema import Trees
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
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}
"""Bytes of one number."""
FLOATS = ("F16", "BF16", "F32", "F64")
"""What is trained by steps."""


def find_contradictions(stated: Predicate, plan: Plan) -> list[str]:
    """What no run of the plan can state of its tensors."""
    result, tensors, provenance = [], stated.tensors, stated.provenance
    if len({tensor.name for tensor in tensors}) != len(tensors):
        result.append("tensors: one stands twice")
    if all(tensor.made_by != "noisy_steps" for tensor in tensors):
        result.append("tensors: none was made by a noisy step")
    possible = {"noisy_steps", "python"}
    if provenance.model != "python":
        possible = {"noisy_steps", "file"} if provenance.initial_weights is not None else {"noisy_steps", "seed"}
    result += [
        f"tensors.{index}.made_by: {tensor.made_by}, in a run whose tensors are made by {' or '.join(sorted(possible))}"
        for index, tensor in enumerate(tensors)
        if tensor.made_by not in possible
    ][:5]
    if provenance.model == "python" and plan.runtime.python_tensors == "refuse" and "python" in _origins(stated):
        result.append("tensors: of a module from Python, which the recipe refuses (runtime.python_tensors)")
    if provenance.model == "recipe":
        result += _other_than_the_recipe_s(stated, plan)
    return result


def _origins(stated: Predicate) -> set[str]:
    return {tensor.made_by for tensor in stated.tensors}


def _other_than_the_recipe_s(stated: Predicate, plan: Plan) -> list[str]:
    """Where names, shapes, types or origins are not those of the recipe's model."""
    due = due_tensors(plan)
    if due is None:
        if isinstance(plan.model, Trees):
            return _no_trees(stated, plan)
        odd = [t for t in stated.tensors if t.made_by == "noisy_steps" and t.dtype not in FLOATS]
        return [f"tensors: {t.name!a} is of {t.dtype}, and noisy steps make {', '.join(FLOATS)}" for t in odd]
    given = {t.name: (t.shape, t.dtype) for t in stated.tensors}
    problems = [
        f"tensors: the recipe's model has {name!a}, the certificate does not" for name in due if name not in given
    ]
    problems += [f"tensors: {name!a} is no tensor of the recipe's model" for name in given if name not in due]
    problems += [
        f"tensors: {name!a} is {_words(*given[name])}, in the recipe's model {_words(shape, 'F32')}"
        for name, shape in due.items()
        if name in given and given[name] != (shape, "F32")
    ]
    trained = layout.trained_parameters(plan.model, due)
    return problems + [
        f"tensors: {t.name!a} is {'not ' if t.name in trained else ''}trained by the recipe, and made_by says otherwise"
        for t in stated.tensors
        if t.name in due and (t.name in trained) != (t.made_by == "noisy_steps")
    ]


def _no_trees(stated: Predicate, plan: Plan) -> list[str]:
    """What keeps tensors from being those of trees; how many trees and nodes there are is learned."""
    given = {t.name: t for t in stated.tensors}
    if {name: t.dtype for name, t in given.items()} != layout.TREES:
        return [f"tensors: trees are {', '.join(f'{name} {dtype}' for name, dtype in layout.TREES.items())}"]
    nodes = given["threshold"].shape
    shapes = {"child": (*nodes, 2), "feature": nodes, "value": (*nodes, describe_data(plan.data).classes)}
    if len(nodes) != 1 or len(given["root"].shape) != 1 or any(given[n].shape != s for n, s in shapes.items()):
        return ["tensors: of no shapes that trees have"]
    return []


def is_known(plan: Plan) -> bool:
    """Whether the tensors of the recipe's model are known without building it: not those of other libraries."""
    return isinstance(plan.model, Trees) or due_tensors(plan) is not None


def due_tensors(plan: Plan) -> layout.Shapes | None:
    """The shapes of all tensors of the recipe's model, float32, by name; None where they are not known without building
    it or, of trees, before they are grown."""
    public = describe_data(plan.data)
    try:
        return layout.layer_shapes(plan.model, public.shape, public.classes, public.vocabulary)
    except (Fault, ValueError, ArithmeticError):
        return None


def find_differences(stated: Predicate, path: Path) -> list[str]:
    """What keeps a weights file from holding exactly the tensors that the certificate names."""
    try:
        held = read_header(path)
    except ContentError as error:
        return list(error.failures)
    named = {tensor.name: (tensor.shape, tensor.dtype) for tensor in stated.tensors}
    problems = [
        f"tensors: {WEIGHTS} has no {name!a}, which the certificate names" for name in named if name not in held
    ]
    problems += [
        f"tensors: {WEIGHTS} holds {name!a}, which the certificate does not name" for name in held if name not in named
    ]
    problems += [
        f"tensors: in {WEIGHTS} {name!a} is {_words(*entry)}, the certificate says {_words(*named[name])}"
        for name, entry in held.items()
        if name in named and named[name] != entry
    ]
    return problems


def _words(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype} {list(shape)}"


def read_header(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shape and the type of each tensor of a safetensors file, by name.

    Guarantees: every byte of the file is header or belongs to exactly one tensor: nothing else is carried along. The
    header is, byte for byte, what safetensors writes of these tensors.

    Raises:
        ContentError: it is no such file, or has text or bytes that no tensor holds.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(MAX_HEADER, size - 8):
                raise ContentError(f"{WEIGHTS}: is no safetensors file")
            text = file.read(length)
            content = parse_object(text, WEIGHTS)
    except OSError as error:
        raise ContentError(f"{WEIGHTS}: can't be read: {error.strerror}") from None
    places: list[tuple[int, int]] = []
    tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, entry in content.items():
        shape, dtype, place = _entry(name, entry)
        tensors[name] = shape, dtype
        places.append(place)
    if text != _written(content):
        raise ContentError(f"{WEIGHTS}: its header is not as safetensors writes it: blanks or an order can hide data")
    end = 0
    for first, last in places:
        if first != end:
            raise ContentError(f"{WEIGHTS}: holds bytes that belong to no tensor, or to two")
        end = last
    if end != size - 8 - length:
        raise ContentError(f"{WEIGHTS}: holds bytes that belong to no tensor")
    return tensors


def _written(content: dict[str, Any]) -> bytes:
    """The header of these entries: no blanks but those that fill it up to a multiple of 8 bytes."""
    entries = {name: {key: entry[key] for key in ("dtype", "shape", "data_offsets")} for name, entry in content.items()}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")
    return text + b" " * (-len(text) % 8)


def _entry(name: str, entry: Any) -> tuple[tuple[int, ...], str, tuple[int, int]]:
    """Shape, type, and first and last byte, of one tensor."""
    if name == "__metadata__":
        raise ContentError(f"{WEIGHTS}: holds text besides its tensors")
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(first), int(last)], **rest} if (
            not rest and len(shape) <= MAX_AXES and all(type(side) is int and side >= 0 for side in shape)
        ):
            if WIDTHS.get(dtype, 0) * math.prod(shape) == last - first and dtype in WIDTHS and first >= 0:
                return tuple(shape), dtype, (first, last)
    raise ContentError(f"{WEIGHTS}: what it says of {name[:80]!a} is not what tensors are: {_short(entry)}")


def _short(entry: Any) -> str:
    return ascii(json.dumps(entry))[:80]
