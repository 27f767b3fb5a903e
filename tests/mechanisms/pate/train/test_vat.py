import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from dprecipe.language.training import Vat
from dprecipe.mechanisms.pate.train.student import find_adversarial_shift, measure_divergence, unsupervised_loss
from dprecipe.models.build import build
from dprecipe.models.schema import Cnn, Mlp

SHAPE = (1, 8, 8)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 32, seed: int = 0) -> Tensor:
    return torch.rand((count, *SHAPE), generator=generator(seed))


def network(seed: int = 0) -> nn.Module:
    module = build(Mlp(kind="mlp", hidden=(32,), activation="relu"), SHAPE, 10, seed)
    with torch.no_grad():  # initial weights predict almost the same for all: make the prediction bend
        for parameter in module.parameters():
            parameter.mul_(3)
    return module


def vat(**changes: float) -> Vat:
    return Vat.model_validate({"kind": "vat", "radius": 0.5, **changes})


def log_p(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return log_softmax(module(x), 1)


def test_divergence_is_that_of_two_distributions() -> None:
    p, q = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.1, 0.3, 0.6]])
    expected = sum(a * math.log(a / b) for a, b in ((0.7, 0.1), (0.2, 0.3), (0.1, 0.6)))
    assert float(measure_divergence(p.log(), q.log() + 5)) == pytest.approx(expected, rel=1e-5)
    assert float(measure_divergence(p.log(), p.log() - 2)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_adversarial_direction_beats_random_ones(seed: int) -> None:
    """For nearly all records, and by far on average: in 64 dimensions a random direction is almost orthogonal."""
    module, x = network(seed), images(64, seed)
    p = log_p(module, x)
    actual = find_adversarial_shift(module, x, p, vat(), generator(seed))
    assert torch.allclose(actual.flatten(1).norm(dim=1), torch.full((64,), 0.5), rtol=1e-4)
    drawn = torch.randn((20, *x.shape), generator=generator(seed + 100))
    drawn = 0.5 * drawn / drawn.flatten(2).norm(dim=2).view(20, 64, 1, 1, 1)
    with torch.no_grad():
        worst = measure_divergence(p, module(x + actual))
        random = torch.stack([measure_divergence(p, module(x + one)) for one in drawn])
    assert (worst > random.mean(0)).float().mean() > 0.95
    assert worst.mean() > 3 * random.mean()


def test_more_iterations_come_closer_to_the_steepest_direction() -> None:
    """Against the largest eigenvector of the divergence's Hessian, which automatic differentiation gives."""
    module, x = network(), images(6).double()
    module.double()
    p = log_p(module, x)

    def alignment(iterations: int) -> float:
        actual = find_adversarial_shift(module, x, p, vat(power_iterations=iterations, xi=1e-3), generator(1))
        total = 0.0
        for i in range(len(x)):
            hessian = torch.autograd.functional.hessian(
                lambda r, i=i: measure_divergence(p[i : i + 1], module(x[i : i + 1] + r.view(1, *SHAPE)))[0],
                torch.zeros(64, dtype=torch.float64),
            )
            top = torch.linalg.eigh(hessian).eigenvectors[:, -1]
            total += abs(float(top @ actual[i].flatten())) / 0.5
        return total / len(x)

    assert alignment(1) > 0.5
    assert alignment(40) > 0.97


def test_the_search_leaves_the_weights_gradients_alone() -> None:
    module, x = network(), images()
    module(x).sum().backward()
    before = [parameter.grad.clone() for parameter in module.parameters()]
    find_adversarial_shift(module, x, log_p(module, x), vat(power_iterations=3), generator())
    assert all(torch.equal(a, p.grad) for a, p in zip(before, module.parameters(), strict=True))
    assert not x.requires_grad


def test_the_loss_reaches_every_weight_and_takes_the_given_prediction_as_it_is() -> None:
    module, x = network(), images()
    unsupervised_loss(module, x, vat(entropy=0), generator()).backward()
    actual = [parameter.grad.clone() for parameter in module.parameters()]
    assert all(grad.abs().sum() > 0 for grad in actual)
    p = log_p(module, x)
    worst = x + find_adversarial_shift(module, x, p, vat(), generator())
    module.zero_grad()
    measure_divergence(p, module(worst)).mean().backward()
    for grad, parameter in zip(actual, module.parameters(), strict=True):
        assert torch.allclose(grad, parameter.grad, atol=1e-6)


def test_weights_of_the_two_parts() -> None:
    module, x = network(), images()
    smooth, sure = (
        unsupervised_loss(module, x, spec, generator()).item() for spec in (vat(entropy=0), vat(weight=0, entropy=1))
    )
    p = log_p(module, x)
    assert sure == pytest.approx(float(-(p.exp() * p).sum(1).mean()), rel=1e-5)
    both = unsupervised_loss(module, x, vat(weight=2, entropy=0.5), generator()).item()
    assert both == pytest.approx(2 * smooth + 0.5 * sure, rel=1e-5)


def test_moved_images_shall_be_predicted_like_the_image() -> None:
    module, x = network(), images()
    tiny = vat(radius=1e-6, entropy=0)
    assert unsupervised_loss(module, x, tiny, generator()).item() == pytest.approx(0, abs=1e-6)
    expected = measure_divergence(log_p(module, x), module(x.flip(3))).mean()
    actual = unsupervised_loss(module, x, tiny, generator(), lambda images: images.flip(3))
    assert actual.item() == pytest.approx(expected.item(), rel=1e-4)


def test_layers_that_draw_are_still_and_left_as_they_were() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 10))
    module.train()
    module[1].eval()
    one, two = (unsupervised_loss(module, images(), vat(), generator()).item() for _ in range(2))
    assert one == two
    assert [layer.training for layer in module] == [True, False, True, True, True]
    assert module.training


def test_saturated_predictions_give_a_change_of_the_right_length_and_a_finite_gradient() -> None:
    module, x = network(), images()
    with torch.no_grad():
        module[-1].weight.mul_(1e6)
    actual = find_adversarial_shift(module, x, log_p(module, x), vat(), generator())
    assert torch.allclose(actual.flatten(1).norm(dim=1), torch.full((32,), 0.5), rtol=1e-4)
    unsupervised_loss(module, x, vat(), generator()).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in module.parameters())


@pytest.mark.parametrize("shape", [(5,), (3, 13, 14)])
def test_features_of_any_shape(shape: tuple[int, ...]) -> None:
    spec = Mlp(kind="mlp", hidden=(4,)) if len(shape) == 1 else Cnn(kind="cnn", preset="lenet-norm")
    x = torch.rand((4, *shape), generator=generator())
    assert math.isfinite(unsupervised_loss(build(spec, shape, 3, 0), x, vat(), generator()).item())
