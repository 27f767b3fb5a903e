"""Models of other libraries: tiny ones with random weights, made here; nothing is fetched."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pydantic import TypeAdapter, ValidationError  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from dprecipe.data.facts import DataFacts  # noqa: E402
from dprecipe.data.targets import ClassTarget  # noqa: E402
from dprecipe.faults import DataFault, UsageFault  # noqa: E402
from dprecipe.models.build import build  # noqa: E402
from dprecipe.models.checks import check_data  # noqa: E402
from dprecipe.models.hub_config import check_config  # noqa: E402
from dprecipe.models.initial import head_of, start_from  # noqa: E402
from dprecipe.models.lora import LowRankLayer, merge_adapters  # noqa: E402
from dprecipe.models.modules.inspection import inspect_module  # noqa: E402
from dprecipe.models.schema import HubModel, Lora, Model, Timm, Transformers  # noqa: E402
from dprecipe.models.zoo import hub  # noqa: E402
from dprecipe.training.engine.bookkeeping import describe_plan  # noqa: E402
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum, clipped_sum_of_rows, per_record_gradients  # noqa: E402
from dprecipe.training.engine.clipping import Clipping  # noqa: E402
from dprecipe.training.probe.program import examine_module, require_passed  # noqa: E402
from dprecipe.training.program.losses import cross_entropy  # noqa: E402

BERT = {
    "model_type": "bert",
    "vocab_size": 40,
    "hidden_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 10,
    "type_vocab_size": 2,
}
DISTIL = {
    "model_type": "distilbert",
    "vocab_size": 40,
    "dim": 12,
    "n_layers": 1,
    "n_heads": 2,
    "hidden_dim": 16,
    "max_position_embeddings": 10,
}
ROBERTA = {**BERT, "model_type": "roberta", "pad_token_id": 1}
ELECTRA = {**BERT, "model_type": "electra", "embedding_size": 6}
SPEC = Transformers(kind="transformers", init="base")
LENGTH = 6


@pytest.fixture
def base(tmp_path: Path):
    """A folder as `save_pretrained` writes it: a classifier of seven classes."""
    library = pytest.importorskip("transformers", reason="transformers is not installed")

    def make(numbers: dict, **weights: object) -> Path:
        torch.manual_seed(3)
        kept = {name: value for name, value in numbers.items() if name != "model_type"}
        full = library.AutoConfig.for_model(numbers["model_type"], **kept, num_labels=7)
        network = library.AutoModelForSequenceClassification.from_config(full)
        network.save_pretrained(tmp_path / "base")
        return tmp_path / "base"

    return make


def tokens(count: int = 7) -> torch.Tensor:
    result = torch.randint(2, 40, (count, LENGTH), generator=torch.Generator().manual_seed(1)).float()
    result[0, 3:] = 0
    return result


@pytest.mark.parametrize(
    "numbers",
    [DISTIL, ROBERTA, *(pytest.param(numbers, marks=pytest.mark.slow) for numbers in (BERT, ELECTRA))],
    ids=lambda numbers: numbers["model_type"],
)
def test_encoders_start_from_their_folder_and_treat_records_one_by_one(base, numbers: dict, tmp_path: Path) -> None:
    folder = base(numbers)
    module = build(SPEC, (LENGTH,), 3, 0, config=hub.config_of(folder))
    result = start_from(SPEC.model_copy(update={"lora": Lora(rank=2)}), module, tmp_path, 0)
    assert result is not None
    assert (result.name, result.head) == ("base/model.safetensors", "new")
    stored = load_file(folder / "model.safetensors")
    retained = {name.replace(".base.", "."): tensor for name, tensor in module.state_dict().items()}
    fixed = [name for name in stored if f"network.{name}" not in head_of(module)]
    assert len(fixed) > 9
    assert all(torch.equal(stored[name], retained[f"network.{name}"]) for name in fixed)
    adapters = [layer for layer in module.modules() if isinstance(layer, LowRankLayer)]
    assert len(adapters) >= 6
    with torch.no_grad():
        for layer in adapters:
            layer.up.weight.normal_(std=0.1)
    assert inspect_module(module) == []
    assert all(
        check.passed
        for check in require_passed(examine_module(module, cross_entropy, (LENGTH,), 3, per_record_gradients), module)
    )
    batch = BatchPart(tokens(), torch.arange(7) % 3)
    grads = per_record_gradients(module, cross_entropy, batch.features, batch.labels)
    clipping = Clipping.flat(float(grads.norm(dim=1).median()))
    expected = clipped_sum_of_rows(module, cross_entropy, batch, clipping, 7).value
    sum_ = clipped_sum(module, cross_entropy, batch, clipping, 3).value
    assert float((sum_ - expected).norm() / expected.norm()) < 1e-5
    assert not any(
        "whole model" in way for way in describe_plan(module, cross_entropy, batch.features, batch.labels).values()
    )

    plain = build(SPEC, (LENGTH,), 3, 9, config=check_config(module.config))
    plain.load_state_dict(merge_adapters(module, module.state_dict()))
    torch.testing.assert_close(plain(tokens()), module(tokens()), atol=1e-5, rtol=1e-5)


def test_padding_and_numbers_that_are_no_tokens(base) -> None:
    module = build(SPEC, (LENGTH,), 3, 0, config=hub.config_of(base(BERT)))
    x = torch.tensor([[5.0, 7, 0, 0, 0, 0], [5.2, 7, -1e30, -3, 0, 0], [0.0] * 6, [1e9] * 6])
    logits = module(x)
    assert logits.isfinite().all()
    assert torch.equal(logits[0], logits[1])
    assert module(torch.full((1, 6), torch.nan)).isnan().all()
    with torch.no_grad():
        module.network.bert.embeddings.word_embeddings.weight[0].add_(1)
    torch.testing.assert_close(module(x)[:2], logits[:2])


def test_old_names_and_the_names_of_another_task(base, tmp_path: Path) -> None:
    folder = base(BERT)
    stored = load_file(folder / "model.safetensors")
    renamed = {"cls.predictions.bias": torch.zeros(40)}
    for name, tensor in stored.items():
        if not name.startswith("classifier") and ".pooler." not in name:
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            renamed[old] = tensor.clone()
    save_file({name.removeprefix("bert."): t for name, t in renamed.items()}, folder / "model.safetensors")
    module = build(SPEC, (LENGTH,), 7, 0, config=hub.config_of(folder))
    result = start_from(SPEC, module, tmp_path, 0)
    assert result is not None
    assert result.head == "new"
    name = "bert.encoder.layer.0.output.LayerNorm.weight"
    assert torch.equal(module.state_dict()[f"network.{name}"], stored[name])
    save_file({"embeddings.word_embeddings.weight": torch.zeros(40, 12)}, folder / "model.safetensors")
    with pytest.raises(DataFault, match="names differ"):
        start_from(SPEC, module, tmp_path, 0)


def test_a_release_is_a_folder_to_start_from(base, tmp_path: Path) -> None:
    folder = base(BERT)
    module = build(SPEC, (LENGTH,), 7, 0, config=hub.config_of(folder))
    (folder / "config.json").unlink()
    save_file(module.state_dict(), folder / "model.safetensors")
    (folder / "model.json").write_text(json.dumps({"config": dict(module.config)}))
    assert hub.config_of(folder) == module.config
    other = build(SPEC, (LENGTH,), 7, 5, config=hub.config_of(folder))
    result = start_from(SPEC, other, tmp_path, 0)
    assert result is not None
    assert result.head == "taken over"
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))


def test_records_longer_than_the_model(base) -> None:
    config = hub.config_of(base(BERT))
    with pytest.raises(DataFault, match="11 tokens, the model has 10 places"):
        build(SPEC, (11,), 3, 0, config=config)
    with pytest.raises(DataFault, match="9 tokens, the model has 8 places"):
        build(SPEC, (9,), 3, 0, config=check_config(ROBERTA))
    with pytest.raises(DataFault, match="can't make a model of this configuration"):
        build(SPEC, (3,), 3, 0, config=check_config({**BERT, "num_attention_heads": 5}))


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "gpt2"},
        {"model_type": None},
        {"model_type": ["bert"]},
        {"hidden_size": "12"},
        {"hidden_size": True},
        {"hidden_size": 0},
        {"vocab_size": 1 << 40},
        {"hidden_act": "../code"},
        {"hidden_act": ["gelu"]},
        {"layer_norm_eps": float("nan")},
        {"pad_token_id": -1},
        {"sinusoidal_pos_embds": 1},
    ],
)
def test_configurations_out_of_all_proportion(change: dict) -> None:
    with pytest.raises(DataFault) as refused:
        check_config({**BERT, **change})
    assert refused.value.remedy


def test_of_a_configuration_only_numbers_are_used() -> None:
    hostile = {
        **BERT,
        "auto_map": {"AutoModel": "evil--code.Model"},
        "attn_implementation": "somebody/kernel",
        "_attn_implementation": "somebody/kernel",
        "quantization_config": {"quant_method": "x"},
        "hidden_dropout_prob": 0.5,
        "id2label": {"0": "a"},
    }
    result = check_config(hostile)
    assert set(result) == {*BERT, "hidden_dropout_prob", "attention_probs_dropout_prob"}
    assert result["hidden_dropout_prob"] == 0.0
    assert check_config(result) == result


@pytest.mark.parametrize("content", [None, "[]", "{", '{"model_type": "bert"', "\xff", "[" * 100_000])
def test_folders_without_a_configuration(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(DataFault):
        hub.config_of(tmp_path)


def test_only_pinned_files_are_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[object, ...]] = []
    library = ModuleType("huggingface_hub")
    library.errors = ModuleType("errors")  # type: ignore[attr-defined]
    library.errors.HfHubHTTPError = RuntimeError  # type: ignore[attr-defined]

    def download(name: str, *, revision: str, allow_patterns: list[str]) -> str:
        asked.append((name, revision, tuple(allow_patterns)))
        if len(asked) > 1:
            raise OSError("offline")
        return str(tmp_path)

    library.snapshot_download = download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    spec = Transformers(kind="transformers", hub=HubModel(name="some/model", revision="0" * 40))
    assert hub.folder_of(spec, Path("elsewhere")) == tmp_path
    assert asked == [("some/model", "0" * 40, ("config.json", "model.safetensors"))]
    with pytest.raises(DataFault, match="offline"):
        hub.folder_of(spec, Path())


@pytest.mark.parametrize(
    "block",
    [
        {"kind": "timm", "name": "hf-hub:somebody/model"},
        {"kind": "timm", "name": "local-dir:/tmp"},
        {"kind": "timm", "name": "../resnet18"},
        {"kind": "transformers", "hub": {"name": "a/b"}},
        {"kind": "transformers", "hub": {"name": "a/b", "revision": "main"}},
        {"kind": "transformers", "hub": {"name": "../b", "revision": "0" * 40}},
        {"kind": "transformers", "hub": {"name": "a/b/c", "revision": "0" * 40}},
        {"kind": "transformers", "init": "base", "trust_remote_code": True},
    ],
)
def test_names_that_are_more_than_names(block: dict) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Model).validate_python(block)


def test_checks_of_blocks() -> None:
    vector = DataFacts((6,), ClassTarget(3), (6,))
    assert check_data(SPEC, vector) == []
    pinned = HubModel(name="a/b", revision="0" * 40)
    for spec, facts, codes in (
        (Transformers(kind="transformers"), vector, ["R258"]),
        (Transformers(kind="transformers", init="x", hub=pinned), vector, ["R258"]),
        (Transformers(kind="transformers", hub=pinned, train="head"), vector, []),
        (Transformers(kind="transformers", hub=pinned, lora=Lora()), vector, []),
        (SPEC, DataFacts((1, 8, 8), ClassTarget(3), (1, 8, 8)), ["R255"]),
        (SPEC, DataFacts((6,), ClassTarget(3), (6,), vocabulary=99), ["R255"]),
        (Timm(kind="timm", name="resnet18"), DataFacts((1, 8, 8), ClassTarget(3), (1, 8, 8)), []),
        (Timm(kind="timm", name="resnet18"), vector, ["R250"]),
        (Timm(kind="timm", name="resnet18", lora=Lora()), DataFacts((1, 8, 8), ClassTarget(3), (1, 8, 8)), ["R257"]),
    ):
        assert [finding.code for finding in check_data(spec, facts)] == codes


def fake_timm(monkeypatch: pytest.MonkeyPatch, norm: type[torch.nn.Module]) -> None:
    library = ModuleType("timm")
    library.__version__ = "0"  # type: ignore[attr-defined]

    def create_model(name: str, *, pretrained: bool, num_classes: int, in_chans: int) -> torch.nn.Module:
        assert not pretrained
        if name != "tiny":
            raise RuntimeError(f"Unknown model ({name})")
        width = 4
        normed = norm(width) if norm is torch.nn.BatchNorm2d else norm(2, width)
        return torch.nn.Sequential(
            torch.nn.Conv2d(in_chans, width, 3), normed, torch.nn.Flatten(), torch.nn.LazyLinear(num_classes)
        )

    library.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", library)


def test_a_model_of_timm_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library itself needs torchvision; here only how it is called is tested."""
    fake_timm(monkeypatch, torch.nn.GroupNorm)
    module = build(Timm(kind="timm", name="tiny"), (2, 5, 5), 3, 0)
    assert module(torch.zeros(2, 2, 5, 5)).shape == (2, 3)
    assert inspect_module(module) == []
    with pytest.raises(DataFault, match="can't make a model 'other'"):
        build(Timm(kind="timm", name="other"), (2, 5, 5), 3, 0)
    fake_timm(monkeypatch, torch.nn.BatchNorm2d)
    assert [f.code for f in inspect_module(build(Timm(kind="timm", name="tiny"), (2, 5, 5), 3, 0))] == ["P120"]


def test_a_model_of_the_real_timm() -> None:
    pytest.importorskip("timm", reason="timm, or torchvision that it needs, is not installed", exc_type=ImportError)
    module = build(Timm(kind="timm", name="test_vit"), (3, 160, 160), 3, 0)
    assert module(torch.zeros(1, 3, 160, 160)).shape == (1, 3)
    assert inspect_module(module) == []
    assert inspect_module(build(Timm(kind="timm", name="resnet18"), (3, 32, 32), 3, 0))[0].code == "P120"


def test_adapters_need_something_to_adapt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_timm(monkeypatch, torch.nn.GroupNorm)
    spec = Timm(kind="timm", name="tiny", init="w.safetensors", lora=Lora())
    module = build(spec, (2, 5, 5), 3, 0)
    module(torch.zeros(1, 2, 5, 5))
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(DataFault, match="lora has nothing to adapt"):
        start_from(spec, module, tmp_path, 0)


def test_a_missing_extra_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    for call in (
        lambda: build(Timm(kind="timm", name="tiny"), (2, 5, 5), 3, 0),
        lambda: build(SPEC, (5,), 3, 0, config=BERT),
    ):
        with pytest.raises(UsageFault) as missing:
            call()
        assert missing.value.remedy == "pip install 'dprecipe[hub]'"
