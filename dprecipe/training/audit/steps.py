"""Depth `steps` of mechanisms of noisy sums: a canary in or out of thousands of the program's own steps.

In each step the canary, a synthetic unit whose gradient fills the clip norm, is in the batch or not, by the auditor's
coin. The attacker knows everything else: the others' sum, the canary's gradient and the divisor. It says "in" where
that is likelier. Along that gradient, what the optimiser gets is a normal number of deviation 1 and mean 0, or at most
μ = 1/σ.

Every step begins from the same weights, so that both sums are known once and for all. Where noise is correlated over
steps, a canary shows in the sums after its own, too: a trial is as many steps as it shows in, whitened.

Source: Nasr et al. 2023, "Tight Auditing of Differentially Private Machine Learning", Section 5.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dprecipe.models.modules.inspection import is_draw_free
from dprecipe.privacy.audit.implied import step_curve, step_mu, step_response
from dprecipe.privacy.audit.results import AttackTrials
from dprecipe.privacy.correlation.whiten import Whitener
from dprecipe.privacy.events import Charge
from dprecipe.training.audit.noise import divisor_of
from dprecipe.training.audit.program import Bench, search_sums
from dprecipe.training.audit.request import Attack, AuditEvidence
from dprecipe.training.audit.rig import Rig, Seen, move_between
from dprecipe.training.audit.sums import Crafted
from dprecipe.training.run.gate import multiplier_of

OTHERS = 1
"""Units beside the canary in each batch; none where records or the model draw numbers, which another unit changes."""
AS_GOOD = 0.99
"""A canary at the first weights is taken if it moves the sum nearly as far as the best one at others."""
WEAK = 0.9
"""A canary that moves the sum by less, in bounds, gets a remark: the lower bound can't come near the claim."""


def audit_steps(bench: Bench, steps: int, show: Callable[[int], None]) -> AuditEvidence:
    """Counts of the attack."""
    start, event = min(bench.phases, key=lambda phase: multiplier_of(phase[1]))
    records = bench.records()
    store = bench.store(records)
    with bench.open(store, "canary", Charge(event, 1)) as rig:
        rig.module.steps_done = start
        search = search_sums(bench, rig, records, store)
        search.search()
    best = search.found[0].move
    canary = next(found for found in search.found if found.move >= (AS_GOOD if found.scale == 1 else 1.0) * best)
    draws = store.augments or not is_draw_free(bench.program.model)
    others = 0 if draws else OTHERS
    records.write(others, canary.features, canary.label)
    counts = {True: [0, 0], False: [0, 0]}
    rows = len(step_response(event))
    with bench.open(store, "steps", Charge(event, -(-steps * rows // event.steps))) as rig:
        attacker = _Attacker(rig, start, canary, others, draws=draws)
        coins = np.unpackbits(np.frombuffer(secrets.token_bytes(steps // 8 + 1), np.uint8))[:steps]
        for number, coin in enumerate(coins.astype(bool).tolist()):
            counts[coin][0] += attacker.guess(coin)
            counts[coin][1] += 1
            show(number + 1)
    (positives_in, trials_in), (positives_out, trials_out) = counts[True], counts[False]
    claimed = step_mu(event)
    trials = AttackTrials(
        form="rate" if claimed is None else "mu",
        positives_in=positives_in,
        trials_in=max(1, trials_in),
        positives_out=positives_out,
        trials_out=max(1, trials_out),
    )
    text = "a canary is in or out of a step: who knows all else can tell no better than the claim allows"
    curve = None if claimed is not None else step_curve(event)
    attack = Attack("steps", "canary_in_steps", text, trials, claimed, curve=curve, of_step=claimed is not None)
    weak = f"steps: no synthetic record moves a sum by more than {attacker.length:.2f} of its bound: small faults hide"
    return AuditEvidence(attacks=(attack,), remarks=(weak,) if attacker.length < WEAK else ())


class _Attacker:
    """Attacker on one step: what it knows beforehand, and its guess afterwards."""

    def __init__(self, rig: Rig, start: int, canary: Crafted, others: int, *, draws: bool) -> None:
        """`draws`: each step's sums are of draws of its own, and are asked for before it."""
        self._rig = rig
        self._start = start
        self._draws = draws
        self._rows = len(step_response(rig.event))
        rig.module.steps_done = start
        with torch.no_grad():
            for parameter in rig.trained:
                parameter.mul_(canary.scale)
        self._weights = [parameter.detach().clone() for parameter in rig.trained]
        self._sums = rig.module.sums.state()
        self._units = {True: np.arange(others + 1), False: np.arange(others)}
        self._known = {coin: rig.sum(units) for coin, units in self._units.items()}
        self.length = move_between(self._known[True], self._known[False])
        """Distance that the canary moves the sum, in its bound."""
        self._whitener: Whitener[Tensor] = Whitener(rig.event.strategy)  # of all noise so far

    def guess(self, coin: bool) -> bool:
        """Attacks one step; returns True if the attacker says "in", which is likelier by what the step and those after
        it release. The coin is then known to it. Where noise is not finite, it says "out", and begins again."""
        answers = {True: self._whitener.copy(), False: self._whitener}
        ratio = 0.0
        for row in range(self._rows):
            self._restore()
            if self._draws:
                self._known = {answer: self._rig.sum(units) for answer, units in self._units.items()}
            seen = self._rig.step(self._units[coin and row == 0])
            inside = answers[True].take(self._find_noise(seen, row == 0))
            outside = answers[False].take(self._find_noise(seen, False))
            ratio += _log_ratio(seen, inside, outside)
        self._whitener = answers[coin] if math.isfinite(ratio) else Whitener(self._rig.event.strategy)
        return ratio > 0

    def _find_noise(self, seen: Seen, canary: bool) -> Tensor:
        """Returns the noise of a step, in scales, if the canary was in it or not."""
        size, divisor = len(seen.gradient), divisor_of(seen)
        released = seen.noisy[:size] if divisor is None else seen.gradient * divisor
        scale = seen.scale[:size] if isinstance(seen.scale, Tensor) else seen.scale
        return (released - self._known[canary].value[:size]) / scale

    def _restore(self) -> None:
        """Goes back to the first weights."""
        with torch.no_grad():
            for parameter, weights in zip(self._rig.trained, self._weights, strict=True):
                parameter.copy_(weights)
        self._rig.module.steps_done = self._start
        self._rig.module.sums.restore(self._sums)


def _log_ratio(seen: Seen, inside: Tensor, outside: Tensor) -> float:
    """Returns the log-likelihood ratio of noise with the canary against noise without it."""
    if seen.distribution.family == "gaussian":
        return float((outside - inside) @ (outside + inside)) / 2
    log_density = seen.distribution.log_density
    return float((log_density(inside.numpy()) - log_density(outside.numpy())).sum())
