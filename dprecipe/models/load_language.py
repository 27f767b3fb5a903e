"""A release folder of a language model to a model that writes, from its own files alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from dprecipe.data.tokens import TOKENIZER, SequenceTokens, read_tokenizer
from dprecipe.faults import DataFault, UsageFault
from dprecipe.models.build import build
from dprecipe.models.checks import check_data
from dprecipe.models.file import ModelFile, find_model_folder
from dprecipe.models.language_model import LanguageModel, find_sequences
from dprecipe.models.library_files import ADAPTERS, WEIGHTS
from dprecipe.models.load import find_file, read_description, read_tensors
from dprecipe.models.lora import add_adapters, load_adapters, read_adapters
from dprecipe.models.schema import CausalLm
from dprecipe.models.zoo.causal_lm import CausalLanguageModel
from dprecipe.models.zoo.checkpoint import check_decoder, digest_weights, load_decoder


def load_language_model(release: str | Path, base: str | Path | None = None, device: str = "cpu") -> LanguageModel:
    """Returns the language model of a release folder; also of a folder that holds one, as `release/`. `base`: where
    adapters are released alone, the folder of the weights that they belong to, whose digest is checked. `device`: see
    `find_device`.

    Check the folder with `dprecipe verify` first: this reads the model, not the certificate. No code is read from it.

    Raises:
        DataFault: a file is missing or damaged, it is another kind of model, or `base` holds other weights.
        UsageFault: `base` is missing, or given where the release has all weights; or the device is not there.
        RunFailed: transformers is not installed.
    """
    place = find_device(device)
    folder = find_model_folder(Path(release))
    file = read_description(folder)
    step = find_sequences(file)
    if (file.base is None) != (base is None):
        raise UsageFault(
            "the release has all its weights, and needs no base"
            if file.base is None
            else f"the release has adapters alone, of the weights with digest {file.base}",
            "remove --base" if file.base is None else "name the folder of these weights with --base",
        )
    tokens = SequenceTokens(step, *read_tokenizer(find_file(folder, TOKENIZER), step.tokenizer), TOKENIZER)
    if base is None:
        module = _build(file, "meta")  # without memory, however large it claims to be
        module.load_state_dict(read_tensors(find_file(folder, WEIGHTS), module), assign=True)
    else:
        _check_base(digest_weights(Path(base)), file, Path(base))  # before a model is built for them
        adapters = read_adapters(find_file(folder, ADAPTERS))
        draft = _build(file, "meta")  # without memory, until base and adapters are known to have its shapes
        check_decoder(draft, Path(base))
        with torch.device("meta"):
            _adapt(draft, file.model, adapters)
        module = _build(file)
        _check_base(load_decoder(module, Path(base)).digest, file, Path(base))  # of what was read
        _adapt(module, file.model, adapters)
    try:
        return LanguageModel(module.to(place), file, step, tokens)
    except torch.OutOfMemoryError:
        raise UsageFault(f"the weights do not fit into the memory of {place}", "choose the device cpu") from None


def find_device(name: str) -> torch.device:
    """Returns the device of this name; of `auto` a GPU where there is one, else the CPU.

    Raises:
        UsageFault: it is not there, or no device has this name.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device("cuda" if there["cuda"] else "cpu")
    if not there.get(name, False):
        reason = "is not available here" if name in there else f"is none of auto, {', '.join(there)}"
        raise UsageFault(f"device {name!r} {reason}", "choose auto, which takes a GPU where there is one")
    return torch.device(name)


def _build(file: ModelFile, device: str = "cpu") -> CausalLanguageModel:
    findings = [] if file.model is None else check_data(file.model, file.facts)
    if not isinstance(file.model, CausalLm) or findings:
        reason = findings[0].message if findings else "its model is no causal_lm"
        raise DataFault(f"model.json: {reason}", "take it from the release folder, unchanged")
    public = file.facts
    with torch.device(device):
        module = build(file.model, public.shape, public.outputs, 0, public.vocabulary, file.config, public.max_length)
    return cast(CausalLanguageModel, module)


def _check_base(digest: str, file: ModelFile, base: Path) -> None:
    """Checks that the digest of a folder's weights is that of the release."""
    if digest != file.base:
        raise DataFault(
            f"{base}: its weights have the digest {digest}, and the adapters belong to {file.base}",
            "name the folder of the weights that the training began from",
        )


def _adapt(module: CausalLanguageModel, model: object, adapters: Mapping[str, Tensor]) -> None:
    if isinstance(model, CausalLm) and model.lora is not None:
        add_adapters(module, model.lora, frozenset(), 0)
    load_adapters(module, adapters)
