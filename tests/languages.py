"""Releases of tiny language models, written by hand: a tokeniser of letters, a decoder with weights of a seed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from dprecipe.data.schema import Data
from dprecipe.data.tokens import TOKENIZER
from dprecipe.models.decoder_config import check_decoder_config, library_config
from dprecipe.models.file import describe_file, parse_description
from dprecipe.models.library_files import METADATA, name_weights, render_library_files
from dprecipe.models.schema import CausalLm
from dprecipe.release.untrusted import to_bytes
from tests.decoders import DECODERS

LETTERS = ["<eos>", "<unk>", "<user>", "<bot>", *"abcdefghijklmnopqrstuvwxyz .\n:\\0123456789"]
TEXT = {"columns": {"text": {"kind": "text"}}}
SPAM = {
    "columns": {"label": {"kind": "category", "values": ["ham", "spam"]}, "text": {"kind": "text"}},
    "step": {"row": ["label", "text"]},
}


def tokens_of(text: str) -> list[int]:
    """The tokens of a text by its letters."""
    return [LETTERS.index(letter) if letter in LETTERS else 1 for letter in text]


def model_block(**keys: Any) -> CausalLm:
    """A `model` block of the kind."""
    return CausalLm.model_validate({"kind": "causal_lm", "init": "base", **keys})


def data_block(columns: dict[str, Any] = TEXT["columns"], step: dict[str, Any] | None = None, **keys: Any) -> Data:
    """A `data` block of sequences, of a text column unless `step` says otherwise."""
    sequences = {
        "tokenizer": {"path": "tokenizer.json", "vocabulary": len(LETTERS)},
        "end": 0,
        "max_length": 24,
        **({"text": "text"} if step is None else step),
        **keys,
    }
    source = {"source": "csv", "path": "texts.csv", "columns": columns, "label": "next_token"}
    content = {"train": source, "size": 100, "preprocess": [{"sequences": sequences}]}
    return Data.model_validate_json(json.dumps(content))


def config_of(family: str) -> dict[str, Any]:
    """A configuration with a token for each letter."""
    return dict(check_decoder_config({**DECODERS[family], "vocab_size": len(LETTERS)}))


def write_letters(folder: Path) -> None:
    """A tokeniser of letters that gives texts back as they were."""
    library = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    numbers = {letter: number for number, letter in enumerate(LETTERS)}
    made = library.Tokenizer(library.models.BPE(numbers, [], unk_token="<unk>"))
    made.add_special_tokens(["<eos>", "<user>", "<bot>"])
    made.decoder = library.decoders.Fuse()
    made.save(str(folder / TOKENIZER))


def write_decoder(folder: Path, family: str) -> None:
    """A decoder in `base`, with weights of a seed and its tokeniser; beside it forty messages, `messages.csv`."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from safetensors.torch import save_file

    from dprecipe.models.zoo.causal_lm import causal_model

    base, config = folder / "base", config_of(family)
    base.mkdir(parents=True)
    torch.manual_seed(2)
    state = causal_model(config, 30).state_dict()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, base / "model.safetensors", METADATA)
    (base / "config.json").write_text(json.dumps(library_config(config)))
    write_letters(base)
    rows = [f"{('ham', 'spam')[n % 2]},message {n} of them" for n in range(40)]
    (folder / "messages.csv").write_text("\n".join(["label,text", *rows]) + "\n")


def write_release(folder: Path, family: str = "gpt2", adapters: bool = False, **keys: Any) -> Any:
    """Write `model.json`, weights, tokeniser and the files of other libraries; returns the module that was saved.
    `keys`: of `data_block`."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    from safetensors.torch import save_file

    from dprecipe.models.lora import LowRankLayer, adapter_state, add_adapters
    from dprecipe.models.zoo.causal_lm import causal_model

    folder.mkdir(parents=True, exist_ok=True)
    model = model_block(**({"lora": {"rank": 2, "alpha": 4}} if adapters else {}))
    data, config = data_block(**keys), config_of(family)
    torch.manual_seed(5)
    module = causal_model(config, 24)
    state = module.state_dict()
    if adapters and model.lora is not None:
        add_adapters(module, model.lora, frozenset(), 0)
        for layer in module.modules():
            if isinstance(layer, LowRankLayer):
                layer.up.weight.data.normal_(std=0.5)
        base, state = state, adapter_state(module, module.state_dict())
        (folder.parent / "base").mkdir()
        save_file(base, folder.parent / "base" / "model.safetensors", METADATA)
    description = describe_file(model, data, config, (), _digest(folder) if adapters else None)
    write_letters(folder)
    (folder / "model.json").write_bytes(to_bytes(description))
    tensors = {name: tensor.detach().contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / name_weights(model, adapters=adapters)[0], METADATA)
    file = parse_description((folder / "model.json").read_bytes())
    for name, content in render_library_files(file, (folder / TOKENIZER).read_bytes(), state).items():
        (folder / name).write_bytes(content)
    return module.eval()


def _digest(folder: Path) -> str:
    return "sha256:" + hashlib.sha256((folder.parent / "base" / "model.safetensors").read_bytes()).hexdigest()
