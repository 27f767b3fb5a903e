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
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is '0.5'"),
        ({"pretraining_tp": 2}, "pretraining_tp is '2'"),
    ],
)
def test_what_is_not_a_number_of_a_known_family_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataFault, match=message):
        check_decoder_config({**DECODERS["llama"], **changes})
