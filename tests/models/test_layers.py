"""Layers of the zoo against their definitions."""

from __future__ import annotations

import pytest
import torch

from dprecipe.models.zoo.layers import StandardisedConv2d, standardise_weights


def test_kernels_are_standardised_each_by_itself() -> None:
    torch.manual_seed(0)
    weight = torch.randn(5, 3, 4, 2) * torch.tensor([0.1, 1, 10, 0.5, 2]).view(5, 1, 1, 1) + 3
    result = standardise_weights(weight).flatten(1)
    torch.testing.assert_close(result.mean(1), torch.zeros(5), atol=1e-6, rtol=0)
    torch.testing.assert_close(result.var(1, correction=0), torch.full((5,), 1 / 24))


def test_a_constant_kernel_is_zero_and_has_a_gradient() -> None:
    weight = torch.full((2, 3, 3, 3), 0.5, requires_grad=True)
    standardise_weights(weight).sum().backward()
    assert not standardise_weights(weight).any()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (2, 2)])
def test_a_standardised_convolution_is_one_of_standardised_kernels(stride: int, groups: int) -> None:
    torch.manual_seed(0)
    layer = StandardisedConv2d(4, 6, 3, stride, padding=1, groups=groups)
    plain = torch.nn.Conv2d(4, 6, 3, stride, padding=1, groups=groups)
    plain.load_state_dict({"weight": standardise_weights(layer.weight).detach(), "bias": layer.bias.detach()})
    x = torch.randn(2, 4, 7, 6)
    torch.testing.assert_close(layer(x), plain(x))
    torch.testing.assert_close(layer(x[:, :, :3, :3]), plain(x[:, :, :3, :3]))
    with torch.no_grad():
        layer.weight.mul_(7).add_(2)
    torch.testing.assert_close(layer(x), plain(x), atol=1e-5, rtol=1e-4)
