"""Tiny decoders of eight families, from configurations as their checkpoints have them."""

from __future__ import annotations

from typing import Any

VOCABULARY, LENGTH = 97, 12
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": VOCABULARY,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 32,
        "attn_pdrop": 0.1,
    },
    "llama": {
        **_SIZES,
        "model_type": "llama",
        "rope_theta": 500_000.0,
        "rope_scaling": {"rope_type": "llama3", **_LLAMA3},
    },
    "qwen2": {**_SIZES, "model_type": "qwen2", "tie_word_embeddings": True, "sliding_window": 8},
    "qwen3": {**_SIZES, "model_type": "qwen3", "head_dim": 8, "rope_parameters": {"rope_theta": 1e6}},
    "mistral": {**_SIZES, "model_type": "mistral", "sliding_window": None},
    "phi3": {**_SIZES, "model_type": "phi3", "original_max_position_embeddings": 32, "resid_pdrop": 0.1},
    "gpt_neox": {
        **{name: value for name, value in _SIZES.items() if name != "num_key_value_heads"},
        "model_type": "gpt_neox",
        "rotary_pct": 0.5,
        "rotary_emb_base": 10000,
        "hidden_dropout": 0.1,
        "hidden_act": "gelu",
    },
    "gemma": {**_SIZES, "model_type": "gemma", "head_dim": 8, "num_key_value_heads": 1, "hidden_act": "gelu"},
}
