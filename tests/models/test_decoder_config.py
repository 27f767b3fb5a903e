"""What of a decoder's configuration is used, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dprecipe.faults import DataFault
from dprecipe.models.decoder_config import check_decoder_config, library_config
from tests.decoders import DECODERS


@pytest.mark.parametrize("family", DECODERS)
def test_a_checked_configuration_comes_back_as_it_is(family: str) -> None:
    config = check_decoder_config({**DECODERS[family], "architectures": ["X"], "torch_dtype": "bfloat16"})
    assert check_decoder_config(config) == config
    assert check_decoder_config(library_config(config)) == config
    assert all(isinstance(value, str | int | float | bool) for value in config.values())


def test_numbers_have_one_name_in_all_families() -> None:
    gpt2, llama = (check_decoder_config(DECODERS[family]) for family in ("gpt2", "llama"))
    shared = {"hidden_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 32, "vocab_size": 97}
    assert shared.items() <= gpt2.items()
    assert shared.items() <= llama.items()
    assert (gpt2["intermediate_size"], gpt2["tie_word_embeddings"], llama["tie_word_embeddings"]) == (64, True, False)
    assert (llama["rope_type"], llama["rope_factor"], llama["head_dim"]) == ("llama3", 8.0, 4)


def test_entries_of_real_checkpoints_that_change_nothing_are_dropped() -> None:
    gpt2 = {"n_ctx": 32, "summary_type": "cls_index", "task_specific_params": {"text-generation": {"max_length": 50}}}
    llama = {
        "pretraining_tp": 1,
        "use_cache": True,
        "rope_interleaved": False,
        "eos_token_id": [1, 2],
        "clip_qkv": None,
    }
    gemma = {"hidden_activation": "gelu_pytorch_tanh", "attention_dropout": 0.1}
    for family, dropped in (("gpt2", gpt2), ("llama", llama), ("gemma", gemma)):
        assert check_decoder_config({**DECODERS[family], **dropped}) == check_decoder_config(DECODERS[family])


def test_entries_of_one_family_are_refused_in_another() -> None:
    with pytest.raises(DataFault, match="'hidden_activation'"):
        check_decoder_config({**DECODERS["llama"], "hidden_activation": "gelu_pytorch_tanh"})
    with pytest.raises(DataFault, match="'mlp_bias' is 'True', which a model of type gemma"):
        check_decoder_config({**DECODERS["gemma"], "mlp_bias": True})
    with pytest.raises(DataFault, match="hidden_size and n_embd, with two values"):
        check_decoder_config({**DECODERS["gpt2"], "hidden_size": 32})


def test_kinds_of_layers_are_those_of_the_window() -> None:
    qwen = DECODERS["qwen2"]
    whole = ["full_attention"] * 2
    assert check_decoder_config({**qwen, "layer_types": whole}) == check_decoder_config(qwen)
    with pytest.raises(DataFault, match=r"'layer_types'.*several kinds"):
        check_decoder_config({**qwen, "layer_types": ["sliding_attention", "full_attention"]})
    on = {**qwen, "use_sliding_window": True, "max_window_layers": 1}
    assert check_decoder_config({**on, "layer_types": ["full_attention", "sliding_attention"]})["sliding_window"] == 8
    with pytest.raises(DataFault, match="'layer_types'"):
        check_decoder_config({**on, "layer_types": whole})


def test_rotated_shares_are_those_of_the_file() -> None:
    neox = DECODERS["gpt_neox"]
    left_out = {name: value for name, value in neox.items() if not name.startswith("rot")}
    shares = [
        check_decoder_config(content)["partial_rotary_factor"]
        for content in (neox, {**left_out, "num_attention_heads": 2})
    ]
    assert shares == [0.5, 0.25]
    for wrong in (0.1, 1.5):  # nothing of a head of 4 is rotated, or more than all
        with pytest.raises(DataFault, match="partial_rotary_factor is"):
            check_decoder_config({**neox, "rotary_pct": wrong})
    with pytest.raises(DataFault, match="rope_type is 'longrope'"):
        check_decoder_config({**DECODERS["phi3"], "rope_scaling": {"type": "longrope", "long_factor": [1.0]}})


def test_windows_hold_where_the_family_says_so() -> None:
    assert "sliding_window" not in check_decoder_config(DECODERS["qwen2"])  # not switched on
    on = {**DECODERS["qwen2"], "use_sliding_window": True, "max_window_layers": 1}
    assert check_decoder_config(on)["sliding_window"] == 8
    assert "sliding_window" not in check_decoder_config(DECODERS["mistral"])  # null
    left_out = {name: value for name, value in DECODERS["mistral"].items() if name != "sliding_window"}
    assert check_decoder_config(left_out)["sliding_window"] == 4096


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auto_map": {"AutoModel": "modeling.Model"}}, "has auto_map"),
        ({"quantization_config": {"bits": 4}}, "has quantization_config"),
        ({"model_type": "mamba"}, "'mamba' are not supported"),
        ({"model_type": ["llama"]}, "are not supported"),
        ({"hidden_size": 0}, "hidden_size is '0'"),
        ({"num_hidden_layers": 1 << 24}, "num_hidden_layers is '16777216'"),
        ({"hidden_size": True}, "hidden_size is 'True'"),
        ({"vocab_size": None}, "vocab_size is 'None'"),
        ({"vocab_size": 1 << 40}, "vocab_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is '3'"),
        ({"head_dim": 3}, "head_dim is '3'"),
        ({"hidden_act": "os.system"}, "hidden_act is 'os.system'"),
        ({"rms_norm_eps": float("nan")}, "norm_eps is 'nan'"),
        ({"rope_theta": -1.0}, "rope_theta is '-1.0'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type is 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor is 'None'"),
        ({"rope_scaling": "llama3"}, "rope_parameters is 'llama3'"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mscale": 0.7}}, "'rope_parameters.mscale' is '0.7'"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_scaling and rope_parameters, with two values"),
        ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor is '0.5'"),
        ({"model_type": "qwen2_moe"}, "experts"),
        ({"partial_rotary_factor": 0.5}, "'partial_rotary_factor' is '0.5'"),
        ({"pretraining_tp": 2}, "'pretraining_tp' is '2'"),
        ({"pretraining_tp": True}, "'pretraining_tp' is 'True'"),
        ({"final_logit_softcapping": 30.0}, "no place for: it caps the logits"),
        ({"residual_multiplier": 0.22}, "no place for: it scales what each layer adds"),
        ({"use_qk_norm": True}, "no place for: it normalises"),
        ({"sliding_window": 8}, "no place for: its attention looks back"),
        ({"per_layer_config": {"0": {"intermediate_size": 8}}}, "no place for: its layers are of several sizes"),
        ({"scale_attn_weights": False}, "'scale_attn_weights' is 'False', which a model of type llama"),
        ({"an_entry_of_tomorrow": False}, "'an_entry_of_tomorrow' is 'False'.*may change what the model computes"),
    ],
)
def test_what_is_not_a_number_of_a_known_family_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataFault, match=message):
        check_decoder_config({**DECODERS["llama"], **changes})
