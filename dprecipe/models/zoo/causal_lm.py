"""Decoders of the library `transformers`, as the engine can differentiate them by record.

The backbone is the library's own, built from a checked configuration (`models.decoder_config`), under the library's own
names: a state of the module is a checkpoint of the library. Layers that the engine has no terms for are replaced by
equal ones of `zoo.layers`. The library makes no mask: each place sees its record up to itself, and no other record.

Axes: B records, L places of a record, W width, V tokens of the vocabulary.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from dprecipe.faults import DataFault
from dprecipe.models.decoder_config import library_config
from dprecipe.models.decoder_families import FAMILIES
from dprecipe.models.form import UNLEARNED
from dprecipe.models.hub_config import Config
from dprecipe.models.zoo.hub import import_library
from dprecipe.models.zoo.layers import NextTokens, OffsetRMSNorm, TransposedLinear, WideRMSNorm

HEADS = frozenset(f"{family.head}.weight" for family in FAMILIES.values())
"""The names that checkpoints have for the head."""


@final
class CausalLanguageModel(nn.Module):
    """Tokens and labels (B, 2, L), whole numbers as float32, to log-likelihoods (B, L - 1) of the learned tokens at
    places 1 … L - 1, each given those before it; 0 at places that are ignored.

    Edge cases: what is no token is read as the nearest one, a negative label is ignored, and a record that is not
    finite has outputs of NaN. Padding stands behind the end, so that no place that is learned sees it. A record of
    several times `length` places has several sequences, one behind the other: each begins at position 0, sees nothing
    of the others, and its first label is ignored.

    A state has the names of the library's checkpoints; a head that is the embedding is not in it twice.
    """

    def __init__(self, backbone: Any, config: Config, length: int) -> None:
        super().__init__()
        self.length = length
        family = FAMILIES[str(config["model_type"])]
        self.config = config
        self.backbone_name = family.backbone
        self.add_module(family.backbone, backbone)
        embedding = self.embedding
        table = cast(nn.Parameter, embedding.weight)
        self.add_module(
            family.head, NextTokens(table if self.is_tied else nn.Parameter(torch.empty_like(table).normal_(std=0.02)))
        )
        self.head_name = f"{family.head}.weight"
        self._scale = math.sqrt(embedding.embedding_dim) if family.offset_norms else 1.0
        if self.is_tied:
            self.register_state_dict_post_hook(_drop_head)  # type: ignore[no-untyped-call]
            self.register_load_state_dict_pre_hook(_add_head)  # type: ignore[no-untyped-call]
            self.register_load_state_dict_post_hook(_tie_head)  # type: ignore[no-untyped-call]

    @property
    def embedding(self) -> nn.Embedding:
        """The table of tokens."""
        return cast(nn.Embedding, getattr(self, self.backbone_name).get_input_embeddings())

    @property
    def last_layer(self) -> NextTokens:
        """The head."""
        return cast(NextTokens, self.get_submodule(self.head_name.removesuffix(".weight")))

    @property
    def is_tied(self) -> bool:
        """True if the head is the embedding."""
        return bool(self.config["tie_word_embeddings"])

    @property
    def head(self) -> frozenset[str]:
        """The name of the parameter of the last layer; of a tied one, the embedding's."""
        return frozenset(name for name, parameter in self.named_parameters() if parameter is self.last_layer.weight)

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.embedding.num_embeddings

    @property
    def places(self) -> int:
        """Number of places of a record that each place can see."""
        return count_places(self.config)

    @property
    def blocks(self) -> list[nn.Module]:
        """The decoder's blocks, in order."""
        children = getattr(self, self.backbone_name).children()
        return list(next(child for child in children if isinstance(child, nn.ModuleList)))

    def forward(self, features: Tensor) -> Tensor:
        numbers_B2L = features.nan_to_num(0.0)
        tokens_BL = numbers_B2L[:, 0].clamp(0, self.embedding.num_embeddings - 1).long()
        labels_BL = numbers_B2L[:, 1].clamp(UNLEARNED, self.embedding.num_embeddings - 1).long()
        if labels_BL.shape[1] > self.length:
            labels_BL = labels_BL.index_fill(
                1, torch.arange(0, labels_BL.shape[1], self.length, device=labels_BL.device), -1
            )
        likelihoods = self.last_layer(self.hidden(tokens_BL), labels_BL)
        # No table shows what was looked up in it, so that a record without numbers is marked: as a factor, which its
        # gradient has, too.
        marked: Tensor = likelihoods * (1.0 + (0.0 * features).sum((1, 2)))[:, None]
        return marked

    def hidden(self, tokens_BL: Tensor) -> Tensor:
        """Returns hidden states (B, L, W): of each place, from the tokens of its sequence up to it."""
        hidden: Tensor = self._read(tokens_BL, None, self.length).last_hidden_state
        return hidden

    def next_logits(self, tokens_BL: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        """Reads tokens behind those in `cache` (None: behind none); the logits (B, V) of the token that follows the
        last, and the cache with all that was read."""
        cache = import_library("transformers").DynamicCache() if cache is None else cache
        hidden_B1W = self._read(tokens_BL, cache).last_hidden_state[:, -1:]
        return self.last_layer.logits(hidden_B1W)[:, 0], cache

    def _read(self, tokens_BL: Tensor, cache: Any, length: int | None = None) -> Any:
        """Returns the backbone's output for sequences of `length` places.

        One mask and one row of positions serve all records."""
        before = 0 if cache is None else int(cache.get_seq_length())
        embedded_BLW = self.embedding(tokens_BL)
        columns = torch.arange(before + tokens_BL.shape[1], device=tokens_BL.device)
        rows, length = columns[before:, None], length or len(columns)
        hidden = (columns > rows) | (columns // length != rows // length)
        mask = torch.zeros(hidden.shape, device=tokens_BL.device, dtype=embedded_BLW.dtype)
        backbone = getattr(self, self.backbone_name)
        return backbone(
            inputs_embeds=embedded_BLW * self._scale if self._scale != 1.0 else embedded_BLW,
            attention_mask=mask.masked_fill(hidden, -torch.inf)[None, None],
            position_ids=columns[None, before:] % length,
            use_cache=cache is not None,
            **({} if cache is None else {_cache_argument(backbone): cache}),
        )


def _cache_argument(backbone: nn.Module) -> str:
    """Returns the name that the library's release gives the cache: `cache` since transformers 5.24."""
    return "cache" if "cache" in inspect.signature(backbone.forward).parameters else "past_key_values"


def causal_model(config: Config, length: int) -> CausalLanguageModel:
    """Returns the decoder of a configuration that passed `check_decoder_config`, with weights of the seed. `length`:
    places of a sequence.

    Raises:
        RunFailed: transformers is not installed.
        DataFault: a configuration that the library refuses, or fewer places than a record has.
    """
    check_places(config, length)
    library = import_library("transformers")
    arguments = library_config(config)
    try:
        full = library.AutoConfig.for_model(arguments.pop("model_type"), **arguments)
        backbone = library.AutoModel.from_config(full, trust_remote_code=False, attn_implementation="sdpa")
    except (RuntimeError, TypeError, ValueError, ZeroDivisionError, KeyError, AttributeError) as error:
        raise DataFault(
            f"transformers {library.__version__} can't make a decoder of this configuration: "
            f"{(str(error).splitlines() or [''])[0][:200]}",
            "take config.json from the folder of the model, unchanged",
        ) from error
    for name, layer in list(backbone.named_modules()):
        swapped = _swap_layer(layer, FAMILIES[str(config["model_type"])].offset_norms, float(config["norm_eps"]))
        if swapped is not None:
            parent, _, child = name.rpartition(".")
            setattr(backbone.get_submodule(parent), child, swapped)
    _place_buffers(backbone, full)
    return CausalLanguageModel(backbone, config, length)


def _place_buffers(backbone: Any, full: Any) -> None:
    """Places rotary frequencies, constants which no checkpoint holds: a network without memory has them all the
    same.
    """
    for name, layer in list(backbone.named_modules()):
        if any(buffer is not None and buffer.is_meta for buffer in layer._buffers.values()):
            parent, _, child = name.rpartition(".")
            with torch.device("cpu"):
                setattr(backbone.get_submodule(parent), child, type(layer)(config=full))


def count_places(config: Config) -> int:
    """Returns how many places of a record each place can see: positions, or the window of attention."""
    places = int(config["max_position_embeddings"])
    return min(places, int(config.get("sliding_window", places)))


def check_places(config: Config, length: int) -> None:
    """Checks that the model sees all of a record of `length` tokens.

    Raises:
        DataFault: it has fewer positions, or its attention looks back less far.
    """
    places, window = int(config["max_position_embeddings"]), int(config.get("sliding_window", length))
    if length > places:
        raise DataFault(
            f"records have {length} tokens, the model has {places} positions", f"set max_length to {places} or less"
        )
    if length > window:
        raise DataFault(
            f"records have {length} tokens, the model's attention looks back {window} (sliding_window)",
            f"set max_length to {window} or less",
        )


def _swap_layer(layer: nn.Module, offset: bool, eps: float) -> nn.Module | None:
    """Returns an equal layer of the same tensors that the engine has terms for, or that is faster; None where it may
    stay.
    """
    kind = type(layer).__name__
    if kind == "Conv1D":
        weight = cast(Tensor, layer.weight)
        return _take_over(TransposedLinear(*weight.shape), layer)
    if kind.endswith("RMSNorm"):
        width = len(cast(Tensor, layer.weight))
        return _take_over(OffsetRMSNorm(width, eps) if offset else WideRMSNorm(width, eps), layer)
    if isinstance(layer, nn.Embedding):  # of Gemma: scaled, which `hidden` does
        return _take_over(nn.Embedding(layer.num_embeddings, layer.embedding_dim), layer)
    if kind == "NewGELUActivation":  # eight operations on the widest values, of which this is one
        return nn.GELU(approximate="tanh")
    return None


def _take_over(new: nn.Module, old: nn.Module) -> nn.Module:
    for name, parameter in old.named_parameters(recurse=False):
        setattr(new, name, parameter)
    return new


def _drop_head(module: nn.Module, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    state.pop(f"{prefix}{cast(Any, module).head_name}", None)


def _add_head(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    name = next(n for n, p in module.named_parameters() if p is cast(Any, module).embedding.weight)
    if f"{prefix}{name}" in state:
        state[f"{prefix}{cast(Any, module).head_name}"] = state[f"{prefix}{name}"]


def _tie_head(module: nn.Module, _: Any) -> None:
    cast(Any, module).last_layer.weight = cast(Any, module).embedding.weight
