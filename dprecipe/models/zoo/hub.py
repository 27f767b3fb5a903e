"""Models of two public libraries: `timm` for images, `transformers` for tokens. Both are extras, imported on use.

No code comes with a model: of `transformers` a few families are built by the installed library from numbers of the
configuration, which are checked one by one (`models.hub_config`); weights are plain tensors that are read here
(`models.initial`). Nothing is fetched but configuration and weights of a pinned revision.

Legend: B records, L places of a record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from dprecipe.faults import DataFault
from dprecipe.libraries import importing_libraries
from dprecipe.models.hub_config import Config, check_config
from dprecipe.models.schema import CausalLm, Timm, Transformers
from dprecipe.models.zoo.transformer import mark_non_finite, to_tokens

WEIGHTS = "model.safetensors"


def image_model(spec: Timm, channels: int, classes: int) -> nn.Module:
    """Returns the model of this name, with weights of the seed, for images (B, channels, H, W).

    Raises:
        RunFailed: timm is not installed.
        DataFault: it has no such model, or not for such images.
    """
    timm = import_library("timm")
    try:
        built = timm.create_model(spec.name, pretrained=False, num_classes=classes, in_chans=channels)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise DataFault(
            f"timm {timm.__version__} can't make a model {spec.name!r} of {channels} channels and {classes} classes: "
            f"{(str(error).splitlines() or [''])[0][:200]}",
            "choose a name of timm.list_models()",
        ) from error
    if not isinstance(built, nn.Module):
        raise DataFault(f"timm makes no module of {spec.name!r}", "choose a name of timm.list_models()")
    return built


@final
class SequenceClassifier(nn.Module):
    """Tokens (B, L), whole numbers as float32, to logits (B, classes). What is no token is read as the nearest one, a
    record that is not finite has outputs of NaN, and the first place counts even where it is padding."""

    def __init__(self, network: Any, config: Config) -> None:
        super().__init__()
        self.network = network
        self.config = config
        self._tokens = int(network.config.vocab_size)
        self._padding = int(network.config.pad_token_id or 0)

    def forward(self, features: Tensor) -> Tensor:
        tokens_BL = to_tokens(features, self._tokens)
        places_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
        counts_BL = (tokens_BL != self._padding) | (places_L == 0)
        # As it is added to the scores: the library then makes no mask of its own, which might look at all records.
        mask_B1LL = torch.where(counts_BL, 0.0, torch.finfo(torch.float32).min)[:, None, None, :]
        mask_B1LL = mask_B1LL.expand(-1, 1, len(places_L), -1)
        return mark_non_finite(self.network(input_ids=tokens_BL, attention_mask=mask_B1LL).logits, features)

    @property
    def prefix(self) -> str:
        """Prefix of the names that checkpoints of every task share."""
        return f"network.{self.network.base_model_prefix}."

    @property
    def head(self) -> frozenset[str]:
        """The names of the parameters behind the encoder, which are of a task."""
        names = (name for name, _ in self.named_parameters())
        return frozenset(n for n in names if not n.startswith(self.prefix) or ".pooler." in n)


def token_model(config: Config, length: int, classes: int) -> SequenceClassifier:
    """Returns the classifier of a configuration that passed `checked`, with weights of the seed.

    Raises:
        RunFailed: transformers is not installed.
        DataFault: a configuration that the library refuses, or one of fewer places than a record has.
    """
    library = import_library("transformers")
    numbers = {name: value for name, value in config.items() if name != "model_type"}
    try:
        full = library.AutoConfig.for_model(config["model_type"], **numbers, num_labels=classes)
        network = library.AutoModelForSequenceClassification.from_config(
            full, trust_remote_code=False, attn_implementation="eager"
        )
    except (RuntimeError, TypeError, ValueError, ZeroDivisionError, KeyError, AttributeError) as error:
        raise DataFault(
            f"transformers {library.__version__} can't make a model of this configuration: "
            f"{(str(error).splitlines() or [''])[0][:200]}",
            "take config.json from the folder of the model, unchanged",
        ) from error
    reserved = int(full.pad_token_id or 0) + 1 if "roberta" in str(config["model_type"]) else 0
    if length > full.max_position_embeddings - reserved:
        raise DataFault(
            f"records have {length} tokens, the model has {full.max_position_embeddings - reserved} places",
            "cut records to that many tokens",
        )
    return SequenceClassifier(network, config)


def folder_of(spec: Transformers | CausalLm, folder: Path) -> Path:
    """Returns the folder of configuration and weights: relative to `folder`, or fetched at the pinned revision.

    Raises:
        RunFailed: huggingface_hub is not installed.
        DataFault: the hub can't be reached, or has no such revision.
    """
    if spec.hub is None:
        return folder / str(spec.init)
    library = import_library("huggingface_hub")
    files = ["config.json", WEIGHTS]
    if isinstance(spec, CausalLm):  # large ones come in parts
        files = ["config.json", "model*.safetensors", f"{WEIGHTS}.index.json"]
    try:
        result = library.snapshot_download(
            spec.hub.name,
            revision=spec.hub.revision,
            allow_patterns=files,
        )
    except (OSError, ValueError, library.errors.HfHubHTTPError) as error:
        raise DataFault(
            f"{spec.hub.name} at {spec.hub.revision} can't be fetched: {(str(error).splitlines() or [''])[0][:200]}",
            "fetch it elsewhere, and name its folder in model.init",
        ) from error
    return Path(result)


def config_of(folder: Path, check: Callable[[Mapping[str, Any]], Config] = check_config) -> Config:
    """Returns the numbers of `config.json` that are used, as `check` has them; those of `model.json` where the folder
    is a release that has no other.

    Raises:
        DataFault: there is neither, or not one of a known family.
    """
    file, released = folder / "config.json", folder / "model.json"
    try:
        if released.is_file() and not file.exists():
            content = json.loads(released.read_text("utf-8"))["config"]
        else:
            content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataFault(f"{file}: can't be read", "name a folder with config.json and model.safetensors") from error
    if not isinstance(content, Mapping):
        raise DataFault(f"{file}: holds no configuration", "name a folder with config.json and model.safetensors")
    return check(content)


def import_library(name: str) -> Any:
    with importing_libraries("this model"):
        return import_module(name)
