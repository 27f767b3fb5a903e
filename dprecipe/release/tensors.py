"""Compares the stated tensors of a release with the recipe and with `model.safetensors`.

Only the file's header is read, which lists names, types, shapes and offsets. It is untrusted and bounded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dprecipe.contract.plan import Plan
from dprecipe.data.facts import describe_data
from dprecipe.faults import Fault
from dprecipe.models import layout
from dprecipe.models.library_files import WEIGHTS, is_adapter, name_weights
from dprecipe.models.schema import CausalLm, Pretrained, TrainedLayers, Transformer, Trees
from dprecipe.release.schema import Predicate
from dprecipe.release.untrusted import ContentError, parse_object

MAX_HEADER = 16 << 20
"""Bytes of the header."""
MAX_AXES = 16
BYTES_PER_NUMBER = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}
"""Bytes of one number."""
TRAINABLE = ("F16", "BF16", "F32", "F64")
"""Types that noisy steps train."""


def find_contradictions(stated: Predicate, plan: Plan) -> list[str]:
    """Finds statements about tensors that a run of the plan can't make."""
    result, tensors, provenance = [], stated.tensors, stated.provenance
    if not plan.has_model:
        return ["tensors: the recipe has no model, and releases none"] if tensors else []
    if len({tensor.name for tensor in tensors}) != len(tensors):
        result.append("tensors: one appears twice")
    if all(tensor.made_by != "noisy_steps" for tensor in tensors):
        result.append("tensors: none was made by noisy steps")
    possible = {"noisy_steps", "python"}
    if provenance.model != "python":
        possible = {"noisy_steps", "file"} if provenance.initial_weights is not None else {"noisy_steps", "seed"}
    result += [
        f"tensors.{index}.made_by: {tensor.made_by}, in a run whose tensors are made by {' or '.join(sorted(possible))}"
        for index, tensor in enumerate(tensors)
        if tensor.made_by not in possible
    ][:5]
    if (
        provenance.model == "python"
        and plan.runtime.python_tensors == "refuse"
        and any(tensor.made_by == "python" for tensor in stated.tensors)
    ):
        result.append("tensors: some come from a Python module, which the recipe refuses (runtime.python_tensors)")
    if provenance.model == "recipe":
        result += _compare_with_recipe(stated, plan)
    return result


def _compare_with_recipe(stated: Predicate, plan: Plan) -> list[str]:
    """Finds names, shapes, types or origins that differ from those of the recipe's model."""
    expected = expected_shapes(plan)
    if expected is None:
        if isinstance(plan.model, Trees):
            return _check_trees(stated, plan)
        if releases_adapters(plan):
            return _check_adapters(stated, plan)
        noisy = [t for t in stated.tensors if t.made_by == "noisy_steps"]
        named = layout.trained_parameters(plan.model, (t.name for t in noisy)) if _names_all_trained(plan) else None
        return [
            f"tensors: {t.name!a} is {t.dtype}, but noisy steps make {', '.join(TRAINABLE)}"
            for t in noisy
            if t.dtype not in TRAINABLE
        ] + [
            f"tensors: {t.name!a} is not trained by the recipe, but made_by says otherwise"
            for t in noisy
            if named is not None and t.name not in named
        ]
    stated_tensors = {t.name: (t.shape, t.dtype) for t in stated.tensors}
    problems = [
        f"tensors: the recipe's model has {name!a}, the certificate does not"
        for name in expected
        if name not in stated_tensors
    ]
    problems += [
        f"tensors: {name!a} is not a tensor of the recipe's model" for name in stated_tensors if name not in expected
    ]
    problems += [
        f"tensors: {name!a} is {_describe(*stated_tensors[name])}, in the recipe's model {_describe(shape, 'F32')}"
        for name, shape in expected.items()
        if name in stated_tensors and stated_tensors[name] != (shape, "F32")
    ]
    trained = layout.trained_parameters(plan.model, expected)
    initial = stated.provenance.initial_weights
    if initial is not None and initial.head == "new" and not trained.issuperset(list(expected)[-2:]):
        problems.append("provenance.initial_weights.head: new, but the recipe does not train the last layer")
    return problems + [
        f"tensors: {t.name!a} is {'' if t.name in trained else 'not '}trained by the recipe, but made_by says otherwise"
        for t in stated.tensors
        if t.name in expected and (t.name in trained) != (t.made_by == "noisy_steps")
    ]


def releases_adapters(plan: Plan) -> bool:
    """Returns True if the adapters of a language model are released alone."""
    return plan.release.weights == "adapters"


def weights_file(plan: Plan) -> str:
    """Returns the name of the file of released weights."""
    return name_weights(plan.model, adapters=releases_adapters(plan))[0]


def _check_adapters(stated: Predicate, plan: Plan) -> list[str]:
    """Explains why the tensors are not adapters of the recipe's rank, each made by noisy steps."""
    rank = plan.model.lora.rank if isinstance(plan.model, CausalLm) and plan.model.lora is not None else 0
    shapes = {t.name: t.shape for t in stated.tensors}
    return [
        f"tensors: {t.name!a} is no adapter of rank {rank} that noisy steps made"
        for t in stated.tensors
        if t.made_by != "noisy_steps" or t.dtype not in TRAINABLE or not is_adapter(t.name, shapes, rank)
    ][:5]


def _names_all_trained(plan: Plan) -> bool:
    """Returns True if the recipe names the trained layers one by one: no order of layers is needed to know them."""
    train = plan.model.train if isinstance(plan.model, Pretrained) else "all"
    return isinstance(train, TrainedLayers) and train.only is not None


def _check_trees(stated: Predicate, plan: Plan) -> list[str]:
    """Explains why the tensors are not those of trees. The numbers of trees and nodes are learned."""
    stated_tensors = {t.name: t for t in stated.tensors}
    if {name: t.dtype for name, t in stated_tensors.items()} != layout.TREES:
        return [f"tensors: trees are {', '.join(f'{name} {dtype}' for name, dtype in layout.TREES.items())}"]
    nodes = stated_tensors["threshold"].shape
    shapes = {"child": (*nodes, 2), "feature": nodes, "value": (*nodes, describe_data(plan.data).outputs)}
    if (
        len(nodes) != 1
        or len(stated_tensors["root"].shape) != 1
        or any(stated_tensors[n].shape != s for n, s in shapes.items())
    ):
        return ["tensors: their shapes are not those of trees"]
    return []


def has_known_tensors(plan: Plan) -> bool:
    """Returns True if the tensors of the recipe's model are known without building it; other libraries' are not."""
    return isinstance(plan.model, Trees) or expected_shapes(plan) is not None


def expected_shapes(plan: Plan) -> layout.Shapes | None:
    """Returns the shapes of all tensors of the recipe's model, float32, by name. None where they are not known without
    building the model or, for trees, without growing them."""
    public = describe_data(plan.data)
    try:
        return layout.layer_shapes(plan.model, public.shape, public.outputs, public.vocabulary)
    except (Fault, ValueError, ArithmeticError):
        return None


def count_trained(plan: Plan) -> int:
    """Counts the weights that are trained; 0 where that is not known without the model."""
    shapes = expected_shapes(plan)
    if shapes is None or (isinstance(plan.model, Transformer) and plan.model.lora is not None):
        return 0
    return sum(math.prod(shapes[name]) for name in layout.trained_parameters(plan.model, shapes))


def find_differences(stated: Predicate, plan: Plan, folder: Path) -> list[str]:
    """Finds where the weights file in `folder` differs from the tensors that the certificate names."""
    file, metadata = name_weights(plan.model, adapters=releases_adapters(plan))
    try:
        header = read_header(folder / file, metadata)
    except ContentError as error:
        return list(error.failures)
    named = {tensor.name: (tensor.shape, tensor.dtype) for tensor in stated.tensors}
    problems = [f"tensors: {file} has no {name!a}, which the certificate names" for name in named if name not in header]
    problems += [
        f"tensors: {file} holds {name!a}, which the certificate does not name" for name in header if name not in named
    ]
    problems += [
        f"tensors: in {file} {name!a} is {_describe(*entry)}, the certificate says {_describe(*named[name])}"
        for name, entry in header.items()
        if name in named and named[name] != entry
    ]
    return problems


def _describe(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype} {list(shape)}"


def read_header(path: Path, metadata: Mapping[str, str] | None = None) -> dict[str, tuple[tuple[int, ...], str]]:
    """Returns the shape and the type of each tensor of a safetensors file, by name. `metadata`: what else it has to
    hold.

    Guarantees: every byte of the file is part of the header or of exactly one tensor, so the file carries nothing else.
    The header is, byte for byte, what safetensors writes for these tensors.

    Raises:
        ContentError: not such a file, or it has text or bytes that belong to no tensor.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(MAX_HEADER, size - 8):
                raise ContentError(f"{path.name}: is not a safetensors file")
            text = file.read(length)
            content = parse_object(text, path.name)
    except OSError as error:
        raise ContentError(f"{path.name}: can't be read: {error.strerror}") from None
    if metadata is not None and content.pop("__metadata__", None) != metadata:
        raise ContentError(f"{path.name}: its metadata is not what a release of this model has")
    places: list[tuple[int, int]] = []
    tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, entry in content.items():
        shape, dtype, place = _read_entry(name, entry)
        tensors[name] = shape, dtype
        places.append(place)
    if text != _header_bytes(content, metadata):
        raise ContentError(
            f"{path.name}: its header is not as safetensors writes it; blanks or the order of keys could hide data"
        )
    end = 0
    for first, last in places:
        if first != end:
            raise ContentError(f"{path.name}: holds bytes that belong to no tensor, or to two")
        end = last
    if end != size - 8 - length:
        raise ContentError(f"{path.name}: holds bytes that belong to no tensor")
    return tensors


def _header_bytes(content: dict[str, Any], metadata: Mapping[str, str] | None) -> bytes:
    """Returns the header with these entries; its only blanks pad it to a multiple of 8 bytes."""
    first: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    entries = {name: {key: entry[key] for key in ("dtype", "shape", "data_offsets")} for name, entry in content.items()}
    text = json.dumps(first | entries, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")
    return text + b" " * (-len(text) % 8)


def _read_entry(name: str, entry: Any) -> tuple[tuple[int, ...], str, tuple[int, int]]:
    """Returns the shape, the type, and the first and last byte of one tensor."""
    if name == "__metadata__":
        raise ContentError(f"{WEIGHTS}: holds metadata besides its tensors")
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(first), int(last)], **rest} if (
            not rest and len(shape) <= MAX_AXES and all(type(side) is int and side >= 0 for side in shape)
        ):
            if (
                BYTES_PER_NUMBER.get(dtype, 0) * math.prod(shape) == last - first
                and dtype in BYTES_PER_NUMBER
                and first >= 0
            ):
                return tuple(shape), dtype, (first, last)
    raise ContentError(f"{WEIGHTS}: the entry of {name[:80]!a} does not describe a tensor: {_shorten(entry)}")


def _shorten(entry: Any) -> str:
    return ascii(json.dumps(entry))[:80]
