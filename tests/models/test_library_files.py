"""Releases of language models in the libraries that others read them with, and in no other form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from safetensors.torch import load_file  # noqa: E402

from dprecipe.models.decoder_families import FAMILIES  # noqa: E402
from tests.languages import tokens_of, write_release  # noqa: E402

TOKENS = torch.tensor([[5, 9, 30, 4, 7, 11], [8, 8, 29, 12, 20, 6]])


def logits_of(module: torch.nn.Module) -> torch.Tensor:
    """At the last place of `TOKENS`."""
    with torch.no_grad():
        result: torch.Tensor = module.next_logits(TOKENS)[0]  # type: ignore[operator]
    return result


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_merged_release_loads_in_transformers(tmp_path: Path, family: str) -> None:
    module = write_release(tmp_path / "release", family)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "release", output_loading_info=True, local_files_only=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert type(theirs).__name__ == FAMILIES[family].architecture
    assert theirs.generation_config.eos_token_id == 0
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(TOKENS).logits[:, -1], logits_of(module), atol=1e-5, rtol=1e-5)


def test_its_tokeniser_is_the_one_of_training(tmp_path: Path) -> None:
    write_release(tmp_path / "release")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "release", local_files_only=True)
    text = "free  prize. call <now>"
    assert theirs.encode(text) == tokens_of(text)
    assert (theirs.eos_token, theirs.eos_token_id) == ("<eos>", 0)
    assert theirs.model_max_length == 32


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about a name in transformers
@pytest.mark.parametrize("family", ["gpt2", "llama", "phi3", "gpt_neox"])
def test_adapters_load_in_peft(tmp_path: Path, family: str) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    module = write_release(tmp_path / "release", family, adapters=True)
    assert sorted(path.name for path in (tmp_path / "release").iterdir()) == [
        *("adapter_config.json", "adapter_model.safetensors", "model.json", "tokenizer.json", "tokenizer_config.json"),
    ]
    write_release(tmp_path / "merged", family)
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", local_files_only=True)
    for name, tensor in load_file(tmp_path / "base" / "model.safetensors").items():
        assert torch.equal(base.state_dict()[name.replace("embed_out", "lm_head")], tensor)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "release").eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(TOKENS).logits[:, -1], logits_of(module), atol=1e-5, rtol=1e-5)
        with theirs.disable_adapter():
            assert not torch.allclose(theirs(TOKENS).logits[:, -1], logits_of(module), atol=1e-3)


def test_no_file_names_a_path_of_this_machine(tmp_path: Path) -> None:
    write_release(tmp_path / "release", adapters=True)
    named = json.loads((tmp_path / "release" / "adapter_config.json").read_text())
    assert named["base_model_name_or_path"].startswith("sha256:")
    assert all(str(tmp_path).encode() not in path.read_bytes() for path in (tmp_path / "release").iterdir())
