"""The part of a decoder's `transformers` configuration that is used: numbers and a few words of known families.

The file is untrusted. It can name code, kernels to download and other files: a configuration that needs any of them is
refused, all else that is no number of the model is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from dprecipe.faults import DataFault
from dprecipe.models.hub_config import MAX_SIZE, Config

MAX_LAYERS = 1000
"""Blocks of a decoder: of a file that claims millions, building them would take for ever."""
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
ROPE = {"factor": "rope_factor", "low_freq_factor": "rope_low", "high_freq_factor": "rope_high"}
"""Numbers of scaled rotary positions, by their names here."""
ROPE_PLACES = "original_max_position_embeddings"


@final
@dataclass(frozen=True, slots=True)
class Family:
    """`architecture`: the class of the library. `backbone`: the attribute that holds all but the head. `tied`: what
    holds where the configuration does not say whether the head is the embedding."""

    architecture: str
    backbone: str
    tied: bool = False
    flags: tuple[str, ...] = ()
    offset_norms: bool = False
    """Norms scale by 1 + weight, and embeddings by the root of the width."""
    window: int | None = None
    """The attention window where the configuration does not say; None: there is none."""
    window_switch: bool = False
    """A window holds only where `use_sliding_window` says so."""


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        "GPT2LMHeadModel", "transformer", tied=True, flags=("scale_attn_weights", "scale_attn_by_inverse_layer_idx")
    ),
    "llama": Family("LlamaForCausalLM", "model", flags=("attention_bias", "mlp_bias")),
    "qwen2": Family("Qwen2ForCausalLM", "model", window=4096, window_switch=True),
    "qwen3": Family("Qwen3ForCausalLM", "model", flags=("attention_bias",), window=4096, window_switch=True),
    "mistral": Family("MistralForCausalLM", "model", window=4096),
    "gemma": Family("GemmaForCausalLM", "model", tied=True, flags=("attention_bias",), offset_norms=True),
}
"""Decoders that see each record by itself and keep no statistics."""

REFUSED = {
    "auto_map": "it names code, which is never run: take a checkpoint of a family that the library itself has",
    "quantization_config": "its weights are quantised, and have no gradients: take the checkpoint before quantisation",
    "compression_config": "its weights are compressed, and have no gradients: take the checkpoint before compression",
}
GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "norm_eps": "layer_norm_epsilon",
}
"""Names of the configuration here, and in GPT-2's files."""
UNLIKE = {
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "use_bidirectional_attention": False,
    "use_parallel_residual": False,
    "partial_rotary_factor": 1.0,
    "pretraining_tp": 1,
}
"""What would make another model of it, with the value that does not."""


def check_decoder_config(content: Mapping[str, Any]) -> Config:
    """The part that is used, flat and in a fixed order; a result comes back as it is. Dropout is left out: the noise of
    private training is enough, and a draw that records share would couple them.

    Raises:
        DataFault: another family, code, quantised weights, or a value out of its range.
    """
    for name, reason in REFUSED.items():
        if content.get(name) is not None:
            raise DataFault(f"the configuration has {name}", reason)
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise DataFault(
            f"decoders of type {str(kind)[:40]!r} are not supported", f"choose one of {', '.join(FAMILIES)}"
        )
    for name, usual in UNLIKE.items():
        if content.get(name) not in (None, usual):
            raise _strange(name, content[name])
    family, is_gpt2 = FAMILIES[kind], kind == "gpt2"
    named = {theirs: own for own, theirs in _names(kind).items()}
    content = {named.get(name, name): value for name, value in content.items()}

    result: dict[str, str | int | float | bool] = {"model_type": kind}
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
        result[name] = _size(name, content.get(name))
    if int(result["num_hidden_layers"]) > MAX_LAYERS:
        raise _strange("num_hidden_layers", result["num_hidden_layers"])
    width, heads = int(result["hidden_size"]), int(result["num_attention_heads"])
    inner = content.get("intermediate_size")
    result["intermediate_size"] = _size("intermediate_size", 4 * width if is_gpt2 and inner is None else inner)
    activation = content.get("hidden_act") or (
        "gelu_new" if is_gpt2 else "gelu_pytorch_tanh" if kind == "gemma" else "silu"
    )
    if activation not in ACTIVATIONS:
        raise _strange("hidden_act", activation)
    # Checkpoints of Gemma say "gelu" and were trained with its approximation, which is what the library takes, too.
    result["hidden_act"] = "gelu_pytorch_tanh" if kind == "gemma" and activation == "gelu" else activation
    eps = content.get("norm_eps")
    result["norm_eps"] = _positive("norm_eps", (1e-5 if is_gpt2 else 1e-6) if eps is None else eps)
    for name, usual in (("tie_word_embeddings", family.tied), *((name, False) for name in family.flags)):
        flag = content.get(name)
        flag = (usual or name == "scale_attn_weights") if flag is None else flag
        if not isinstance(flag, bool):
            raise _strange(name, flag)
        result[name] = flag
    if is_gpt2:
        if width % heads:
            raise _strange("num_attention_heads", heads)
        return result
    groups = content.get("num_key_value_heads")
    result["num_key_value_heads"] = _size("num_key_value_heads", heads if groups is None else groups)
    if heads % int(result["num_key_value_heads"]):
        raise _strange("num_key_value_heads", groups)
    head = content.get("head_dim")
    usual_head = {"qwen3": 128, "gemma": 256}.get(kind, width // heads)
    result["head_dim"] = _size("head_dim", usual_head if head is None else head)
    if int(result["head_dim"]) % 2:
        raise _strange("head_dim", result["head_dim"])
    return {**result, **_window(content, family), **_rope(content)}


def _names(kind: str) -> Mapping[str, str]:
    """Names of the configuration here, and in the family's files."""
    return GPT2_NAMES if kind == "gpt2" else {"norm_eps": "rms_norm_eps"}


def _window(content: Mapping[str, Any], family: Family) -> dict[str, int | bool]:
    """How many places back attention looks, in layers from which on; nothing if it looks to the first place."""
    if family.window is None:
        return {}
    window, switch = content.get("sliding_window", family.window), content.get("use_sliding_window")
    if window is None or (switch is None and family.window_switch) or switch is False:
        return {"use_sliding_window": False}
    if switch not in (None, True):
        raise _strange("use_sliding_window", switch)
    result: dict[str, int | bool] = {"use_sliding_window": True, "sliding_window": _size("sliding_window", window)}
    if not family.window_switch:
        return result
    first = content.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int) or not 0 <= first <= MAX_SIZE:
        raise _strange("max_window_layers", first)
    return {**result, "max_window_layers": first}


def _rope(content: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Rotary positions: the base, and the numbers of Llama 3's scaling."""
    named = content.get("rope_parameters") or content.get("rope_scaling") or {}
    if not isinstance(named, Mapping):
        raise _strange("rope_parameters", named)
    kind = named.get("rope_type", named.get("type", content.get("rope_type", "default")))
    theta = named.get("rope_theta", content.get("rope_theta"))
    base = {"rope_theta": _positive("rope_theta", 10_000.0 if theta is None else theta)}
    if kind == "default":
        return {**base}
    if kind not in ("linear", "llama3"):
        raise _strange("rope_parameters.rope_type", kind)
    names = ROPE if kind == "llama3" else {"factor": "rope_factor"}
    numbers = {own: _positive(name, named.get(name, content.get(own))) for name, own in names.items()}
    result: dict[str, str | int | float | bool] = {**base, "rope_type": kind, **numbers}
    if kind == "llama3":
        result[f"rope_{ROPE_PLACES}"] = _size(ROPE_PLACES, named.get(ROPE_PLACES, content.get(f"rope_{ROPE_PLACES}")))
    return result


def library_config(config: Config) -> dict[str, Any]:
    """The same as the library's own: what `config.json` of a checkpoint says, and arguments of its configuration."""
    kind = str(config["model_type"])
    names = _names(kind)
    named: dict[str, Any] = {names.get(own, own): value for own, value in config.items() if own[:5] != "rope_"}
    named |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    named["architectures"] = [FAMILIES[kind].architecture]
    if kind == "gpt2":
        return named | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    rope: dict[str, Any] = {"rope_type": config.get("rope_type", "default"), "rope_theta": config["rope_theta"]}
    rope |= {name: config[own] for name, own in ROPE.items() if own in config}
    if f"rope_{ROPE_PLACES}" in config:
        rope[ROPE_PLACES] = config[f"rope_{ROPE_PLACES}"]
    if FAMILIES[kind].window is not None:
        named.setdefault("sliding_window", None)
    if not FAMILIES[kind].window_switch:
        named.pop("use_sliding_window", None)
    return named | {"attention_dropout": 0.0, "rope_parameters": rope}


def _size(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_SIZE:
        raise _strange(name, value)
    return value


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise _strange(name, value)
    return float(value)


def _strange(name: str, value: object) -> DataFault:
    return DataFault(f"the configuration's {name} is {str(value)[:40]!r}", "take config.json unchanged from its model")
