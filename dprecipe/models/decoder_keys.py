"""The entries of a decoder's `config.json` that are not numbers of the model: which are without effect, and which
would make another model of it.

The list is one of what is known. An entry that is in none of these tables is refused: it may be read by code that is
not the library's, and a model that ignores it is another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dprecipe.faults import DataFault

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
