"""The Lightning callbacks: one shows progress, scores held-out records and keeps a resumable checkpoint; one stops.

It reads; the only thing it ever asks of the program is to stop after the step in hand.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, final

from torch import Tensor

from dprecipe.contract.plan import Length, Plan
from dprecipe.faults import InternalFault
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge, count_events, drop_first, take_first
from dprecipe.progress import Progress, report_progress
from dprecipe.screen import is_watched
from dprecipe.training.loggers.points import CoveredPoint
from dprecipe.training.loggers.run import RunLoggers
from dprecipe.training.program.evaluate import HeldOut, Score, size_sample
from dprecipe.training.program.trainer_library import lightning
from dprecipe.training.run.checkpoint import SaveSchedule
from dprecipe.training.run.folder import TRAINING
from dprecipe.training.run.gate import Gate
from dprecipe.training.run.signals import stopping_on_signals
from dprecipe.training.steps.keep import BestIterate
from dprecipe.training.steps.module import NoisyModule
from dprecipe.training.steps.noisy_steps import NoisySteps
from dprecipe.training.steps.own_scores import OwnScores
from dprecipe.training.steps.step_failures import StepFailed, locate_failures

POINTS = 24
BEST = "best"
"""The key of the best iterate in a checkpoint."""
SCORING_SHARE = 0.05
"""The largest share of the work of training for scores on the way."""
FORWARD = 1 / 3
"""The work of a score, relative to that of a gradient."""


@final
class SpentCurve:
    """ε after a number of events, never below the true value; each of its points is computed when it is first reached.

    Nor is it above the budget, which the gate holds: what a crash took can leave a plan longer than its budget.
    """

    def __init__(self, plan: Plan, charged: tuple[Charge, ...] = (), done: int = 0) -> None:
        """A run that holds the first `done` of the mechanism's events and was charged `charged` so far."""
        self._plan = plan
        self._charged = charged
        self._remaining = drop_first(plan.mechanism_plan.events, done)
        remaining = count_events(self._remaining)
        self._points = sorted({round(remaining * i / POINTS) for i in range(1, POINTS + 1)} | {0})
        self._known: dict[int, float] = {}

    def at(self, count: int) -> float:
        """Returns ε after `count` events in all, rounded up to the next point of the curve."""
        count_done = count - count_events(self._charged)
        point = self._points[min(bisect.bisect_left(self._points, count_done), len(self._points) - 1)]
        if point not in self._known:
            charges, budget = [*self._charged, *take_first(self._remaining, point)], self._plan.budget
            terms = (budget.delta, budget.neighbouring, budget.accountant)
            self._known[point] = min(accountants.epsilon(charges, *terms), budget.epsilon)
        return self._known[point]


def steps_between_scores(length: Length, records: int, held_out: int) -> int:
    """Returns the number of steps between scores of the held-out records, for a run with this many `records` in an
    epoch:
    up to twenty times in a run, at its end at least, and more rarely than after each epoch if scoring would take more
    than about a twentieth of the work. Only numbers that the recipe declares and that of the held-out records decide
    it, never time.
    """
    steps, epoch = length.steps, length.steps_per_epoch
    usual = max(steps // 20, min(epoch, steps // 5))
    affordable = math.ceil(held_out * FORWARD * epoch / (SCORING_SHARE * records))
    return max(1, usual, min(affordable, steps))


@final
class Watch(lightning.Callback):
    """See the module."""

    def __init__(
        self,
        plan: Plan,
        curve: SpentCurve,
        held_out: HeldOut | None,
        training: HeldOut | None,
        own: OwnScores | None,
        record: Callable[[int, float, Mapping[str, float]], None],
        checkpoint: Callable[[dict[str, Any]], None],
        loggers: RunLoggers,
        best: BestIterate | None = None,
    ) -> None:
        """`training`: a sample of training records, whose scores go to `record` and to private loggers alone. `own`: a
        module's own scores of the held-out records, which are public then. `best`:
        it looks at each iterate whose held-out records, which are public, are scored."""
        self._plan = plan
        self._curve = curve
        self._held_out = held_out
        self._training = training
        self._own = own
        self._own_figures: dict[str, float] = {}
        self._record = record
        self._checkpoint = checkpoint
        self._loggers = loggers
        self._best = best
        scored = 0 if held_out is None else len(held_out)
        scored += 0 if training is None else size_sample(plan.data.planned_units)  # their true number may be private
        if best is not None:
            scored = 0  # a choice is worth the work: as many iterates as a run of this length may score
        self._every = steps_between_scores(plan.length, plan.data.planned_units, scored)
        # Covered points come at steps of their own: how many held-out records there are may be private.
        self._logged_every = steps_between_scores(plan.length, plan.data.max_units, 0)
        self._logged = (-1, False)
        self._schedule = SaveSchedule(plan.length.steps, 0, plan.runtime.checkpoint_seconds)
        self._saved_events = -1
        self._score: Score | None = None
        self.training_score: Score | None = None
        """The latest score of the sample of training records: for `private/` alone."""
        self._scored_steps = -1
        self._progress: Progress | None = None

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        private, count, steps = self._plan.hides_duration, self._plan.length.steps, module.steps
        if private and not is_watched():
            report_progress("training; steps are counted in a terminal only: their pace tells of the number of units")
        self._schedule = SaveSchedule(count, steps.steps_done, self._plan.runtime.checkpoint_seconds)
        self._progress = Progress(self._plan.name, "step", count, steps.steps_done, private=private)
        steps.gather_due = lambda: self._scores_after(steps) or self._is_save_due(steps)
        if steps.processes.count == 1:  # several processes make the same steps between two calls: one each
            steps.pause_due = lambda: self._scores_after(steps) or self._saves_after(steps) or self._logs_after(steps)

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, *_: Any) -> None:
        steps = module.steps
        if trainer.should_stop and steps.gate.stop_reason is not None:
            return
        if steps.is_whole and self._scores_after(steps):  # not where a stop came before the first step
            self.score(steps)
        if self._logs_after(steps):
            self.log_covered(steps)
        if self._saves_after(steps):
            self.save(steps)
        if module.guard is not None:
            self._show_covered(module)
        if self._progress is not None:
            self._progress.show(steps.steps_done, lambda: self._status(steps))

    def _scores_after(self, steps: NoisySteps) -> bool:
        return steps.steps_done % self._every == 0

    def _logs_after(self, steps: NoisySteps) -> bool:
        scored = self._loggers.takes_public_scores and self._scores_after(steps)
        return self._loggers.are_used and (scored or steps.steps_done % self._logged_every == 0)

    def _saves_after(self, steps: NoisySteps) -> bool:
        return steps.is_whole and self._is_save_due(steps)

    def _is_save_due(self, steps: NoisySteps) -> bool:
        """Returns True between events only: a checkpoint inside one would let its batches be continued."""
        between = steps.events_done == steps.gate.done
        return between and self._schedule.is_due(steps.steps_done)

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        if self._progress is not None:
            self._progress.end(module.steps.steps_done, lambda: self._status(module.steps))

    def score(self, steps: NoisySteps) -> None:
        """Scores the weights that would be released now, and records that with all other scores; once after a step."""
        if self._scored_steps == steps.steps_done:
            return
        self._scored_steps = steps.steps_done
        state, figures = steps.released_state(), dict[str, float]()
        full = not steps.steps_left
        if self._held_out is not None:
            self._score = self._measure(self._held_out, steps, state, full=full)
            figures |= {} if self._score is None else self._score.metrics
            if self._best is not None and self._score is not None:
                self._best.take(steps.steps_done, self._score, state)
            self._own_figures = self._measure_own(state)
            figures = {**self._own_figures, **figures}
        figures |= steps.figures()
        if self._training is not None:
            self.training_score = score = self._measure(self._training, steps, state, full=full)
            figures |= {} if score is None else {f"{TRAINING}{name}": value for name, value in score.metrics.items()}
        if figures:
            spent = self._measure_spent(steps)
            self._record(steps.steps_done, spent, figures)
            self._loggers.log_private(steps.steps_done, spent, steps.last_rate, figures)

    def released_state(self, steps: NoisySteps) -> Mapping[str, Tensor]:
        """Returns the weights that are released at the end: those of the best iterate, if there is one."""
        kept = None if self._best is None else self._best.weights
        state: Mapping[str, Tensor] = steps.released_state() if kept is None else kept
        return state

    def score_released(self, steps: NoisySteps) -> Score | None:
        """Returns the full score of the weights that are released, and puts that of training records in
        `training_score`. Call it after `score`."""
        facts = None if self._best is None else self._best.facts
        is_last = facts is None or facts.step == steps.steps_done
        state, score, training = self.released_state(steps), self._score, self.training_score
        if self._held_out is not None and not (is_last and score is not None and score.full):
            score = self._measure(self._held_out, steps, state, full=True)
            self._score = score if is_last else self._score
        if self._training is not None and not (is_last and training is not None and training.full):
            self.training_score = self._measure(self._training, steps, state, full=True)
        return score

    def _measure(
        self, records: HeldOut, steps: NoisySteps, state: Mapping[str, Tensor], *, full: bool = False
    ) -> Score | None:
        """Returns the score of these records; None where a module from Python raises on them, and from then on: what a
        run has paid for is released, with a score or without."""
        if steps.snapshot is None:
            return records.score(state, full=full)
        try:
            with locate_failures(records.module, "it was scored", ""):
                return records.score(state, full=full)
        except StepFailed as failure:
            report_progress(f"{failure.message}: these records are no longer scored")
        if records is self._held_out:
            self._held_out = None
        else:
            self._training = self.training_score = None
        return None

    def _measure_own(self, state: Mapping[str, Tensor]) -> dict[str, float]:
        if self._own is None:
            return {}
        try:
            with locate_failures(self._own.module, "its validation_step scored public records", ""):
                return self._own.measure(state)
        except StepFailed as failure:
            report_progress(f"{failure.message}: it is no longer called")
        self._own = None
        return {}

    def log_covered(self, steps: NoisySteps) -> None:
        """Logs what is covered of this step: once, and once more if it was scored since."""
        score = self._score if self._scored_steps == steps.steps_done else None
        logged = (steps.steps_done, score is not None)
        if self._logged == logged or not self._loggers.are_used:
            return
        self._logged = logged
        self._loggers.log_covered(self._make_point(steps, score))

    def _measure_spent(self, steps: NoisySteps) -> float:
        if not isinstance(steps.gate, Gate):
            raise InternalFault("the steps of a process that follows were watched")
        return self._curve.at(count_events(steps.gate.spent))

    def _make_point(self, steps: NoisySteps, score: Score | None) -> CoveredPoint | None:
        spent = self._measure_spent(steps)
        return self._loggers.make_point(steps.steps_done, spent, steps.last_rate, steps.figures(), score)

    def _show_covered(self, module: NoisyModule) -> None:
        """Gives what is covered of this step to the loggers and callbacks of somebody's own trainer."""
        point = self._make_point(module.steps, self._score)
        if point is not None:
            module.log_dict({**self._own_figures, **point.values})

    def save(self, steps: NoisySteps) -> None:
        """Writes the checkpoint, unless it holds these events already."""
        if steps.events_done != self._saved_events:
            best = {} if self._best is None else {BEST: self._best.state()}
            self._checkpoint({**steps.state(), **best})
            self._saved_events = steps.events_done
        self._schedule.saved(steps.steps_done)

    def _status(self, steps: NoisySteps) -> str:
        spent = self._measure_spent(steps)
        lines = [f"ε {spent:.3g} of {self._plan.budget.epsilon:.3g}"]
        lines += [f"{name.replace('_', ' ')} {value:.3g}" for name, value in steps.figures().items()]
        return ", ".join(
            [*lines, self._score.summary] if self._score is not None and self._loggers.takes_public_scores else lines
        )


@final
class Stopping(lightning.Callback):
    """`stopping_on_signals` while a trainer trains.

    From within its loop: the trainer sets a handler of SIGTERM of its own before that, which would end the run without
    a checkpoint.
    """

    def __init__(self, request_stop: Callable[[], None]) -> None:
        self._request_stop = request_stop
        self._stack = ExitStack()

    def on_train_start(self, *_: Any) -> None:
        self._stack.enter_context(stopping_on_signals(self._request_stop))

    def on_train_end(self, *_: Any) -> None:
        self._stack.close()

    def on_exception(self, *_: Any) -> None:
        self._stack.close()
