"""The part of a decoder's `transformers` configuration that is used: numbers and a few words of known families.

The file is untrusted. It can name code, kernels to download and other files, and it can ask for another model than the
library's: every entry is either used, known to be without effect, or refused. An entry that is in
none of these tables may be read by code that is not the library's, and a model that ignores it is another one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dprecipe.faults import DataFault
from dprecipe.models.decoder_families import FAMILIES, Family, find_family
from dprecipe.models.hub_config import MAX_SIZE, Config

MAX_LAYERS = 1000
"""Blocks of a decoder: of a file that claims millions, building them would take for ever."""
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
ROPE = {"factor": "rope_factor", "low_freq_factor": "rope_low", "high_freq_factor": "rope_high"}
"""Numbers of scaled rotary positions, by their names here."""
ROPE_PLACES = "original_max_position_embeddings"
ROPE_SHARE = "partial_rotary_factor"
ROPE_KINDS: Mapping[str, tuple[str, ...]] = {"default": (), "linear": ("factor",), "llama3": (*ROPE, ROPE_PLACES)}
"""Kinds of rotary positions, with the numbers of each."""
ROPE_READ = frozenset(
    {"rope_parameters", "rope_scaling", "rope_theta", "rope_type", *ROPE.values(), f"rope_{ROPE_PLACES}"}
)
TAKE = "take config.json unchanged from its model"
WINDOW_READ = frozenset({"sliding_window", "use_sliding_window"})
WINDOW_SWITCH_READ = frozenset({"max_window_layers", "layer_types"})


def check_decoder_config(content: Mapping[str, Any]) -> Config:
    """Returns the part that is used, flat and in a fixed order; a result comes back as it is. Dropout is left out: the
    noise of private training is enough, and a draw that records share would couple them.

    Raises:
        DataFault: another family, code, quantised weights, a value out of its range, or an entry that could change what
            the model computes and that the family has no place for.
    """
    for name, reason in REFUSED.items():
        if content.get(name) is not None:
            raise DataFault(f"the configuration has {name}", reason)
    kind = content.get("model_type")
    family = find_family(kind)
    content = _rename(content, family)
    check_keys(content, _list_read(family), family.fixed, str(kind))

    result: dict[str, str | int | float | bool] = {"model_type": str(kind)}
    for name in SIZES:
        result[name] = _size(name, content.get(name))
    if int(result["num_hidden_layers"]) > MAX_LAYERS:
        raise _strange("num_hidden_layers", result["num_hidden_layers"])
    width, heads = int(result["hidden_size"]), int(result["num_attention_heads"])
    inner = content.get("intermediate_size")
    result["intermediate_size"] = _size("intermediate_size", 4 * width if kind == "gpt2" and inner is None else inner)
    activation = content.get("hidden_act") or family.activation
    if activation not in ACTIVATIONS:
        raise _strange("hidden_act", activation)
    # Checkpoints of Gemma say "gelu" and were trained with its approximation, which is what the library takes, too.
    result["hidden_act"] = "gelu_pytorch_tanh" if kind == "gemma" and activation == "gelu" else activation
    eps = content.get("norm_eps")
    result["norm_eps"] = _positive("norm_eps", family.eps if eps is None else eps)
    for name, usual in (("tie_word_embeddings", family.tied), *family.flags.items()):
        flag = content.get(name)
        flag = usual if flag is None else flag
        if not isinstance(flag, bool):
            raise _strange(name, flag)
        result[name] = flag
    if not family.has_head_dim and width % heads:
        raise _strange("num_attention_heads", heads)
    if family.is_grouped:
        groups = content.get("num_key_value_heads", family.groups)
        result["num_key_value_heads"] = _size("num_key_value_heads", heads if groups is None else groups)
        if heads % int(result["num_key_value_heads"]):
            raise _strange("num_key_value_heads", groups)
    if family.has_head_dim:
        head = content.get("head_dim")
        usual_head = family.head_dim or width // heads
        result["head_dim"] = _size("head_dim", usual_head if head is None else head)
    if family.is_rotary:
        result |= _rope(content, family, str(kind), int(result.get("head_dim", width // heads)))
    if family.has_window:
        result |= _window(content, family, int(result["num_hidden_layers"]))
    return result


def _rename(content: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Returns the entries by their names here: the library takes both."""
    result: dict[str, Any] = {}
    own_names = {theirs: own for own, theirs in family.names.items()}
    for name, value in content.items():
        own = own_names.get(name, name)
        if own in result and result[own] != value:
            raise _double(own, family.names.get(own, own))
        result[own] = value
    return result


def _list_read(family: Family) -> frozenset[str]:
    """Returns the names, as they are here, of what is read of a family's configuration."""
    names = {"model_type", *SIZES, "intermediate_size", "hidden_act", "norm_eps", "tie_word_embeddings", *family.flags}
    if family.is_grouped:
        names.add("num_key_value_heads")
    if family.has_head_dim:
        names.add("head_dim")
    if family.is_rotary:
        names |= ROPE_READ
    if family.rotary_share is not None:
        names.add(ROPE_SHARE)
    if family.has_window:
        names |= WINDOW_READ
    if family.window_switch:
        names |= WINDOW_SWITCH_READ
    return frozenset(names)


def _window(content: Mapping[str, Any], family: Family, layers: int) -> dict[str, int | bool]:
    """Reads how many places back attention looks, and from which layer on; empty if it looks to the first place."""
    window, switch = content.get("sliding_window", family.window), content.get("use_sliding_window")
    if switch not in (None, True, False):
        raise _strange("use_sliding_window", switch)
    is_on = window is not None and switch is not False and not (switch is None and family.window_switch)
    first = content.get("max_window_layers", 28)
    if family.window_switch and (isinstance(first, bool) or not isinstance(first, int) or not 0 <= first <= MAX_SIZE):
        raise _strange("max_window_layers", first)
    kinds = ["sliding_attention" if is_on and place >= first else "full_attention" for place in range(layers)]
    if content.get("layer_types") not in (None, kinds):
        raise refuse_key("layer_types", content["layer_types"], str(content["model_type"]))
    if not is_on:
        return {"use_sliding_window": False}
    result: dict[str, int | bool] = {"use_sliding_window": True, "sliding_window": _size("sliding_window", window)}
    return {**result, "max_window_layers": first} if family.window_switch else result


def _rope(content: Mapping[str, Any], family: Family, kind: str, head: int) -> dict[str, str | int | float | bool]:
    """Returns rotary positions of heads of this width: the base, the share that is rotated, and the numbers of a
    scaling.
    """
    blocks = [content[name] for name in ("rope_scaling", "rope_parameters") if content.get(name)]
    if blocks[1:] not in ([], blocks[:1]):
        raise _double("rope_scaling", "rope_parameters")
    named = blocks[0] if blocks else {}
    if not isinstance(named, Mapping):
        raise _strange("rope_parameters", named)
    form = named.get("rope_type", named.get("type", content.get("rope_type", "default")))
    if not isinstance(form, str) or form not in ROPE_KINDS:
        raise _strange("rope_parameters.rope_type", form)
    numbers = ROPE_KINDS[form]
    unknown = named.keys() - {"rope_type", "type", "rope_theta", ROPE_SHARE, *numbers}
    if unknown:
        raise refuse_key(f"rope_parameters.{min(map(str, unknown))}", named[min(unknown, key=str)], kind)
    theta = named.get("rope_theta", content.get("rope_theta"))
    result: dict[str, str | int | float | bool] = {
        "rope_theta": _positive("rope_theta", 10_000.0 if theta is None else theta)
    }
    share = named.get(ROPE_SHARE, content.get(ROPE_SHARE))
    share = _positive(ROPE_SHARE, (family.rotary_share or 1.0) if share is None else share)
    if share > 1 or (family.rotary_share is None and share != 1):
        raise _strange(ROPE_SHARE, share)
    if int(head * share) % 2 or int(head * share) == 0:
        raise _strange("head_dim" if share == 1 else ROPE_SHARE, head if share == 1 else share)
    if family.rotary_share is not None:
        result[ROPE_SHARE] = share
    if form == "default":
        return result
    result["rope_type"] = form
    for name in numbers:
        own = ROPE.get(name, f"rope_{name}")
        value = named.get(name, content.get(own))
        result[own] = _size(name, value) if name == ROPE_PLACES else _positive(name, value)
    return result


def library_config(config: Config) -> dict[str, Any]:
    """Returns the same as the library's own: what `config.json` of a checkpoint says, and arguments of its
    configuration.
    """
    kind = str(config["model_type"])
    family = FAMILIES[kind]
    named: dict[str, Any] = {
        family.names.get(own, own): value for own, value in config.items() if own[:5] != "rope_" and own != ROPE_SHARE
    }
    named |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    named |= dict.fromkeys(family.dropouts, 0.0)
    named["architectures"] = [family.architecture]
    if family.has_window:
        named.setdefault("sliding_window", None)
    if not family.window_switch:
        named.pop("use_sliding_window", None)
    if not family.is_rotary:
        return named
    form = str(config.get("rope_type", "default"))
    rope: dict[str, Any] = {"rope_type": form, "rope_theta": config["rope_theta"]}
    rope |= {name: config[ROPE.get(name, f"rope_{name}")] for name in ROPE_KINDS[form]}
    if ROPE_SHARE in config:
        rope[ROPE_SHARE] = config[ROPE_SHARE]
    return named | {"rope_parameters": rope}


def _size(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_SIZE:
        raise _strange(name, value)
    return value


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise _strange(name, value)
    return float(value)


def _double(name: str, other: str) -> DataFault:
    return DataFault(f"the configuration has {name} and {other}, with two values", TAKE)


def _strange(name: str, value: object) -> DataFault:
    return DataFault(f"the configuration's {name} is {str(value)[:40]!r}", TAKE)


REFUSED: Mapping[str, str] = {
    "auto_map": "it names code, which is never run: take a checkpoint of a family that the library itself has",
    "quantization_config": "its weights are quantised, and have no gradients: take the checkpoint before quantisation",
    "compression_config": "its weights are compressed, and have no gradients: take the checkpoint before compression",
}

FOR_PROGRAMS = frozenset(
    {
        *("architectures", "dtype", "torch_dtype", "transformers_version", "_name_or_path", "name_or_path"),
        *("_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "_commit_hash"),
        *("gradient_checkpointing", "initializer_range", "output_attentions", "output_hidden_states", "output_past"),
        *("return_dict", "torchscript", "use_bfloat16", "use_cache", "cache_implementation", "chunk_size_feed_forward"),
        *("reorder_and_upcast_attn", "tf_legacy_loss", "tokenizer_class", "is_decoder", "transformers.js_config"),
        *(
            "unsloth_fixed",
            "unsloth_version",
            "is_llama_config",
            "n_ctx",
            "original_max_position_embeddings",
            "base_model_tp_plan",
            "base_model_pp_plan",
        ),
    }
)
"""Keys of how a program holds the model, and of its origin: they do not change the function."""
FOR_TOKENS = frozenset(
    {
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id", "prefix"),
        *("unk_token_id", "cls_token_id", "mask_token_id"),
    }
)
"""Special tokens: the recipe and the tokeniser say them."""
FOR_GENERATION = frozenset(
    {
        *("max_length", "min_length", "max_new_tokens", "do_sample", "early_stopping", "num_beams", "num_beam_groups"),
        *("diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences"),
        *("output_scores", "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id"),
        *("remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"),
        *("penalty_alpha", "task_specific_params"),
    }
)
FOR_OTHER_HEADS = frozenset(
    {
        *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
        *("id2label", "label2id", "num_labels", "_num_labels", "problem_type", "finetuning_task"),
        *("classifier_dropout", "classifier_dropout_prob"),
    }
)
"""Keys of models that classify."""
DROPOUTS = frozenset(
    {
        *("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"),
        *("attention_probs_dropout_prob", "hidden_dropout_prob"),
    }
)
"""Taken as 0: the noise of private training is enough, and a draw that records share would couple them."""
WITHOUT_EFFECT = FOR_PROGRAMS | FOR_TOKENS | FOR_GENERATION | FOR_OTHER_HEADS | DROPOUTS

FIXED: Mapping[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "tie_encoder_decoder": (False,),
    "cross_attention_hidden_size": (),
    "use_bidirectional_attention": (False,),
    "partial_rotary_factor": (1.0,),
    "pretraining_tp": (1,),
    "pruned_heads": ({},),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
}
"""Entries that some program reads, with the values that make no other model of it."""

REASONS: Mapping[str, str] = {
    "attn_logit_softcapping": "it caps what attention compares",
    "final_logit_softcapping": "it caps the logits",
    "query_pre_attn_scalar": "it scales what attention compares",
    "attention_multiplier": "it scales what attention compares",
    "embedding_multiplier": "it scales embeddings",
    "residual_multiplier": "it scales what each layer adds",
    "logits_scaling": "it scales the logits",
    "logit_scale": "it scales the logits",
    "clip_qkv": "it clips what attention reads",
    "use_qk_norm": "it normalises what attention compares",
    "qk_layernorm": "it normalises what attention compares",
    "num_experts": "its layers are of experts",
    "num_local_experts": "its layers are of experts",
    "per_layer_config": "its layers are of several sizes",
    "layer_types": "its layers are of several kinds",
    "sliding_window": "its attention looks back some places only",
}
"""Effects of entries that other families have and this family cannot represent."""


def check_keys(
    content: Mapping[str, Any], read: frozenset[str], fixed: Mapping[str, tuple[object, ...]], kind: str
) -> None:
    """Checks that nothing of a configuration is dropped that could change what the model computes. `read`: the names of
    what is read elsewhere; `fixed`: the family's own entries that have one value. An entry that is null says nothing.

    Raises:
        DataFault: an entry is not known to be without effect.
    """
    known = {**FIXED, **fixed}
    for name, value in content.items():
        if value is None or name in read or name in WITHOUT_EFFECT:
            continue
        if not any(
            value == usual and isinstance(value, bool) == isinstance(usual, bool) for usual in known.get(name, ())
        ):
            raise refuse_key(name, value, kind)


def refuse_key(name: str, value: object, kind: str) -> DataFault:
    """Returns the fault of an entry that could change what the model computes."""
    reason = REASONS.get(name, "it may change what the model computes")
    return DataFault(
        f"the configuration's {str(name)[:60]!r} is {str(value)[:40]!r}, which a model of type {kind} has no place "
        f"for: {reason}",
        "take the checkpoint of a supported family; or remove the entry from config.json if the outputs of "
        "transformers' own model are the same without it",
    )
