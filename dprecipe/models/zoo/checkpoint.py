"""The weights of a decoder, from a folder as `transformers` writes it: one safetensors file, or an index and its parts.

All files are untrusted: plain tensors, whose names, shapes and types are checked against the network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from dprecipe.faults import DataFault
from dprecipe.models.public_record import InitialWeights, parse_record
from dprecipe.models.zoo.causal_lm import HEADS, CausalLanguageModel
from dprecipe.models.zoo.hub import WEIGHTS

INDEX = f"{WEIGHTS}.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.msgpack", "*.h5")
IGNORED = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq")
"""Ends of the names of constants that older checkpoints hold: masks and rotary frequencies."""
MAX_PARTS, MAX_INDEX = 10_000, 64 << 20


def load_decoder(module: CausalLanguageModel, folder: Path) -> InitialWeights:
    """Loads all weights; half precision is widened. The digest is that of `digest_weights`.

    Raises:
        DataFault: there are none but pickled ones, or they are not those of the module.
    """
    names = find_weights(folder)
    expected, missing = module.state_dict(), set(module.state_dict())
    lines, learned, head = [], None, None
    for name in names:
        content = _read(folder / name)
        lines.append(_line(hashlib.sha256(content).hexdigest(), name))
        if names == (WEIGHTS,):
            learned = parse_record(content, name)
        for own, tensor in _tensors(content, folder / name, module):
            if own == module.head_name and module.is_tied:
                head = tensor
                continue
            expected[own].copy_(tensor)
            missing.discard(own)
    _check_missing(missing, folder / names[0])
    if head is not None and not bool((head == module.last_layer.weight.detach()).all()):
        raise DataFault(
            f"{folder}: config.json says that the head is the embedding (tie_word_embeddings), and the weights have "
            "another head",
            "take config.json and weights from one checkpoint",
        )
    name = names[0] if len(names) == 1 else INDEX
    return InitialWeights(name, _join(lines), "taken over", learned=learned)


def check_decoder(module: CausalLanguageModel, folder: Path) -> None:
    """Compares the names and shapes of all weights with the module's, which may be on the meta device. Of the files
    only the headers are read.

    Raises:
        DataFault: they are not those of the module, or a file can't be read.
    """
    names, shapes, missing = find_weights(folder), _list_shapes(module), set(module.state_dict())
    for file in (folder / name for name in names):
        try:
            with safe_open(file, "pt") as opened:
                found = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
        except OSError as error:
            raise _unreadable(file, error) from None
        except (SafetensorError, ValueError, OverflowError) as error:
            raise _damaged(file) from error
        missing -= {_match(name, shape, shapes, module, file) for name, shape in found.items()}
    _check_missing(missing, folder / names[0])


def digest_weights(folder: Path) -> str:
    """Returns the digest of the weights, without reading them as such: that of the file, or of several the SHA-256 of
    the lines `digest, two blanks, name` of its parts by name, as `sha256sum` prints them.

    Raises:
        DataFault: there are none but pickled ones, or a file can't be read.
    """
    lines = []
    for name in find_weights(folder):
        try:
            with (folder / name).open("rb") as file:
                lines.append(_line(hashlib.file_digest(file, "sha256").hexdigest(), name))
        except (OSError, ValueError) as error:
            raise _unreadable(folder / name, error) from None
    return _join(lines)


def _line(digest: str, name: str) -> str:
    return f"{digest}  {name}\n"


def _join(lines: list[str]) -> str:
    whole = lines[0].split()[0] if len(lines) == 1 else hashlib.sha256("".join(lines).encode()).hexdigest()
    return f"sha256:{whole}"


def find_weights(folder: Path) -> tuple[str, ...]:
    """Returns the names of the files with the weights, sorted.

    Raises:
        DataFault: there are none, pickled ones alone, or the index is none.
    """
    if (folder / WEIGHTS).is_file():
        return (WEIGHTS,)
    if (folder / INDEX).is_file():
        return _list_parts(folder / INDEX)
    pickled = next((file for pattern in PICKLED for file in sorted(folder.glob(pattern))), None)
    if pickled is not None:
        raise DataFault(
            f"{pickled}: pickled weights can run code when they are read, so they are not",
            f"convert them where you trust them, with save_pretrained(folder) of transformers, to {WEIGHTS}",
        )
    raise DataFault(f"{folder}: has no {WEIGHTS}", f"name a folder with config.json and {WEIGHTS}")


def _list_parts(index: Path) -> tuple[str, ...]:
    try:
        if index.stat().st_size > MAX_INDEX:
            raise ValueError("too large")
        parts = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        named_well = all(part.endswith(".safetensors") and Path(part).name == part for part in parts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataFault(f"{index}: is no index of weights", "take it unchanged from its checkpoint") from error
    if not 0 < len(parts) <= MAX_PARTS or not named_well:
        raise DataFault(
            f"{index}: names files that are no safetensors files beside it", "take it unchanged from its checkpoint"
        )
    return tuple(parts)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: Exception) -> DataFault:
    reason = getattr(error, "strerror", None) or "no such file"  # a ValueError: a name that no file can have
    return DataFault(f"{file}: {reason}", "fetch all files of the checkpoint")


def _tensors(content: bytes, file: Path, module: CausalLanguageModel) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors that the module has, checked, by the module's names."""
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError, OverflowError) as error:
        raise _damaged(file) from error
    shapes = _list_shapes(module)
    for name, tensor in tensors.items():
        own = _match(name, tensor.shape, shapes, module, file)
        if own is None:
            continue
        if not tensor.is_floating_point() or tensor.itemsize < 2:
            raise DataFault(
                f"{file}: {name!r} holds {tensor.dtype}: quantised weights have no gradients",
                "take the checkpoint before quantisation",
            )
        if not bool(tensor.float().isfinite().all()):  # in single precision, which they are trained in
            raise DataFault(
                f"{file}: {name!r} holds numbers that are not finite", "name weights of a finished training"
            )
        yield own, tensor


def _list_shapes(module: CausalLanguageModel) -> dict[str, list[int]]:
    """Lists the shapes of all tensors that a checkpoint of the module may have, a tied head included."""
    shapes = {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
    shapes.setdefault(module.head_name, list(module.last_layer.weight.shape))
    return shapes


def _match(
    name: str, shape: Sequence[int], shapes: Mapping[str, list[int]], module: CausalLanguageModel, file: Path
) -> str | None:
    """Returns the module's name of a checkpoint's tensor; None for one that is a constant.

    Raises:
        DataFault: the module has none of this name and shape.
    """
    own = module.head_name if name in HEADS else name if name in shapes else f"{module.backbone_name}.{name}"
    if own not in shapes:
        if own.endswith(IGNORED):
            return None
        raise DataFault(
            f"{file}: its tensors are not those of the model: it has no {name!r}",
            "take config.json and weights from one checkpoint",
        )
    if list(shape) != shapes[own]:
        raise DataFault(
            f"{file}: {name!r} is {list(shape)}, the model's is {shapes[own]}",
            "take config.json and weights from one checkpoint",
        )
    return own


def _check_missing(missing: Collection[str], file: Path) -> None:
    if missing:
        raise DataFault(
            f"{file}: {len(missing)} tensors of the model are missing, such as {min(missing)!r}",
            "take config.json and weights from one checkpoint",
        )


def _damaged(file: Path) -> DataFault:
    return DataFault(f"{file}: is no safetensors file, or is damaged", "fetch it again")
