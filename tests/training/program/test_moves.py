import pytest
import torch
from torch import Tensor

from dprecipe.language.training import Affine
from dprecipe.training.program.moves import augmentation_moves

STILL = {"degrees": 0, "scale": 0, "shear": 0, "shift": 0}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 200, channels: int = 1, height: int = 12, width: int = 12) -> Tensor:
    """Smooth blobs in the middle, so that what an image loses at its edges does not count."""
    rows, columns = torch.arange(height)[:, None] - (height - 1) / 2, torch.arange(width) - (width - 1) / 2
    return torch.exp(-(rows**2 + 2 * columns**2) / 6).expand(count, channels, height, width).contiguous()


def centres(x: Tensor) -> Tensor:
    """Rows and columns of each image's centre of mass, (B, 2)."""
    mass = x.sum((1, 2, 3))
    rows = (x.sum((1, 3)) * torch.arange(x.shape[2])).sum(1) / mass
    columns = (x.sum((1, 2)) * torch.arange(x.shape[3])).sum(1) / mass
    return torch.stack([rows, columns], 1)


def spread(x: Tensor) -> Tensor:
    """Rows' and columns' variance, and their covariance, (B, 3)."""
    mass, centre = x.sum((1, 2, 3)), centres(x)
    rows = torch.arange(x.shape[2]) - centre[:, :1]
    columns = torch.arange(x.shape[3]) - centre[:, 1:]
    y = x.sum(1)
    second = (rows**2)[:, :, None], (columns**2)[:, None, :], rows[:, :, None] * columns[:, None, :]
    return torch.stack([(y * weight).sum((1, 2)) / mass for weight in second], 1)


def test_nothing_to_move() -> None:
    x = torch.rand((5, 3, 9, 14), generator=generator())
    assert torch.allclose(augmentation_moves(Affine(**STILL), generator())(x), x, atol=1e-5)


def test_each_image_has_its_own_draw_and_the_generator_repeats_it() -> None:
    x = images()
    one, same, other = (augmentation_moves(Affine(), generator(seed))(x) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert len(one.flatten(1).unique(dim=0)) == len(x)
    assert one.shape == x.shape


def test_shifts_are_uniform_up_to_their_part_of_the_image() -> None:
    moved = centres(augmentation_moves(Affine(**STILL | {"shift": 0.1}), generator())(images())) - centres(images())
    assert moved.abs().max() <= 0.1 * 12 + 0.02
    assert moved.abs().max() > 0.09 * 12
    # 400 draws of a standard deviation of 0.69 pixels: the mean is within 0.12, 3.5 of its own
    assert moved.mean().abs() < 0.12
    assert float(moved.std()) == pytest.approx(1.2 / 3**0.5, rel=0.1)


def test_scale_stays_within_its_bounds() -> None:
    result, before = (
        spread(augmentation_moves(Affine(**STILL | {"scale": 0.2}), generator())(images())),
        spread(images()),
    )
    ratios = (result[:, :2] / before[:, :2]).sqrt()
    assert ratios.min() > 1 / 1.2 - 0.06  # interpolation blurs a little
    assert ratios.max() < 1 / 0.8 + 0.06
    assert ratios.std() > 0.05


@pytest.mark.parametrize("key", ["degrees", "shear"])
def test_turns_and_shears_lean_either_way(key: str) -> None:
    bound = 20.0 if key == "degrees" else 0.3
    result, before = spread(augmentation_moves(Affine(**STILL | {key: bound}), generator())(images())), spread(images())
    lean = result[:, 2]
    assert lean.min() < -0.1
    assert lean.max() > 0.1
    assert before[:, 2].abs().max() < 1e-5
    assert torch.allclose(
        centres(augmentation_moves(Affine(**STILL | {key: bound}), generator())(images())), centres(images()), atol=0.02
    )


def test_what_comes_in_from_outside_is_zero() -> None:
    x = torch.ones((50, 1, 10, 10))
    moved = augmentation_moves(Affine(**STILL | {"shift": 0.5}), generator())(x)
    assert float(moved.min()) == 0
    assert float(moved.max()) <= 1 + 1e-6
