"""Families of decoders: how the library `transformers` calls their parts, and what holds where a file does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from dprecipe.faults import DataFault


@final
@dataclass(frozen=True, slots=True)
class Family:
    """Family of decoders: properties of the library's configuration and model.

    Numbers are the library's defaults where `config.json` states none."""

    architecture: str
    """The class of the library."""
    backbone: str
    """The attribute that holds all but the head."""
    head: str = "lm_head"
    """The layer of the head, as checkpoints name it."""
    tied: bool = False
    """True if the head is the embedding."""
    flags: Mapping[str, bool] = field(default_factory=dict)
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Entries of its own that are supported with these values alone."""
    names: Mapping[str, str] = field(default_factory=lambda: {"norm_eps": "rms_norm_eps"})
    """Names of the configuration here, and in the family's files."""
    dropouts: tuple[str, ...] = ("attention_dropout",)
    activation: str = "silu"
    eps: float = 1e-6
    is_grouped: bool = True
    """Several heads may share keys and values (`num_key_value_heads`)."""
    groups: int | None = None
    """Number of groups; None for as many as there are heads."""
    has_head_dim: bool = True
    """The width of a head may be another than the model's over the heads."""
    head_dim: int | None = None
    is_rotary: bool = True
    rotary_share: float | None = None
    """The share of a head that is rotated; None: all of it, whatever the file says is refused."""
    offset_norms: bool = False
    """Norms scale by 1 + weight, and embeddings by the root of the width."""
    has_window: bool = False
    """Attention may look back `sliding_window` places only."""
    window: int | None = None
    window_switch: bool = False
    """A window holds only where `use_sliding_window` says so, and from layer `max_window_layers` on."""


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        "GPT2LMHeadModel",
        "transformer",
        tied=True,
        flags={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
        names={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "intermediate_size": "n_inner",
            "hidden_act": "activation_function",
            "norm_eps": "layer_norm_epsilon",
        },
        dropouts=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
        activation="gelu_new",
        eps=1e-5,
        is_grouped=False,
        has_head_dim=False,
        is_rotary=False,
    ),
    "llama": Family("LlamaForCausalLM", "model", flags={"attention_bias": False, "mlp_bias": False}),
    "qwen2": Family("Qwen2ForCausalLM", "model", groups=32, has_window=True, window=4096, window_switch=True),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        "model",
        flags={"attention_bias": False},
        groups=32,
        head_dim=128,
        has_window=True,
        window=4096,
        window_switch=True,
    ),
    "mistral": Family("MistralForCausalLM", "model", groups=8, has_window=True, window=4096),
    "gemma": Family(
        "GemmaForCausalLM",
        "model",
        tied=True,
        flags={"attention_bias": False},
        fixed={"hidden_activation": ("gelu_pytorch_tanh",)},
        activation="gelu_pytorch_tanh",
        groups=16,
        head_dim=256,
        offset_norms=True,
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        "model",
        dropouts=("attention_dropout", "resid_pdrop", "embd_pdrop"),
        eps=1e-5,
        has_head_dim=False,
        rotary_share=1.0,
        has_window=True,
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        "gpt_neox",
        head="embed_out",
        flags={"attention_bias": True, "use_parallel_residual": True},
        names={"norm_eps": "layer_norm_eps", "rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
        dropouts=("attention_dropout", "hidden_dropout"),
        activation="gelu",
        eps=1e-5,
        is_grouped=False,
        has_head_dim=False,
        rotary_share=0.25,
    ),
}
"""Decoders that see each record by itself and keep no statistics."""

EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "phimoe", "gpt_oss")


def find_family(kind: object) -> Family:
    """Returns the family of a `model_type`.

    Raises:
        DataFault: it is none that is supported.
    """
    if isinstance(kind, str) and kind in FAMILIES:
        return FAMILIES[kind]
    shown, choice = repr(str(kind)[:40]), f"choose one of {', '.join(FAMILIES)}"
    if kind in EXPERTS:
        raise DataFault(
            f"decoders of type {shown} are not supported: their experts hold the weights of many layers in one tensor, "
            "whose gradients by record the engine does not have",
            choice,
        )
    raise DataFault(f"decoders of type {shown} are not supported", choice)
