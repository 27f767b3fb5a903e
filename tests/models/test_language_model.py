"""Released language models that write: what their texts start from, how they end, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from safetensors.torch import load_file, save_file  # noqa: E402

from dprecipe.faults import DataFault, UsageFault  # noqa: E402
from dprecipe.models.file import ModelFile  # noqa: E402
from dprecipe.models.language_model import find_device, load_language_model  # noqa: E402
from dprecipe.models.library_files import METADATA  # noqa: E402
from dprecipe.models.load import load  # noqa: E402
from dprecipe.models.zoo.causal_lm import CausalLanguageModel  # noqa: E402
from tests.languages import LETTERS, tokens_of, write_release  # noqa: E402

CHAT = {
    "columns": {"chat": {"kind": "chat"}},
    "step": {"chat": "chat", "roles": {"user": ("<user>", "\n"), "assistant": ("<bot>", "\n")}},
}


@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_tokens_read_one_by_one_have_the_logits_of_all_at_once(tmp_path: Path, family: str) -> None:
    module = write_release(tmp_path / "release", family)
    tokens = torch.tensor([tokens_of("you have won"), tokens_of("call me back")])
    with torch.no_grad():
        whole = module.lm_head.logits(module.hidden(tokens))
        cache = None
        for place in range(tokens.shape[1]):
            logits, cache = module.next_logits(tokens[:, place : place + 1], cache)
            torch.testing.assert_close(logits, whole[:, place], atol=1e-5, rtol=1e-5)
        logits, _ = module.next_logits(tokens)
    torch.testing.assert_close(logits, whole[:, -1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "has_gpu", "expected"),
    [("auto", False, "cpu"), ("auto", True, "cuda"), ("cpu", True, "cpu"), ("cuda", True, "cuda")],
)
def test_auto_takes_a_gpu_where_there_is_one(
    name: str, has_gpu: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert find_device(name) == torch.device(expected)


def test_a_device_that_is_not_there_is_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has no room for the weights."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageFault, match="'cuda' is not available here"):
        load_language_model(tmp_path / "absent", device="cuda")
    with pytest.raises(UsageFault, match="'tpu' is none of auto, cpu, cuda, mps"):
        find_device("tpu")

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    write_release(tmp_path / "release", "gpt2")
    monkeypatch.setattr(CausalLanguageModel, "to", full)
    with pytest.raises(UsageFault, match="do not fit into the memory of cpu"):
        load_language_model(tmp_path / "release")


def test_a_seed_gives_the_same_texts_and_the_likeliest_is_the_librarys(tmp_path: Path) -> None:
    write_release(tmp_path / "release", "llama")
    model = load_language_model(tmp_path)  # the folder of a run, which holds release/
    one, same, other = (model.generate("you", 3, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    assert len(set(one)) == 3
    (greedy,) = model.generate("you", temperature=0, max_tokens=8)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "release", local_files_only=True)
    start = torch.tensor([tokens_of("you")])
    expected = theirs.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=8, do_sample=False)
    ids = expected[0, 3:].tolist()
    written = ids[: ids.index(0)] if 0 in ids else ids
    assert greedy == "".join(LETTERS[token] for token in written if token not in (2, 3))  # special ones are no text


def test_a_module_on_another_device_gets_its_tokens_there_and_draws_are_the_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_release(tmp_path / "release")
    model = load_language_model(tmp_path / "release")
    seen: list[str] = []

    def note_zeros(tokens: torch.Tensor, cache: object) -> tuple[torch.Tensor, object]:
        seen.append(tokens.device.type)
        return torch.zeros(len(tokens), len(LETTERS)), cache

    monkeypatch.setattr(model.module, "next_logits", note_zeros)
    model.module.to("meta")
    assert len(model.generate("you", 2, max_tokens=4)) == 2
    assert set(seen) == {"meta"}


def test_adapters_write_what_the_merged_weights_write(tmp_path: Path) -> None:
    from dprecipe.models.lora import merge_adapters

    module = write_release(tmp_path / "release", "llama", adapters=True)
    model = load_language_model(tmp_path / "release", tmp_path / "base")
    write_release(tmp_path / "merged", "llama")
    state = merge_adapters(module, module.state_dict())
    save_file(state, tmp_path / "merged" / "model.safetensors", METADATA)
    merged = load_language_model(tmp_path / "merged")
    assert model.generate("you", 4, seed=3) == merged.generate("you", 4, seed=3)


def test_padding_that_texts_are_made_of_is_written(tmp_path: Path) -> None:
    number, tokenizer = LETTERS.index("e"), {"path": "tokenizer.json", "vocabulary": len(LETTERS)}
    module = write_release(tmp_path / "release", tokenizer={**tokenizer, "padding": number})
    with torch.no_grad():  # a table that is also the head: a longer row is likelier
        module.transformer.wte.weight[number] = 8 * module.transformer.ln_f.weight
        module.transformer.ln_f.bias.copy_(module.transformer.ln_f.weight)
    file = tmp_path / "release" / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, file, METADATA)
    assert "e" in load_language_model(tmp_path / "release").generate("you", temperature=0)[0]
    write_release(tmp_path / "special", tokenizer={**tokenizer, "padding": 2})
    special = load_language_model(tmp_path / "special")
    assert special.tokens.special == {0, 2, 3}


def test_another_base_and_a_base_too_many_or_few_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_release(tmp_path / "release", "llama", adapters=True)
    file = tmp_path / "base" / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file, METADATA)
    with monkeypatch.context() as patch:
        patch.setattr("dprecipe.models.language_model._build", lambda file: pytest.fail("built for another base"))
        with pytest.raises(DataFault, match="the adapters belong to sha256:"):
            load_language_model(tmp_path / "release", tmp_path / "base")
    with pytest.raises(UsageFault, match="adapters alone"):
        load_language_model(tmp_path / "release")
    write_release(tmp_path / "other" / "release", "llama")
    with pytest.raises(UsageFault, match="needs no base"):
        load_language_model(tmp_path / "other" / "release", tmp_path / "base")


@pytest.mark.parametrize("change", [{"vocab_size": 1 << 24}, {"num_hidden_layers": 3}])
def test_a_network_that_is_not_the_bases_is_not_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, int]
) -> None:
    """Its configuration may claim any size; the digest of the base says nothing of it."""
    write_release(tmp_path / "release", "llama", adapters=True)
    file = tmp_path / "release" / "model.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "config": {**content["config"], **change}}))
    _forbid_memory(monkeypatch)
    with pytest.raises(DataFault):
        load_language_model(tmp_path / "release", tmp_path / "base")


def test_adapters_of_another_rank_are_refused_before_a_network_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_release(tmp_path / "release", "llama", adapters=True)
    file = tmp_path / "release" / "model.json"
    content = json.loads(file.read_text())
    content["model"]["lora"]["rank"] = 1024
    file.write_text(json.dumps(content))
    _forbid_memory(monkeypatch)
    with pytest.raises(DataFault, match="not the adapters"):
        load_language_model(tmp_path / "release", tmp_path / "base")


def _forbid_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks may be built on the meta device alone."""
    from dprecipe.models import language_model

    def build_draft(file: ModelFile, device: str = "cpu") -> CausalLanguageModel:
        assert device == "meta", "built in memory"
        return built(file, device)

    built = language_model._build
    monkeypatch.setattr(language_model, "_build", build_draft)


def test_what_a_text_starts_from(tmp_path: Path) -> None:
    write_release(tmp_path / "release")
    model = load_language_model(tmp_path / "release")
    assert model.begin("") == (0,)  # behind the end of a text another one begins
    assert model.begin("hi") == tuple(tokens_of("hi"))
    write_release(tmp_path / "chat", **CHAT)
    chat = load_language_model(tmp_path / "chat")
    assert chat.begin("hi") == (2, *tokens_of("hi\n"), 3)
    write_release(tmp_path / "begun", begin=2)
    assert load_language_model(tmp_path / "begun").begin("hi") == (2, *tokens_of("hi"))
    named = json.loads((tmp_path / "begun" / "tokenizer_config.json").read_text())
    assert (named["bos_token"], named["eos_token"]) == ("<user>", "<eos>")
    write_release(tmp_path / "endless", end=None)
    with pytest.raises(UsageFault, match="no token before the first"):
        load_language_model(tmp_path / "endless").begin("")


def test_special_tokens_in_a_prompt_are_letters(tmp_path: Path) -> None:
    write_release(tmp_path / "chat", **CHAT)
    assert set(load_language_model(tmp_path / "chat").begin("<bot><eos>")[1:-1]) == {1, *tokens_of("boteos\n")}


def test_a_prompt_that_fills_the_places_is_refused(tmp_path: Path) -> None:
    write_release(tmp_path / "release")
    model = load_language_model(tmp_path / "release")
    with pytest.raises(UsageFault, match="has 32 tokens, and the model reads 32"):
        model.generate("a" * 32)
    assert len(model.generate("a" * 31)[0]) <= 1
    assert all(len(text) <= 12 for text in model.generate("a" * 20, 5, max_tokens=10**6))
    for count, seed in ((0, 0), (1, -1), (1, 1 << 63)):
        with pytest.raises(UsageFault):
            model.generate("a", count, seed=seed)


def test_a_language_model_predicts_nothing_and_a_classifier_writes_nothing(tmp_path: Path) -> None:
    write_release(tmp_path / "release")
    with pytest.raises(DataFault, match="writes text"):
        load(tmp_path / "release")


def test_damaged_releases_are_refused(tmp_path: Path) -> None:
    write_release(tmp_path / "release")
    file = tmp_path / "release" / "model.json"
    content = json.loads(file.read_text())
    whole = (tmp_path / "release" / "model.safetensors").read_bytes()
    for change in ({"hidden_size": 4096}, {"vocab_size": 1 << 24}, {"num_hidden_layers": 3}):
        file.write_text(json.dumps({**content, "config": {**content["config"], **change}}))
        with pytest.raises(DataFault):
            load_language_model(tmp_path / "release")
    file.write_text(json.dumps({**content, "base": "sha256:" + "0" * 64}))
    with pytest.raises(DataFault, match="adapters are of a language model"):
        load_language_model(tmp_path / "release")
    file.write_text(json.dumps(content))
    (tmp_path / "release" / "model.safetensors").write_bytes(whole[:-8])
    with pytest.raises(DataFault, match="damaged"):
        load_language_model(tmp_path / "release")
    (tmp_path / "release" / "tokenizer.json").unlink()
    with pytest.raises(DataFault, match=r"tokenizer\.json: no such file"):
        load_language_model(tmp_path / "release")
