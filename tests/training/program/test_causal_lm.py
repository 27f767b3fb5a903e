"""Language models from a recipe to a release that verifies: tiny decoders with random weights, made here."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("lightning", reason="lightning is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import nn  # noqa: E402

import dprecipe  # noqa: E402
from dprecipe.data.facts import describe_data  # noqa: E402
from dprecipe.data.targets import TokenTarget  # noqa: E402
from dprecipe.faults import DataFault, PlanRefused, RecipeError  # noqa: E402
from dprecipe.models.decoder_config import check_decoder_config  # noqa: E402
from dprecipe.models.form import Form  # noqa: E402
from dprecipe.models.lora import add_adapters, merge_adapters  # noqa: E402
from dprecipe.models.schema import Lora  # noqa: E402
from dprecipe.models.zoo.causal_lm import CausalLanguageModel, causal_model  # noqa: E402
from dprecipe.models.zoo.checkpoint import digest_weights, load_decoder  # noqa: E402
from dprecipe.release.scores import state_score  # noqa: E402
from dprecipe.training.probe.program import examine_module  # noqa: E402
from dprecipe.training.program.evaluate import Score  # noqa: E402
from dprecipe.training.program.losses import NextTokenLoss  # noqa: E402
from dprecipe.training.publish.publish import select_public  # noqa: E402
from tests.decoders import DECODERS, LENGTH, VOCABULARY  # noqa: E402
from tests.languages import data_block  # noqa: E402

RECIPE = """\
recipe: dprecipe/v1
name: texts
data:
  train:
    source: csv
    path: texts.csv
    columns: {text: {kind: text}}
    label: next_token
  test: {source: csv, path: test.csv, access: public}
  size: 60
  unit: record
  preprocess:
    - sequences:
        text: text
        tokenizer: {path: base/tokenizer.json, vocabulary: 90, padding: 0}
        end: 0
        max_length: 12
model: {kind: causal_lm, init: base, lora: {rank: 2}}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 20}
budget: {epsilon: 8.0, delta: 1e-4, neighbouring: add_or_remove_one}
training: {steps: 2, optimizer: {kind: adam, lr: 0.01}}
"""


def make(family: str) -> CausalLanguageModel:
    torch.manual_seed(0)
    return causal_model(check_decoder_config(DECODERS[family]), LENGTH)


def write_base(folder: Path, family: str, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**DECODERS[family], **changes}))
    save_file(make(family).state_dict(), folder / "model.safetensors")
    tokens = {"<end>": 0, **{letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz ", 1)}}
    tokeniser = tokenizers.Tokenizer(tokenizers.models.WordLevel(tokens, unk_token="<end>"))
    tokeniser.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokeniser.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_base(tmp_path / "base", "gpt2")
    for name, count in (("texts.csv", 60), ("test.csv", 10)):
        rows = [f"see you at {'abcdefghij'[number % 10]}" for number in range(count)]
        (tmp_path / name).write_text("\n".join(["text", *rows]) + "\n")
    return tmp_path


def start(folder: Path, text: str) -> Any:
    (folder / "recipe.yaml").write_text(text)
    return dprecipe.run(dprecipe.plan(dprecipe.load(folder / "recipe.yaml")), out=folder / "out", data_root=folder)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "model"), [("gpt2", ", lora: {rank: 2}"), ("llama", ""), ("gpt2", "")])
def test_a_run_is_released_and_verifies(tmp_path: Path, folder: Path, family: str, model: str) -> None:
    write_base(folder / "other", family)
    text = RECIPE.replace("init: base, lora: {rank: 2}", f"init: other{model}")
    start(folder, text)
    release = folder / "out" / "release"
    dprecipe.verify(release)
    scores = json.loads((release / "metrics.json").read_text())["public_evaluation"]
    assert scores["tokens"] == 10 * 11
    assert scores["records"] == 10
    assert scores["perplexity"] > 1
    assert scores["base_perplexity"] == pytest.approx(VOCABULARY, rel=0.2)  # of random weights
    assert scores["perplexity"] != scores["base_perplexity"]
    released, base = load_file(release / "model.safetensors"), load_file(folder / "other" / "model.safetensors")
    assert released.keys() == base.keys()
    changed = {name for name, tensor in released.items() if not torch.equal(tensor, base[name])}
    assert changed == ({name for name in base if ".c_" in name and "weight" in name} if model else set(base))


@pytest.mark.parametrize("perplexity", [3.0, math.inf])
def test_a_diverged_model_is_released_without_a_score(perplexity: float) -> None:
    """Its loss is finite where its perplexity is none: what was spent ends in a release all the same."""
    data, score = data_block(), Score(None, 900.0, 3, full={"perplexity": perplexity, "tokens": 4})
    stated = select_public(score, data)
    assert (stated is None) == math.isinf(perplexity)
    assert stated is None or state_score(stated, describe_data(data).target).loss == 900.0


def refused(folder: Path, text: str) -> str:
    with pytest.raises(DataFault) as caught:
        start(folder, text)
    assert not (folder / "out" / "private" / "ledger.jsonl").exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_length: 12", "max_length: 33", "33 tokens, the model has 32 positions"),
        ("vocabulary: 90", "vocabulary: 98", "makes 98 tokens, and the model has 97"),
        ("lora: {rank: 2}", "lora: {rank: 2, target: ['*.q_proj']}", "is the name of no layer"),
        ("lora: {rank: 2}", "lora: {target: ['*.ln_1']}", "which is a LayerNorm"),
        ("lora: {rank: 2}", "lora: {target: ['*lm_head']}", "adapters stand beside linear layers"),
        ("lora: {rank: 2}", "train: {only: [h.9]}", "is no layer of this network"),
    ],
)
def test_what_does_not_fit_the_checkpoint_is_refused_before_anything_is_spent(
    folder: Path, old: str, new: str, message: str
) -> None:
    assert message in refused(folder, RECIPE.replace(old, new))


@pytest.mark.parametrize(
    ("name", "message"),
    [("pytorch_model.bin", "pickled weights"), ("nothing.txt", "has no model.safetensors")],
)
def test_pickled_weights_are_never_read(folder: Path, name: str, message: str) -> None:
    (folder / "base" / "model.safetensors").rename(folder / "base" / name)
    assert message in refused(folder, RECIPE)


def test_weights_come_in_one_file_or_in_parts_with_bare_names_and_constants(tmp_path: Path) -> None:
    source, target = make("gpt2"), make("gpt2")
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.zero_()
    bare = {name.removeprefix("transformer."): tensor.half() for name, tensor in source.state_dict().items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    half = len(bare) // 2
    for number, names in enumerate((list(bare)[:half], list(bare)[half:])):
        save_file({name: bare[name] for name in names}, tmp_path / f"model-{number}.safetensors")
    where = {name: f"model-{int(place >= half)}.safetensors" for place, name in enumerate(bare)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    initial = load_decoder(target, tmp_path)
    assert initial.digest == digest_weights(tmp_path)
    assert initial.name == "model.safetensors.index.json"
    for name, tensor in target.state_dict().items():
        torch.testing.assert_close(tensor, source.state_dict()[name].half().float())
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    with pytest.raises(DataFault, match="beside it"):
        load_decoder(target, tmp_path)
    for name in ("a\0.safetensors", "\ud800.safetensors"):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(DataFault, match="no such file"):
            load_decoder(target, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("model.norm.weight"), "1 tensors of the model are missing"),
        (lambda state: state.update(other=torch.ones(1)), "it has no 'other'"),
        (lambda state: state.update({"model.norm.weight": torch.ones(3)}), r"is \[3\]"),
        (lambda state: state.update({"model.norm.weight": torch.ones(16).to(torch.int8)}), "quantised"),
        (lambda state: state.update({"model.norm.weight": torch.full((16,), torch.nan)}), "not finite"),
        (
            lambda state: state.update({"model.norm.weight": torch.full((16,), 1e300, dtype=torch.float64)}),
            "not finite",
        ),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    state = make("llama").state_dict()
    change(state)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(DataFault, match=message):
        load_decoder(make("llama"), tmp_path)


def test_a_tied_head_that_differs_from_the_embedding_is_refused(tmp_path: Path) -> None:
    built = make("gpt2")
    state = {**built.state_dict(), "lm_head.weight": built.transformer.wte.weight.detach() + 1}
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(DataFault, match="have another head"):
        load_decoder(built, tmp_path)


@pytest.mark.parametrize("family", ["gpt2", "gemma"])
def test_adapters_of_named_layers_are_merged_into_them(family: str) -> None:
    built, plain = make(family), make(family)
    target = ("*.c_attn",) if family == "gpt2" else ("*.q_proj", "*.down_proj")
    add_adapters(built, Lora(rank=2, target=target), (), 0)
    trained = [name for name, parameter in built.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 2 * len(target)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if name in trained:
                parameter.normal_()
    features = Form((2, LENGTH), (VOCABULARY,), sequences=True).draw(3, torch.Generator().manual_seed(0))
    plain.load_state_dict(merge_adapters(built, built.state_dict()))
    torch.testing.assert_close(plain(features), built(features), rtol=1e-4, atol=1e-4)


class Leaking(nn.Module):
    """A decoder around which records are mixed, as by packing without a mask of its own or by a mask of the batch."""

    def __init__(self, mixing: str) -> None:
        super().__init__()
        self.inner = make("llama")
        with torch.no_grad():
            for parameter in self.inner.parameters():  # attention of random weights looks at nothing much
                parameter.add_(0.2 * torch.randn_like(parameter))
        if mixing == "packed":
            self.inner.length = 1 << 20  # sequences of its own length would see nothing of each other
        self.mixing = mixing

    def forward(self, features: Any) -> Any:
        if self.mixing == "packed":  # one long text of all records, each of which sees those before it
            tokens = features[:, 0].nan_to_num(0).clamp(0, VOCABULARY - 1).long()
            labels = features[:, 1].nan_to_num(0).clamp(-100, VOCABULARY - 1).long()
            hidden = self.inner.hidden(tokens.reshape(1, -1)).view(*tokens.shape, -1)
            outputs = self.inner.lm_head(hidden, labels)
            return outputs * (1 + (0 * features).sum((1, 2)))[:, None]
        if self.mixing == "mask":  # places at which all records of the batch have a label
            return self.inner(features) * (features[:, 1] >= 0).all(0)[1:]
        return self.inner(features) * nn.functional.dropout(features.new_ones(LENGTH - 1), 0.5)


@pytest.mark.parametrize(
    ("mixing", "expected"), [("packed", "records_independent"), ("mask", "records_independent"), ("dropout", "output")]
)
def test_records_that_reach_others_are_caught_by_the_probe(mixing: str, expected: str) -> None:
    form = Form((2, LENGTH), (VOCABULARY,), sequences=True)
    checks = examine_module(Leaking(mixing), NextTokenLoss(), form, TokenTarget(VOCABULARY))
    assert expected in {check.id for check in checks if not check.passed}


def test_a_decoder_passes_the_probe() -> None:
    form = Form((2, LENGTH), (VOCABULARY,), sequences=True)
    checks = examine_module(make("gemma"), NextTokenLoss("sum"), form, TokenTarget(VOCABULARY))
    assert [check.measured for check in checks if not check.passed] == []


@pytest.mark.parametrize(("kind", "code"), [("pate", "R310"), ("pnsgd", "R310"), ("encoded", "R280")])
def test_mechanisms_that_learn_no_texts_say_so(folder: Path, kind: str, code: str) -> None:
    blocks = {
        "pate": "{kind: pate, teachers: {count: 5, model: {kind: logistic_regression}}, queries: {max: 10}, "
        "aggregator: {kind: gnmax, noise: {family: gaussian, multiplier: 5.0}}}",
        "pnsgd": "{kind: pnsgd, constraint: {kind: ball, radius: 1.0}, learning_rate: 1.0, batch_size: 20, "
        "order: permuted, noise: {family: gaussian, multiplier: auto}}",
        "encoded": "{kind: encoded, codebook: {source: gaussian, size: 100, floor: 1.0e-5, norm: 0.1, seed: 0}, "
        "noise: {family: gaussian, multiplier: auto}, sampling: {scheme: poisson, batch_size: 20}}",
    }
    start_of, rest = RECIPE.split("mechanism:\n")
    (folder / "recipe.yaml").write_text(f"{start_of}mechanism: {blocks[kind]}\nbudget{rest.split('budget')[1]}")
    with pytest.raises((RecipeError, PlanRefused)) as caught:
        dprecipe.plan(dprecipe.load(folder / "recipe.yaml"))
    assert code in {finding.code for finding in caught.value.findings}, str(caught.value)
