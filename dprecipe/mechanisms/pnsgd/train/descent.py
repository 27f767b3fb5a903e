"""Projected noisy descent on a linear predictor: w <- Proj(w - η [mean slope of a batch's losses + λ w + noise]).

Guarantees:
- Every row of features has at most the norm of its objective, and every target is within its range, whatever the source
  returns, so the proven constants hold.
- Every iterate is in the set.
- A pass uses each record once, in batches divided by the declared batch size, even if the last one is short.
- The noise of a step is independent of that of all others and has the scale of the step's stage.
- Nothing is shown, written or returned except on request.

The implementation was chosen by measurement (`benchmarks/pnsgd.py`): float64 numpy arrays, with rows cast from float32
and noise drawn for many steps at once, in blocks of `NUMBERS` numbers, which stay in the cache. Batches of one record
and a scalar predictor use BLAS level 1, with the slope in plain Python: less than half the time of numpy's in-place
operations and at most a fifth of torch's, because such a step is mostly call overhead. Batches of several records are
two matrix products. With a thousand features, noise takes nine tenths of the time of single records, and an eighth of
that of batches of 64. On an accelerator the same formulas run in torch (`run.DeviceBackend`).

Axes: B records of a batch, C classes, D features with the bias, P parameters, T steps. The parameters are (D,), or (C,
D) where a predictor has a number for each class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.mechanisms.pnsgd.schedule import Stage
from dprecipe.mechanisms.pnsgd.train.losses import Loss, Softmax
from dprecipe.mechanisms.pnsgd.train.sets import ROUNDING, Ball, ConvexSet
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import draw_noise
from dprecipe.noise.entropy import Secrets

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

NUMBERS = 1 << 17
"""Number of values in a block of noise, and of features: 1 MiB each."""


class DescentRecords(Protocol):
    """The source of rows: `dprecipe.data.records.RecordSource`."""

    def __len__(self) -> int: ...
    def batch(self, indices: Indices | slice) -> tuple[NDArray[np.float32], NDArray[Any]]: ...


def shape_of(loss: Loss, columns: int) -> tuple[int, ...]:
    """Returns the shape of the parameters of a loss on this number of features, the bias among them."""
    return (loss.classes, columns) if isinstance(loss, Softmax) else (columns,)


@final
@dataclass(frozen=True, slots=True)
class Objective:
    """The loss, and the set that it is minimised on."""

    loss: Loss
    width: int
    """Number of features read from a record; 0 for a location."""
    bias: bool
    """True if there is a constant feature of 1; for a location, the only feature."""
    feature_norm: float
    """R: largest L2 norm of a record's features, without the bias."""
    l2: float
    within: ConvexSet

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameters."""
        return shape_of(self.loss, self.columns)

    @property
    def columns(self) -> int:
        return self.width + self.bias

    def rows(self, features: NDArray[Any], labels: NDArray[Any]) -> tuple[Floats, NDArray[Any]]:
        """Returns features (B, …) and labels (B,) as a step takes them: bounded rows (B, D), the bias last, and targets
        (B,).

        A row with a feature that is not finite becomes zero, as in `dprecipe.data.preprocess.clip_features`.
        """
        x_BD = np.empty((len(labels), self.columns))
        if self.width:
            own_BD = x_BD[:, : self.width]
            own_BD[:] = features.reshape(len(labels), -1)
            squares_B = np.einsum("bd,bd->b", own_BD, own_BD)
            max_norm = self.feature_norm * (1 - ROUNDING)
            if not (squares_B <= max_norm * max_norm).all():  # written so that NaN fails
                own_BD[~np.isfinite(squares_B)] = 0.0
                largest_B = np.maximum(np.sqrt(np.einsum("bd,bd->b", own_BD, own_BD)), max_norm)
                own_BD *= (max_norm / largest_B)[:, None]
        x_BD[:, self.width :] = 1.0
        return x_BD, self.loss.targets(labels)

    def gradient(self, w: Any, x_BD: Any, y_B: Any, xp: Any = np) -> Any:
        """Returns the sum of the records' gradients, in the shape of w, without the regulariser."""
        if w.ndim == 1:
            return self.loss.slope(x_BD @ w, y_B, xp) @ x_BD
        return self.loss.slope(x_BD @ w.T, y_B, xp).T @ x_BD

    def project(self, w: Floats) -> None:
        """Moves w, in place, to the nearest point of the set."""
        self.within.project(w)

    def start(self) -> Floats:
        """Returns the start of every run: the point of the set that is nearest to zero, which is public."""
        w = np.zeros(self.shape)
        self.project(w)
        return w

    def mean_loss(self, w: Floats, records: DescentRecords) -> float:
        """Returns the mean loss over all records, with the regulariser."""
        total, size = 0.0, max(1, NUMBERS // self.columns)
        for start in range(0, len(records), size):
            x_BD, y_B = self.rows(*records.batch(slice(start, start + size)))
            total += float(self.loss.value(x_BD @ w.T, y_B).sum())
        return total / max(1, len(records)) + self.l2 / 2 * float(np.vdot(w, w))


@final
@dataclass(slots=True, eq=False)
class State:
    """The state of a run."""

    iterate: Floats
    step: int
    """Number of steps made."""
    stop: int
    """Number of steps in total; drawn in advance if the stop is random."""
    order: Indices | None
    """Indices of the records in the order of every pass; None: the order of the file."""

    @property
    def finished(self) -> bool:
        return self.step == self.stop

    @staticmethod
    def fresh(start: Floats, size: int, steps: int, secrets: Secrets, *, permuted: bool, random_stop: bool) -> State:
        """Returns the state at the start of a run on `size` records: at `start`, with the order and the length drawn if
        they are random."""
        order = None
        if permuted:
            # 64 random bits a record: two are equal with probability size² / 2^65.
            order = np.argsort(secrets.stream("sampling", 0).words(size)).astype(np.int64)
        stop = 1 + int(secrets.stream("sampling", 1).integers(steps, 1)[0]) if random_stop else steps
        return State(start, 0, stop, order)


@final
class Noise:
    """Independent draws of a distribution of scale 1 for every step; each block of steps has its own stream."""

    def __init__(self, distribution: Distribution, secrets: Secrets, parameters: int) -> None:
        self._distribution = distribution
        self._secrets = secrets
        self._parameters = parameters
        self.block = max(1, NUMBERS // parameters)
        """Number of steps in a block."""
        self._number = -1
        self._block_TP = np.empty((0, parameters))

    def count_remaining(self, step: int) -> int:
        """Counts the steps from this one to the end of its block."""
        return self.block - step % self.block

    def scaled(self, step: int, count: int, stage: Stage) -> Floats:
        """Returns the noise of this step and the next ones of its block, (count, P), times the learning rate and
        negated."""
        return self.of(step, count) * -(stage.learning_rate * stage.noise_scale)

    def of(self, step: int, count: int) -> Floats:
        """Returns the draws of this step and the next ones of its block, (count, P)."""
        number, row = divmod(step, self.block)
        if number != self._number:
            stream = self._secrets.stream("noise", number)
            self._block_TP = draw_noise(self._distribution, stream, self.block * self._parameters).reshape(
                self.block, -1
            )
            self._number = number
        return self._block_TP[row : row + count]


class Backend(Protocol):
    """The implementation of the steps."""

    def place(self, w: Floats) -> None:
        """Takes the parameters."""

    def gradient(self, x_BD: Floats, y_B: NDArray[Any]) -> Any:
        """Returns `Objective.gradient` at the current parameters."""

    def step(self, gradient: Any, shrink: float, noise_P: Floats) -> None:
        """Sets w <- Proj(shrink w + gradient + noise); may overwrite the gradient."""

    def steps(self, x_TBD: Floats, y_TB: NDArray[Any], factor: float, shrink: float, noise_TP: Floats) -> None:
        """Makes one step for each row of noise, on full batches of B records, with gradients times `factor`."""

    def fetch(self) -> Floats:
        """Returns the current parameters."""


@final
class CpuBackend:
    """Steps in numpy and BLAS."""

    def __init__(self, objective: Objective) -> None:
        from scipy.linalg import blas

        self._objective = objective
        self._blas = blas

    def place(self, w: Floats) -> None:
        self._w = w.copy()

    def fetch(self) -> Floats:
        return self._w.copy()

    def gradient(self, x_BD: Floats, y_B: NDArray[Any]) -> Floats:
        gradient: Floats = self._objective.gradient(self._w, x_BD, y_B)
        return gradient

    def step(self, gradient: Floats, shrink: float, noise_P: Floats) -> None:
        gradient += noise_P.reshape(gradient.shape)
        if shrink != 1.0:
            self._w *= shrink
        self._w += gradient
        self._objective.project(self._w)

    def steps(self, x_TBD: Floats, y_TB: NDArray[Any], factor: float, shrink: float, noise_TP: Floats) -> None:
        loss = self._objective.loss
        if x_TBD.shape[1] == 1 and not isinstance(loss, Softmax):
            self._step_single_records(loss.scalar_slope, x_TBD[:, 0], y_TB[:, 0].tolist(), factor, shrink, noise_TP)
            return
        for x_BD, y_B, noise_P in zip(x_TBD, y_TB, noise_TP, strict=True):
            gradient = self.gradient(x_BD, y_B)
            gradient *= factor
            self.step(gradient, shrink, noise_P)

    def _step_single_records(
        self,
        slope: Callable[[float, float], float],
        x_TD: Floats,
        y_T: list[float],
        factor: float,
        shrink: float,
        noise_TD: Floats,
    ) -> None:
        """Makes steps on batches of one record. In place: the iterate is contiguous and float64, as BLAS needs it."""
        objective, w = self._objective, self._w
        ddot, daxpy, dscal = self._blas.ddot, self._blas.daxpy, self._blas.dscal
        around_zero = isinstance(objective.within, Ball) and objective.within.centre is None
        max_norm = objective.within.max_norm if isinstance(objective.within, Ball) else 0.0
        square = max_norm * max_norm
        for x_D, y, noise_D in zip(x_TD, y_T, noise_TD, strict=True):
            step_size = factor * slope(ddot(x_D, w), y)
            if shrink != 1.0:
                dscal(shrink, w)
            daxpy(x_D, w, a=step_size)
            daxpy(noise_D, w)
            if not around_zero:
                objective.project(w)
            else:
                length = ddot(w, w)
                if length > square:
                    dscal(max_norm / length**0.5, w)


@final
class Descent:
    """A run in progress: advances its state by whole steps."""

    def __init__(
        self,
        objective: Objective,
        stages: Sequence[Stage],
        batch: int,
        records: DescentRecords,
        noise: Noise,
        state: State,
        backend: Backend | None = None,
    ) -> None:
        """Takes the CPU if `backend` is left out."""
        self._objective = objective
        self._stages = tuple(stages)
        self._ends = np.cumsum([stage.steps for stage in stages]).tolist()
        self._batch = batch
        self._records = records
        self._batches = -(-len(records) // batch)
        self._noise = noise
        self._state = state
        self._backend = CpuBackend(objective) if backend is None else backend
        self._backend.place(state.iterate)

    @property
    def step(self) -> int:
        """Number of steps made."""
        return self._state.step

    @property
    def pass_ended(self) -> bool:
        """True if the latest step was the last of a pass."""
        return self.step > 0 and self.step % self._batches == 0

    @property
    def state(self) -> State:
        """The current state. Private until the run is finished."""
        self._state.iterate = self._backend.fetch()
        return self._state

    def advance(self, max_steps: int | None = None) -> None:
        """Makes some steps of one pass, one stage and one block, at most `max_steps`."""
        step, objective = self._state.step, self._objective
        number = int(np.searchsorted(self._ends, step, side="right"))
        stage, batch = self._stages[number], step % self._batches
        size = self._batch * objective.columns
        count = min(
            self._state.stop - step,
            self._ends[number] - step,
            self._batches - batch,
            self._noise.count_remaining(step),
            max(1, NUMBERS // size),
            *(() if max_steps is None else (max_steps,)),
        )
        first, end = batch * self._batch, min((batch + count) * self._batch, len(self._records))
        full_batches = (end - first) // self._batch
        noise_TP = self._noise.scaled(step, count, stage)
        factor, shrink = -stage.learning_rate / self._batch, 1.0 - stage.learning_rate * objective.l2
        if size > NUMBERS or full_batches == 0:
            self._backend.step(factor * self._gradient(first, end), shrink, noise_TP[0])
        else:
            # A short last batch is left for the next call.
            noise_TP = noise_TP[:full_batches]
            x_BD, y_B = self._rows(first, first + full_batches * self._batch)
            x_TBD, y_TB = x_BD.reshape(full_batches, self._batch, -1), y_B.reshape(full_batches, self._batch)
            self._backend.steps(x_TBD, y_TB, factor, shrink, noise_TP)
        self._state.step = step + len(noise_TP)

    def _rows(self, first: int, end: int) -> tuple[Floats, NDArray[Any]]:
        order = self._state.order
        return self._objective.rows(*self._records.batch(slice(first, end) if order is None else order[first:end]))

    def _gradient(self, first: int, end: int) -> Any:
        """Returns the gradient of a batch that is short or too large for a block, summed part by part."""
        part = max(1, NUMBERS // self._objective.columns)
        total: Any = 0.0
        for start in range(first, end, part):
            total = total + self._backend.gradient(*self._rows(start, min(start + part, end)))
        return total
