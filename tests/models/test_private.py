from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from dprecipe.models.build import build  # noqa: E402
from dprecipe.models.modules.inspection import inspect_module  # noqa: E402
from dprecipe.models.schema import Cnn  # noqa: E402


class OwnBatchNorm(nn.BatchNorm2d):
    """A subclass, as libraries have them."""


class OwnStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(3))


def frozen() -> nn.Module:
    layer = nn.BatchNorm2d(24).eval()
    return layer.requires_grad_(False)


REFUSED = {
    "batch norm": (nn.BatchNorm1d(4), "P120"),
    "without parameters": (nn.BatchNorm1d(4, affine=False), "P120"),
    "without statistics": (nn.BatchNorm2d(4, track_running_stats=False), "P120"),
    "frozen": (frozen(), "P120"),
    "a subclass": (OwnBatchNorm(4), "P120"),
    "lazy": (nn.LazyBatchNorm2d(), "P120"),
    "synchronised": (nn.SyncBatchNorm(4), "P120"),
    "instance norm with statistics": (nn.InstanceNorm2d(4, track_running_stats=True), "P121"),
    "statistics of one's own": (OwnStatistics(), "P122"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_t3_layers_that_mix_records_are_refused_at_any_depth(name: str) -> None:
    layer, code = REFUSED[name]
    for module in (layer, nn.Sequential(nn.Identity(), nn.ModuleDict({"deep": nn.Sequential(layer)}))):
        result = inspect_module(module)
        assert [finding.code for finding in result] == [code]
        assert result[0].is_error
        assert type(layer).__name__ in result[0].message
    assert "'1.deep.0'" in result[0].message


def test_the_replacement_is_named_and_valid() -> None:
    result = inspect_module(nn.Sequential(nn.BatchNorm2d(24)))
    assert "torch.nn.GroupNorm(12, 24)" in result[0].remedy
    nn.GroupNorm(12, 24)(torch.zeros(1, 24, 2, 2))


def test_layers_that_look_at_one_record_are_fine() -> None:
    module = nn.Sequential(
        nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4), nn.Dropout(0.5), nn.Embedding(3, 4), nn.LSTM(4, 4)
    )
    assert inspect_module(module) == []
    assert inspect_module(build(Cnn(kind="cnn", preset="tempered-cifar"), (3, 32, 32), 10, 0)) == []
