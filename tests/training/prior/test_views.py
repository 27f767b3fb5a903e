"""Views: of their own image alone, in range, as often as the generator says."""

from __future__ import annotations

import pytest
import torch

from dprecipe.training.prior.learn import cut_out, make_view, recolour


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("channels", [1, 3])
def test_views_are_images_in_range_and_follow_the_seed(channels: int) -> None:
    images = torch.rand(9, channels, 12, 10, generator=seeded())
    view = make_view(images, seeded(1))
    assert view.shape == images.shape
    assert view.min() >= 0
    assert view.max() <= 1
    assert torch.equal(view, make_view(images, seeded(1)))
    assert not torch.equal(view, make_view(images, seeded(2)))


def test_a_view_depends_on_its_own_image_alone() -> None:
    images = torch.rand(6, 3, 8, 8, generator=seeded())
    changed = images.clone()
    changed[2] = 0.5
    moved = (make_view(images, seeded(1)) != make_view(changed, seeded(1))).flatten(1).any(1)
    assert moved.nonzero().flatten().tolist() == [2]


def test_a_part_of_a_flat_image_is_flat() -> None:
    flat = torch.full((50, 1, 9, 9), 0.25)
    assert torch.allclose(cut_out(flat, seeded()), flat, atol=1e-6)


def test_a_cut_shows_no_more_than_the_image_and_half_are_mirrored() -> None:
    ramp = torch.linspace(0, 1, 32).expand(400, 1, 32, 32)
    cut = cut_out(ramp, seeded())
    assert cut.min() >= 0
    assert cut.max() <= 1
    mirrored = (cut[:, 0, 5, 0] > cut[:, 0, 5, -1]).float().mean().item()
    assert 0.4 < mirrored < 0.6
    shown = (cut.amax((1, 2, 3)) - cut.amin((1, 2, 3))).min().item()
    assert shown > 0.35  # the narrowest part: √(0.3 · 0.87)


def test_a_fifth_of_colour_images_turn_grey_and_grey_ones_stay() -> None:
    images = torch.rand(1000, 3, 2, 2, generator=seeded())
    grey = (recolour(images, seeded(1)).std(1).amax((1, 2)) < 1e-6).float().mean().item()
    assert 0.15 < grey < 0.25
