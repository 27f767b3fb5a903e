"""The files by which other programs read a released language model: those of `transformers`, `peft` and what reads
these (vLLM). No torch.

All of them are functions of `model.json`, `tokenizer.json` and the names of the tensors, so anyone who has those can
write them again: `verify` does, and compares byte for byte.

| file | of merged weights | of adapters |
|---|---|---|
| `config.json` | yes | no: it is the base's |
| `generation_config.json` | yes | no |
| `adapter_config.json` | no | yes |
| `tokenizer_config.json` | yes | yes |
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from dprecipe.data.facts import sequences_step
from dprecipe.data.schema import Sequences
from dprecipe.faults import DataFault
from dprecipe.models.decoder_config import library_config
from dprecipe.models.file import ModelFile
from dprecipe.models.schema import CausalLm

WEIGHTS, ADAPTERS = "model.safetensors", "adapter_model.safetensors"
METADATA = {"format": "pt"}
"""Metadata of a language model's weights file: older versions of `transformers` read no file without it."""
MERGED_FILES = frozenset({"config.json", "generation_config.json", "tokenizer_config.json"})
ADAPTER_FILES = frozenset({"adapter_config.json", "tokenizer_config.json"})
PREFIX, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
"""Parts of PEFT's names for the tensors of an adapter, around the name of its layer."""


def list_library_files(model: object, *, adapters: bool) -> frozenset[str]:
    """Returns the names of the files that `render_library_files` makes for a model block; none but for a language
    model.
    """
    if not isinstance(model, CausalLm):
        return frozenset()
    return ADAPTER_FILES if adapters else MERGED_FILES


def render_library_files(file: ModelFile, tokenizer: bytes, tensors: Collection[str]) -> dict[str, bytes]:
    """Returns the files by name; none but for a language model. `tokenizer`: the content of `tokenizer.json`;
    `tensors`: the names in the weights file.

    Raises:
        DataFault: the tensors are no adapters, where `file` says that they are.
        ValueError: `tokenizer` is none (`dprecipe.data.tokens.check_form`).
    """
    step = sequences_step(file.preprocess)
    if not isinstance(file.model, CausalLm) or file.config is None or step is None:
        return {}
    files = {"tokenizer_config.json": _describe_tokenizer(step, tokenizer, file)}
    if file.base is not None:
        files["adapter_config.json"] = _describe_adapters(file.model, file, tensors)
    else:
        own = {"bos_token_id": step.begin, "eos_token_id": step.end, "dtype": "float32"}
        files["config.json"] = {**library_config(file.config), **own}
        files["generation_config.json"] = {
            **({} if step.begin is None else {"bos_token_id": step.begin}),
            "eos_token_id": step.end,
            "pad_token_id": step.tokenizer.padding,
        }
    return {name: (json.dumps(files[name], indent=2, sort_keys=True) + "\n").encode() for name in files}


def list_adapted_layers(tensors: Collection[str]) -> list[str]:
    """Returns the layers whose adapters these tensors are, sorted.

    Raises:
        DataFault: they are no adapters, or one is missing.
    """
    layers = sorted(
        name.removeprefix(PREFIX).removesuffix(DOWN)
        for name in tensors
        if name.startswith(PREFIX) and name.endswith(DOWN)
    )
    expected = {f"{PREFIX}{layer}{part}" for layer in layers for part in (DOWN, UP)}
    if not layers or expected != set(tensors):
        raise DataFault(f"{ADAPTERS}: its tensors are not pairs of adapters", "take it from the release, unchanged")
    return layers


def is_adapter(name: str, shapes: Mapping[str, tuple[int, ...]], rank: int) -> bool:
    """Returns True if a tensor is half of an adapter of this rank, and the other half is there."""
    half = next((part for part in (DOWN, UP) if name.startswith(PREFIX) and name.endswith(part)), None)
    if half is None or len(shapes[name]) != 2:
        return False
    other = shapes.get(name.removesuffix(half) + (UP if half == DOWN else DOWN), ())
    return len(other) == 2 and shapes[name][0 if half == DOWN else 1] == rank


def name_weights(model: object, *, adapters: bool) -> tuple[str, Mapping[str, str] | None]:
    """Returns the name of a weights file, and the metadata in it."""
    return ADAPTERS if adapters else WEIGHTS, METADATA if isinstance(model, CausalLm) else None


def _describe_adapters(model: CausalLm, file: ModelFile, tensors: Collection[str]) -> dict[str, Any]:
    if model.lora is None or file.base is None or file.config is None:
        raise DataFault("model.json: adapters of a model that has none", "take it from the release, unchanged")
    alpha = model.lora.alpha
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        # A folder has no name that others could look up: then the digest of its weights stands here.
        "base_model_name_or_path": file.base if model.hub is None else model.hub.name,
        "revision": None if model.hub is None else model.hub.revision,
        "r": model.lora.rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "target_modules": list_adapted_layers(tensors),
        "fan_in_fan_out": file.config["model_type"] == "gpt2",  # its linear layers have their weights transposed
        "lora_dropout": 0.0,
        "bias": "none",
        "modules_to_save": None,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _describe_tokenizer(step: Sequences, content: bytes, file: ModelFile) -> dict[str, Any]:
    """Names the special tokens where `tokenizer.json` itself says that they are special."""
    special = _read_special(content)
    own = {"bos_token": step.begin, "eos_token": step.end, "pad_token": step.tokenizer.padding}
    named = {name: special.get(number) for name, number in own.items()}
    places = (file.config or {}).get("max_position_embeddings", step.max_length)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": places,
        "clean_up_tokenization_spaces": False,
        **{name: text for name, text in named.items() if text is not None},
    }


def _read_special(content: bytes) -> Mapping[int | None, str]:
    """Returns the special tokens of a tokeniser's file, by number. An entry that is none is left out: the library,
    which has read the file, is the one to refuse it.
    """
    added = json.loads(content).get("added_tokens")
    found: dict[int | None, str] = {}
    for token in added if isinstance(added, list) else ():
        match token:
            case {"id": int(number), "content": str(text), "special": True}:
                found[number] = text
    return found
