"""The two curves of Asoodeh, Diaz & Calmon 2020, for comparison with our bounds: no guarantee rests on them."""

from __future__ import annotations

import math

from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.theory import contraction
from dprecipe.mechanisms.pnsgd.theory.cases import check_position, find_batch


def comparison_at(event: ProjectedDescent, position: int, epsilon: float, contraction_: float) -> dict[str, float]:
    """Returns δ at ε by the paper's two curves, for the record at `position`, with the paper's M. For comparison only.

    Empty unless the run is one pass of equal steps with Gaussian noise to the last step, as in the paper.

    Raises:
        ValueError: as `delta_at`.
    """
    check_position(event, position)
    if not epsilon >= 0:
        raise ValueError(f"expected epsilon >= 0, got {epsilon}")
    if event.family != "gaussian" or event.stop != "last" or len(event.stages) > 1 or event.steps > event.batches:
        return {}
    ((steps, multiplier, _, diameter),) = event.stages
    later = steps - find_batch(event, position)
    if later < 0:
        return {"proposition_1": 0.0, "theorem_4": 0.0}
    return {
        "proposition_1": proposition_1(epsilon, 1 / multiplier, contraction_, later),
        "theorem_4": theorem_4(epsilon, 1 / multiplier, contraction_ * diameter, later),
    }


def theorem_4(epsilon: float, a: float, reach: float, later: int) -> float:
    """Returns δ of Gaussian noise: θ_ε(a) θ_ε(reach)^later.

    Source: Asoodeh, Diaz & Calmon 2020, Theorem 4.
    """
    return math.exp(
        float(contraction.log_gaussian(epsilon, a))
        + (later * float(contraction.log_gaussian(epsilon, reach)) if later else 0.0)
    )


def proposition_1(epsilon: float, a: float, contraction_: float, later: int) -> float:
    """Returns exp(-(ε - κ)²/(4κ)) where ε > κ, else 1: the Rényi bound that the paper compares its own with.

    κ = (a²/2) M^(later+1)/later, and a²/2 where no step comes later. For comparison only.

    Source: Asoodeh, Diaz & Calmon 2020, Proposition 1, after Balle et al. 2019.
    """
    kappa = a * a / 2 * (contraction_ ** (later + 1) / later if later else 1.0)
    if not epsilon > kappa:
        return 1.0
    return math.exp(-((epsilon - kappa) ** 2) / (4 * kappa)) if kappa > 0 else 0.0


def paper_contraction(learning_rate: float, strong_convexity: float, smoothness: float) -> float:
    """Returns M = √(1 - 2ηβρ/(β + ρ)) of a gradient step; 1 without strong convexity. Needs η <= 2/(β + ρ) and ρ <= β.

    Source: Asoodeh, Diaz & Calmon 2020, Section 4; Hardt, Recht & Singer 2016, Lemma 3.7.

    Raises:
        ValueError: a condition fails.
    """
    rho, beta = strong_convexity, smoothness
    if not (0 <= rho <= beta and 0 < learning_rate * (beta + rho) <= 2):
        raise ValueError("expected 0 <= strong convexity <= smoothness and 0 < learning rate <= 2/(their sum)")
    return math.sqrt(max(0.0, 1 - 2 * learning_rate * beta * rho / (beta + rho)))
