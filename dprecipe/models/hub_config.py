"""The part of a `transformers` configuration that is used: numbers and a few words of known families. No torch.

A configuration can name code, kernels to download and other files; all of that is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dprecipe.faults import DataFault

Config = Mapping[str, str | int | float | bool]

FAMILIES = ("bert", "distilbert", "electra", "roberta", "xlm-roberta")
"""Encoders that see each record by itself and keep no statistics."""
SIZES = frozenset(
    {
        *("vocab_size", "type_vocab_size", "max_position_embeddings", "hidden_size", "embedding_size"),
        *("num_hidden_layers", "num_attention_heads", "intermediate_size", "dim", "hidden_dim", "n_layers", "n_heads"),
    }
)
WORDS = {
    "hidden_act": ("gelu", "gelu_new", "relu", "silu"),
    "activation": ("gelu", "relu"),
    "summary_activation": ("gelu",),
    "summary_type": ("first",),
}
MAX_SIZE = 1 << 24


def check_config(content: Mapping[str, Any]) -> Config:
    """Returns the part that is used, in a fixed order. Dropout is left out: the noise of private training is enough.

    Raises:
        DataFault: another family, or a value out of its range.
    """
    family = content.get("model_type")
    if family not in FAMILIES:
        raise DataFault(
            f"transformers of type {str(family)[:40]!r} are not supported", f"choose one of {', '.join(FAMILIES)}"
        )
    result: dict[str, str | int | float | bool] = {"model_type": family}
    for name in sorted(content):
        value = content[name]
        if name in SIZES:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_SIZE:
                raise _strange(name, value)
            result[name] = value
        elif name == "pad_token_id" and value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SIZE:
                raise _strange(name, value)
            result[name] = value
        elif name == "layer_norm_eps":
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise _strange(name, value)
            result[name] = float(value)
        elif name == "sinusoidal_pos_embds":
            if not isinstance(value, bool):
                raise _strange(name, value)
            result[name] = value
        elif name in WORDS:
            if value not in WORDS[name]:
                raise _strange(name, value)
            result[name] = value
    dropouts = ["hidden_dropout_prob", "attention_probs_dropout_prob"]
    if family == "distilbert":
        dropouts = ["dropout", "attention_dropout", "seq_classif_dropout"]
    return {**result, **dict.fromkeys(dropouts, 0.0)}


def _strange(name: str, value: object) -> DataFault:
    return DataFault(f"the configuration's {name} is {str(value)[:40]!r}", "take config.json unchanged from its model")
