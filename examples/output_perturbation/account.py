"""From a recipe's constants to the one event, the noise solved."""

from __future__ import annotations

from dprecipe.contract.mechanism import Facts, Planned
from dprecipe.contract.plan import Assumption
from dprecipe.data.facts import feature_norm
from dprecipe.faults import Finding, PlanRefused
from dprecipe.models.schema import SoftmaxRegression
from dprecipe.privacy import accountants, calibrate
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from output_perturbation.events import NoisyMinimum
from output_perturbation.plan import OutputPerturbationPlan
from output_perturbation.schema import OutputPerturbation

MIN_L2 = 1e-4
"""With less the descent takes long, and noise drowns the minimum."""


def check(spec: OutputPerturbation, facts: Facts) -> list[Finding]:
    """What makes this block impossible or unaccountable."""
    model, found = facts.model, []
    if not isinstance(model, SoftmaxRegression) or not model.l2 >= MIN_L2:
        message = f"output perturbation needs a softmax_regression with an l2 of at least {MIN_L2:g}"
        found.append(Finding("P165", message, "set model to {kind: softmax_regression, l2: 0.05}", "model"))
    if feature_norm(facts.data) is None:
        remedy = "end data.preprocess with clip_features: {norm: 1.0}"
        path = "data.preprocess" if facts.data.preprocess else "data"
        found.append(Finding("P164", "the norm of the features has no bound", remedy, path))
    if facts.data.unit != "record":
        found.append(
            Finding(
                "P172", "only one record is protected", "use mechanism.kind dpsgd, which protects units", "data.unit"
            )
        )
    return found


def plan(spec: OutputPerturbation, facts: Facts) -> Planned[OutputPerturbationPlan]:
    """Solve the noise.

    Raises:
        PlanRefused: no noise keeps the budget, or the noise given does not (P102).
    """
    budget, multiplier, solved = facts.budget, spec.noise_multiplier, {}
    terms = (budget.delta, Neighbouring(budget.neighbouring), budget.accountant)
    if multiplier == "auto":
        assert facts.cap is not None  # noqa: S101  # of two `auto` the planner refuses one
        try:
            multiplier = calibrate.noise_multiplier(lambda m: [Charge(NoisyMinimum(m), 1)], facts.cap, *terms)
        except calibrate.CalibrationError as error:
            raise PlanRefused([Finding("P102", str(error), "raise budget.epsilon", "budget.epsilon")]) from None
        solved["mechanism.noise_multiplier"] = multiplier
    release = Charge(NoisyMinimum(multiplier), 1)
    spent = accountants.epsilon([release], *terms)
    if facts.cap is not None and spent > facts.cap:
        remedy = "set mechanism.noise_multiplier to auto"
        raise PlanRefused([Finding("P102", f"the release spends ε = {spent:.4g}", remedy, "budget.epsilon")])
    model, norm = facts.model, feature_norm(facts.data)
    assert isinstance(model, SoftmaxRegression)  # noqa: S101  # `check` comes first
    assert norm is not None  # noqa: S101
    planned = OutputPerturbationPlan(facts.size, norm, model.bias, model.l2, release)
    return Planned(planned, solved, _assumptions(facts))


def _assumptions(facts: Facts) -> tuple[Assumption, ...]:
    restarts = "whether and when the run was interrupted and resumed does not depend on the records"
    return (
        Assumption("features", "features are clipped to the declared norm before they are used", "code"),
        Assumption("minimum", "gradient descent ends within the stated distance of the minimum", "test"),
        Assumption("minimum", "nothing computed from the minimum leaves the run before noise is added", "code"),
        Assumption("restarts", restarts, "declaration"),
        Assumption("size", f"the number of records, {facts.size}, is public", "declaration"),
        Assumption("floating_point", "rounding of float64 noise gives nothing away", "declaration"),
    )
