"""Initial weights from a file, adapters, and what stays fixed."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from safetensors.torch import save_file  # noqa: E402

from dprecipe.faults import DataFault  # noqa: E402
from dprecipe.models.build import build  # noqa: E402
from dprecipe.models.initial import head_of, start_from  # noqa: E402
from dprecipe.models.layout import (  # noqa: E402
    layer_sizes,
    select_tensors,
    trained_parameters,
)
from dprecipe.models.lora import LowRankLayer, add_adapters, merge_adapters  # noqa: E402
from dprecipe.models.schema import Cnn, Lora, Mlp, Model, TrainedLayers, Transformer, WideResNet  # noqa: E402

MLP = Mlp(kind="mlp", hidden=(6, 5))
TEXT = Transformer(kind="transformer", width=8, heads=2, vocabulary=11)
NETWORKS = [
    (MLP, (4,)),
    (Cnn(kind="cnn", preset="lenet-norm"), (1, 12, 12)),
    (WideResNet(kind="wide_resnet", depth=10, width=1), (1, 4, 4)),
    (TEXT, (5,)),
]


def like(model: Model, **change: object) -> Model:
    return model.model_copy(update={"init": "w.safetensors", **change})


def trained(module: torch.nn.Module) -> set[str]:
    return {name for name, p in module.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(("model", "shape"), NETWORKS, ids=lambda value: getattr(value, "kind", ""))
@pytest.mark.parametrize("train", ["all", "head"])
def test_all_weights_are_taken_over(model: Model, shape: tuple[int, ...], train: str, tmp_path: Path) -> None:
    source, module = build(model, shape, 3, 1), build(model, shape, 3, 2)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    result = start_from(like(model, train=train), module, tmp_path, 0)
    assert result is not None
    digest = hashlib.sha256((tmp_path / "w.safetensors").read_bytes()).hexdigest()
    assert (result.name, result.digest, result.head) == ("w.safetensors", f"sha256:{digest}", "taken over")
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), module.parameters(), strict=True))
    every = {name for name, _ in module.named_parameters()}
    assert trained(module) == (every if train == "all" else head_of(module))
    assert len(head_of(module)) == 2
    sizes = [p.numel() for p in module.parameters() if p.requires_grad]
    assert sum(layer_sizes(like(model, train=train), shape, 3)) == sum(sizes)


@pytest.mark.parametrize(("model", "shape"), NETWORKS, ids=lambda value: getattr(value, "kind", ""))
def test_a_last_layer_of_other_classes_starts_anew(model: Model, shape: tuple[int, ...], tmp_path: Path) -> None:
    source, module, fresh = build(model, shape, 7, 1), build(model, shape, 3, 2), build(model, shape, 3, 2)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    result = start_from(like(model), module, tmp_path, 0)
    assert result is not None
    assert result.head == "new"
    for name, tensor in module.state_dict().items():
        expected = (fresh if name in head_of(module) else source).state_dict()[name]
        assert torch.equal(tensor, expected)
    assert not torch.equal(next(module.parameters()), next(fresh.parameters()))


PARTS = [
    (MLP, (4,), {"from": 3}),
    (Cnn(kind="cnn", preset="lenet-norm"), (1, 12, 12), {"only": ("4", 12)}),
    (WideResNet(kind="wide_resnet", depth=10, width=1), (1, 4, 4), {"from": "2.norm_2"}),
    (WideResNet(kind="wide_resnet", depth=10, width=1), (1, 4, 4), {"only": ("*norm_?", "around", "3.around")}),
    (TEXT, (5,), {"from": "layers.1"}),
    (TEXT, (5,), {"only": ("layers.*.norm_?", "head")}),
]


@pytest.mark.parametrize(("model", "shape", "written"), PARTS)
def test_layers_by_name_are_what_is_trained(
    model: Model, shape: tuple[int, ...], written: dict, tmp_path: Path
) -> None:
    save_file(build(model, shape, 3, 1).state_dict(), tmp_path / "w.safetensors")
    module, spec = build(model, shape, 3, 2), like(model, train=TrainedLayers.model_validate(written))
    if "around" in str(written):  # a part of a block is named with it
        with pytest.raises(DataFault, match=r"model.train.only.1: 'around' is no layer of this network"):
            start_from(spec, module, tmp_path, 0)
        return
    start_from(spec, module, tmp_path, 0)
    names = [name for name, _ in module.named_parameters()]
    assert trained(module) == select_tensors(spec.train, names) == trained_parameters(spec, module.state_dict())
    assert 0 < len(trained(module)) < len(names)
    sizes: dict[str, int] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            owner = name.rpartition(".")[0]
            sizes[owner] = sizes.get(owner, 0) + parameter.numel()
    assert layer_sizes(spec, shape, 3) == tuple(sizes.values())


def test_a_new_last_layer_has_to_be_trained(tmp_path: Path) -> None:
    save_file(build(MLP, (4,), 7, 1).state_dict(), tmp_path / "w.safetensors")
    part = TrainedLayers(only=(1,))
    with pytest.raises(DataFault, match=r"starts from the seed, and model\.train leaves it untrained"):
        start_from(like(MLP, train=part), build(MLP, (4,), 3, 2), tmp_path, 0)
    start_from(like(MLP, train=TrainedLayers(only=(1, 5))), build(MLP, (4,), 3, 2), tmp_path, 0)
    start_from(like(MLP, train=part), build(MLP, (4,), 7, 2), tmp_path, 0)


def test_without_a_file_nothing_is_done(tmp_path: Path) -> None:
    module = build(MLP, (4,), 3, 0)
    assert start_from(MLP, module, tmp_path, 0) is None
    assert len(trained(module)) == 6


def other(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        state = dict(build(MLP, (4,), 3, 1).state_dict())
        change(state)
        save_file(state, file)

    return write


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda file: None, "No such file"),
        (lambda file: file.mkdir(), "Is a directory"),
        (lambda file: file.write_bytes(b""), "is no safetensors file"),
        (lambda file: file.write_bytes(pickle.dumps({"1.weight": 1})), "is no safetensors file"),
        (lambda file: torch.save(build(MLP, (4,), 3, 1).state_dict(), file), "is no safetensors file"),
        (other(lambda s: s.pop("3.bias")), "1 names differ, such as '3.bias'"),
        (other(lambda s: s.update(more=torch.zeros(1))), "1 names differ, such as 'more'"),
        (other(lambda s: s.update({"1.weight": torch.zeros(6, 5)})), r"'1.weight' is \[6, 5\] .*, the network's is"),
        (other(lambda s: s.update({"1.weight": torch.zeros(6, 4).double()})), "float64"),
        (other(lambda s: s.update({"5.bias": torch.zeros(3).half()})), "float16"),
        (other(lambda s: s["3.weight"].fill_(float("nan"))), "'3.weight' holds numbers that are not finite"),
    ],
)
def test_files_that_are_not_weights_of_the_network(write, message: str, tmp_path: Path) -> None:
    write(tmp_path / "w.safetensors")
    module = build(MLP, (4,), 3, 2)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(DataFault, match=message) as refused:
        start_from(like(MLP), module, tmp_path, 0)
    assert refused.value.remedy
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def adapted(seed: int = 0) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A transformer, and a copy with adapters."""
    plain, module = build(TEXT, (5,), 3, 1), build(TEXT, (5,), 3, 1)
    add_adapters(module, Lora(rank=2, alpha=6), head_of(module), seed)
    return plain, module


def test_adapters_change_nothing_until_they_are_trained() -> None:
    state = torch.random.get_rng_state()
    plain, module = adapted()
    assert torch.equal(torch.random.get_rng_state(), state)
    x = torch.randint(11, (4, 5)).float()
    assert torch.equal(plain(x), module(x))
    _, same = adapted()
    _, different = adapted(1)
    down = [
        next(p for n, p in net.named_parameters() if n.endswith("down.weight")) for net in (module, same, different)
    ]
    assert torch.equal(down[0], down[1])
    assert not torch.equal(down[0], down[2])


def test_adapters_and_the_last_layer_are_what_is_trained(tmp_path: Path) -> None:
    save_file(build(TEXT, (5,), 3, 1).state_dict(), tmp_path / "w.safetensors")
    module, spec = build(TEXT, (5,), 3, 2), like(TEXT, lora=Lora(rank=2))
    start_from(spec, module, tmp_path, 0)
    layers = [name for name, layer in module.named_modules() if isinstance(layer, LowRankLayer)]
    assert len(layers) == 2 * 4
    assert trained(module) == {
        *(f"{name}.{part}.weight" for name in layers for part in ("down", "up")),
        *("head.weight", "head.bias"),
    }
    sizes: dict[str, int] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            owner = name.rpartition(".")[0]
            sizes[owner] = sizes.get(owner, 0) + parameter.numel()
    assert layer_sizes(spec, (5,), 3) == tuple(sizes.values())


def test_merged_adapters_compute_the_same_and_need_no_adapters() -> None:
    plain, module = adapted()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    state = merge_adapters(module, module.state_dict())
    assert state.keys() == plain.state_dict().keys()
    x = torch.randint(11, (4, 5)).float()
    assert not torch.allclose(plain(x), module(x), atol=1e-2)
    plain.load_state_dict(state)
    torch.testing.assert_close(plain(x), module(x), atol=1e-5, rtol=1e-5)
    untouched = build(MLP, (4,), 3, 0)
    assert merge_adapters(untouched, untouched.state_dict()).keys() == untouched.state_dict().keys()
