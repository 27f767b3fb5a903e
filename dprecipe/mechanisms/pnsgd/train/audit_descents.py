"""Descents of an audit, on synthetic records: the engine's own steps, with no noise, or with secret noise of its own.

No other module of an audit makes noise. Nothing private is read, so nothing is spent and no ledger is asked.
"""

from __future__ import annotations

import math

import numpy as np

from dprecipe.data.records import Records
from dprecipe.mechanisms.pnsgd.plan import PlannedDescent
from dprecipe.mechanisms.pnsgd.schedule import Stage
from dprecipe.mechanisms.pnsgd.train.descent import Descent, Floats, Noise, State
from dprecipe.mechanisms.pnsgd.train.run import PnsgdProgram
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets


def step_without_noise(
    program: PnsgdProgram, records: Records, batch: int, rate: float, w: Floats, number: int = 0
) -> Floats:
    """Returns the iterate after one step of the engine from `w`: that with this number, from 0, of a pass over the
    records."""
    noise = Noise(Distribution("gaussian"), Secrets(), math.prod(program.objective.shape))
    state = State(w.copy(), number, number + 1, None)
    descent = Descent(
        program.objective, [Stage(number + 1, rate, 0.0)], batch, records, noise, state, program.backend()
    )
    descent.advance(1)
    return descent.state.iterate


def descend(
    program: PnsgdProgram,
    planned: PlannedDescent,
    stages: tuple[Stage, ...],
    records: Records,
    start: Floats,
    canary: int,
) -> tuple[Floats, int]:
    """Makes a whole run of the engine from `start`, with an order, a stop and noise of its own. Returns its last
    iterate, and the batch, from 0, that has the record `canary`."""
    secrets = Secrets()
    permuted, random_stop = planned.order == "permuted", planned.stop == "random"
    steps = sum(stage.steps for stage in stages)
    state = State.fresh(start.copy(), len(records), steps, secrets, permuted=permuted, random_stop=random_stop)
    noise = Noise(Distribution(planned.family), secrets, math.prod(program.objective.shape))
    descent = Descent(program.objective, stages, planned.batch_size, records, noise, state, program.backend())
    place = canary if state.order is None else int(np.flatnonzero(state.order == canary)[0])
    while state.step < state.stop:
        descent.advance()
    return descent.state.iterate, place // planned.batch_size
