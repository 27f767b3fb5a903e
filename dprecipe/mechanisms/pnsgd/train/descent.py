"""Projected noisy descent on a linear predictor: w <- Proj(w - η [mean slope of a batch's losses + λ w + noise]).

Guarantees: every row of features has at most the norm of its objective and every target is within its range, whatever
the source hands over, so that the proven constants hold; every iterate lies in the set; a pass visits each record once,
in batches whose divisor is the batch's declared size, a short last one's too; a step's noise is independent of all
others' and has the scale of the step's stage. Nothing is shown, written or returned before it is asked for.

How a step is made was chosen by measurement (`benchmarks/pnsgd.py`): in float64 numpy arrays, rows of float32 being
cast and noise being drawn for many steps at once, `NUMBERS` numbers a block, which stay in the cache. Batches of one
record, of a predictor that is one number, go through BLAS's level 1 with the slope in plain Python: less than half the
time of numpy's in-place operations and a fifth of torch's or less, since what such a step takes is mostly the overhead
of its calls. Batches of several records are two products of matrices. Of a thousand features, nine tenths of the time
of single records goes to the noise, and of batches of 64 an eighth. On an accelerator the same formulas run in torch
(`on_device`).

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
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import draw_noise
from dprecipe.noise.entropy import Secrets

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

NUMBERS = 1 << 17
"""Numbers of a block of noise, and of features: 1 MiB each."""
ROUNDING = 1e-12
"""By what part bounds are kept stricter than they are stated, so that they hold after rounding."""


class DescentRecords(Protocol):
    """Where rows come from: `dprecipe.training.records.RecordSource`."""

    def __len__(self) -> int: ...
    def batch(self, indices: Indices | slice) -> tuple[NDArray[np.float32], NDArray[Any]]: ...


@final
@dataclass(frozen=True, slots=True)
class Objective:
    """What is descended, and where."""

    loss: Loss
    width: int
    """Features that are read of a record; 0 of a location."""
    bias: bool
    """A further feature of 1; a location's only one."""
    feature_norm: float
    """R: largest L2 norm of a record's features, without the bias."""
    l2: float
    radius: float | None
    """Of a ball around 0; None: the set is a box."""
    bound: float | None
    """Of each parameter's magnitude, in a box."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the parameters."""
        columns = self.width + self.bias
        return (self.loss.classes, columns) if isinstance(self.loss, Softmax) else (columns,)

    @property
    def columns(self) -> int:
        return self.width + self.bias

    def rows(self, features: NDArray[Any], labels: NDArray[Any]) -> tuple[Floats, NDArray[Any]]:
        """Features (B, …) and labels (B,) as a step takes them: (B, D) of bounded rows, a bias last, and (B,) targets.

        A row with a feature that is not finite becomes zero, as `dprecipe.data.preprocess.clip_features` makes it.
        """
        x_BD = np.empty((len(labels), self.columns))
        if self.width:
            own_BD = x_BD[:, : self.width]
            own_BD[:] = features.reshape(len(labels), -1)
            squares_B = np.einsum("bd,bd->b", own_BD, own_BD)
            most = self.feature_norm * (1 - ROUNDING)
            if not (squares_B <= most * most).all():  # written so that NaN is seen
                own_BD[~np.isfinite(squares_B)] = 0.0
                largest_B = np.maximum(np.sqrt(np.einsum("bd,bd->b", own_BD, own_BD)), most)
                own_BD *= (most / largest_B)[:, None]
        x_BD[:, self.width :] = 1.0
        return x_BD, self.loss.targets(labels)

    def gradient(self, w: Any, x_BD: Any, y_B: Any, xp: Any = np) -> Any:
        """The sum of the records' gradients of their losses, of the shape of w; no regulariser."""
        if w.ndim == 1:
            return self.loss.slope(x_BD @ w, y_B, xp) @ x_BD
        return self.loss.slope(x_BD @ w.T, y_B, xp).T @ x_BD

    def project(self, w: Floats) -> None:
        """Move w, in place, to the nearest point of the set."""
        if self.bound is not None:
            np.clip(w, -self.bound, self.bound, out=w)
        elif self.radius is not None:
            most = self.radius * (1 - ROUNDING)
            square = np.vdot(w, w)
            if square > most * most:
                w *= most / np.sqrt(square)

    def mean_loss(self, w: Floats, records: DescentRecords) -> float:
        """Over all records, with the regulariser."""
        total, size = 0.0, max(1, NUMBERS // self.columns)
        for start in range(0, len(records), size):
            x_BD, y_B = self.rows(*records.batch(slice(start, start + size)))
            total += float(self.loss.value(x_BD @ w.T, y_B).sum())
        return total / max(1, len(records)) + self.l2 / 2 * float(np.vdot(w, w))


@final
@dataclass(slots=True, eq=False)
class State:
    """Where a run is."""

    iterate: Floats
    step: int
    """Steps that are made."""
    stop: int
    """Steps that will be: drawn in advance where the stop is random."""
    order: Indices | None
    """The records' numbers in the order of every pass; None: that of the file."""

    @property
    def finished(self) -> bool:
        return self.step == self.stop

    @staticmethod
    def fresh(
        shape: tuple[int, ...], size: int, steps: int, secrets: Secrets, *, permuted: bool, random_stop: bool
    ) -> State:
        """The start of a run of `size` records: at zero, its order and its length drawn where they are random."""
        order = None
        if permuted:
            # 64 random bits a record: two are equal with probability size² / 2^65.
            order = np.argsort(secrets.stream("sampling", 0).words(size)).astype(np.int64)
        stop = 1 + int(secrets.stream("sampling", 1).integers(steps, 1)[0]) if random_stop else steps
        return State(np.zeros(shape), 0, stop, order)


@final
class Noise:
    """Independent draws of a distribution of scale 1 for every step: a block of steps has a stream of its own."""

    def __init__(self, distribution: Distribution, secrets: Secrets, parameters: int) -> None:
        self._distribution = distribution
        self._secrets = secrets
        self._parameters = parameters
        self.block = max(1, NUMBERS // parameters)
        """Steps of a block."""
        self._number = -1
        self._drawn_TP = np.empty((0, parameters))

    def left(self, step: int) -> int:
        """Steps from this one to the end of its block."""
        return self.block - step % self.block

    def scaled(self, step: int, count: int, stage: Stage) -> Floats:
        """(count, P): what a step of this stage, and those that follow in its block, are moved by."""
        return self.of(step, count) * -(stage.learning_rate * stage.noise_scale)

    def of(self, step: int, count: int) -> Floats:
        """(count, P): the draws of this step and those that follow in its block."""
        number, row = divmod(step, self.block)
        if number != self._number:
            stream = self._secrets.stream("noise", number)
            self._drawn_TP = draw_noise(self._distribution, stream, self.block * self._parameters).reshape(
                self.block, -1
            )
            self._number = number
        return self._drawn_TP[row : row + count]


class Where(Protocol):
    """What makes the steps."""

    def place(self, w: Floats) -> None:
        """Take the parameters."""

    def gradient(self, x_BD: Floats, y_B: NDArray[Any]) -> Any:
        """`Objective.gradient` where the parameters are now."""

    def step(self, gradient: Any, shrink: float, noise_P: Floats) -> None:
        """w <- Proj(shrink w + gradient + noise); may overwrite the gradient."""

    def steps(self, x_TBD: Floats, y_TB: NDArray[Any], factor: float, shrink: float, noise_TP: Floats) -> None:
        """As many steps as there is noise, on whole batches of B records, their gradients times `factor`."""

    def fetch(self) -> Floats:
        """The parameters as they are now."""


@final
class OnCpu:
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
            self._singly(loss.slope_of_one, x_TBD[:, 0], y_TB[:, 0].tolist(), factor, shrink, noise_TP)
            return
        for x_BD, y_B, noise_P in zip(x_TBD, y_TB, noise_TP, strict=True):
            gradient = self.gradient(x_BD, y_B)
            gradient *= factor
            self.step(gradient, shrink, noise_P)

    def _singly(
        self,
        slope: Callable[[float, float], float],
        x_TD: Floats,
        y_T: list[float],
        factor: float,
        shrink: float,
        noise_TD: Floats,
    ) -> None:
        """Batches of one record. In place: the iterate is contiguous and of double precision, as BLAS wants it."""
        objective, w = self._objective, self._w
        ddot, daxpy, dscal = self._blas.ddot, self._blas.daxpy, self._blas.dscal
        radius = objective.radius
        most = 0.0 if radius is None else radius * (1 - ROUNDING)
        square = most * most
        for x_D, y, noise_D in zip(x_TD, y_T, noise_TD, strict=True):
            moved = factor * slope(ddot(x_D, w), y)
            if shrink != 1.0:
                dscal(shrink, w)
            daxpy(x_D, w, a=moved)
            daxpy(noise_D, w)
            if radius is None:
                objective.project(w)
            else:
                length = ddot(w, w)
                if length > square:
                    dscal(most / length**0.5, w)


@final
class Descent:
    """A run under way: moves its state by whole steps."""

    def __init__(
        self,
        objective: Objective,
        stages: Sequence[Stage],
        batch: int,
        records: DescentRecords,
        noise: Noise,
        state: State,
        where: Where | None = None,
    ) -> None:
        """`where` is the processor when left out."""
        self._objective = objective
        self._stages = tuple(stages)
        self._ends = np.cumsum([stage.steps for stage in stages]).tolist()
        self._batch = batch
        self._records = records
        self._batches = -(-len(records) // batch)
        self._noise = noise
        self._state = state
        self._where = OnCpu(objective) if where is None else where
        self._where.place(state.iterate)

    @property
    def step(self) -> int:
        """Steps that are made."""
        return self._state.step

    @property
    def pass_ended(self) -> bool:
        """Whether the last step made was the last of a pass."""
        return self.step > 0 and self.step % self._batches == 0

    @property
    def state(self) -> State:
        """Where the run is: not to be seen by anybody before it is finished."""
        self._state.iterate = self._where.fetch()
        return self._state

    def advance(self, most: int | None = None) -> None:
        """Make a few steps, `most` at most: of one pass, one stage and one block."""
        step, objective = self._state.step, self._objective
        number = int(np.searchsorted(self._ends, step, side="right"))
        stage, batch = self._stages[number], step % self._batches
        size = self._batch * objective.columns
        count = min(
            self._state.stop - step,
            self._ends[number] - step,
            self._batches - batch,
            self._noise.left(step),
            max(1, NUMBERS // size),
            *(() if most is None else (most,)),
        )
        first, end = batch * self._batch, min((batch + count) * self._batch, len(self._records))
        whole = (end - first) // self._batch
        noise_TP = self._noise.scaled(step, count, stage)
        factor, shrink = -stage.learning_rate / self._batch, 1.0 - stage.learning_rate * objective.l2
        if size > NUMBERS or whole == 0:
            self._where.step(factor * self._gradient(first, end), shrink, noise_TP[0])
        else:
            # The short last batch, if it is among these, waits for the next call.
            noise_TP = noise_TP[:whole]
            x_BD, y_B = self._rows(first, first + whole * self._batch)
            x_TBD, y_TB = x_BD.reshape(whole, self._batch, -1), y_B.reshape(whole, self._batch)
            self._where.steps(x_TBD, y_TB, factor, shrink, noise_TP)
        self._state.step = step + len(noise_TP)

    def _rows(self, first: int, end: int) -> tuple[Floats, NDArray[Any]]:
        order = self._state.order
        return self._objective.rows(*self._records.batch(slice(first, end) if order is None else order[first:end]))

    def _gradient(self, first: int, end: int) -> Any:
        """Of a batch that is too large for a block, or short: part by part."""
        part = max(1, NUMBERS // self._objective.columns)
        total: Any = 0.0
        for start in range(first, end, part):
            total = total + self._where.gradient(*self._rows(start, min(start + part, end)))
        return total
