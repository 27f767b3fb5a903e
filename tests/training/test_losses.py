import pytest
import torch

from dprecipe.training.losses import cross_entropy, generalised_cross_entropy

OUTPUTS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 30.0, 0.0], [40.0, 0.0, 0.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2])


def probabilities(outputs: torch.Tensor) -> torch.Tensor:
    return torch.softmax(outputs, 1)[torch.arange(3), LABELS]


@pytest.mark.parametrize("q", [0.1, 0.7, 0.99])
def test_generalised_cross_entropy_is_its_formula(q: float) -> None:
    expected = (1 - probabilities(OUTPUTS) ** q) / q
    assert torch.allclose(generalised_cross_entropy(OUTPUTS, LABELS, q), expected)


def test_cross_entropy_is_its_limit() -> None:
    exact = cross_entropy(OUTPUTS, LABELS)
    assert torch.equal(generalised_cross_entropy(OUTPUTS, LABELS, 0), exact)
    assert torch.allclose(generalised_cross_entropy(OUTPUTS, LABELS, 1e-9), exact, rtol=1e-6)


def test_its_gradient_is_that_of_cross_entropy_times_a_power_of_the_label_s_probability() -> None:
    outputs = OUTPUTS.clone().requires_grad_()
    (plain,) = torch.autograd.grad(cross_entropy(outputs, LABELS).sum(), outputs)
    (robust,) = torch.autograd.grad(generalised_cross_entropy(outputs, LABELS, 0.7).sum(), outputs)
    assert torch.allclose(robust, plain * probabilities(OUTPUTS)[:, None] ** 0.7)
