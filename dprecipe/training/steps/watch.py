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
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge, count_events, drop_first, take_first
from dprecipe.progress import Progress, report_progress
from dprecipe.screen import is_watched
from dprecipe.training.loggers.run import RunLoggers
from dprecipe.training.program.evaluate import HeldOut, Score, size_sample
from dprecipe.training.program.trainer_library import lightning
from dprecipe.training.run.checkpoint import SaveSchedule
from dprecipe.training.run.folder import TRAINING
from dprecipe.training.run.signals import stopping_on_signals
from dprecipe.training.steps.keep import BestIterate
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
        record: Callable[[int, float, Mapping[str, float]], None],
        checkpoint: Callable[[dict[str, Any]], None],
        loggers: RunLoggers,
        best: BestIterate | None = None,
    ) -> None:
        """`training`: a sample of training records, whose scores go to `record` and to private loggers alone. `best`:
        it looks at each iterate whose held-out records, which are public, are scored."""
        self._plan = plan
        self._curve = curve
        self._held_out = held_out
        self._training = training
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
        private, steps = self._plan.hides_duration, self._plan.length.steps
        if private and not is_watched():
            report_progress("training; steps are counted in a terminal only: their pace tells of the number of units")
        self._schedule = SaveSchedule(steps, module.steps_done, self._plan.runtime.checkpoint_seconds)
        self._progress = Progress(self._plan.name, "step", steps, module.steps_done, private=private)
        module.gather_due = lambda: self._scores_after(module) or self._is_save_due(module)
        if module.processes.count == 1:  # several processes make the same steps between two calls: one each
            module.pause_due = lambda: (
                self._scores_after(module) or self._saves_after(module) or self._logs_after(module)
            )

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, *_: Any) -> None:
        if trainer.should_stop and module.gate.stop_reason is not None:
            return
        if module.is_whole and self._scores_after(module):  # not where a stop came before the first step
            self.score(module)
        if self._logs_after(module):
            self.log_covered(module)
        if self._saves_after(module):
            self.save(module)
        if self._progress is not None:
            self._progress.show(module.steps_done, lambda: self._status(module))

    def _scores_after(self, module: Any) -> bool:
        return int(module.steps_done) % self._every == 0

    def _logs_after(self, module: Any) -> bool:
        scored = self._loggers.takes_public_scores and self._scores_after(module)
        return self._loggers.are_used and (scored or int(module.steps_done) % self._logged_every == 0)

    def _saves_after(self, module: Any) -> bool:
        return bool(module.is_whole) and self._is_save_due(module)

    def _is_save_due(self, module: Any) -> bool:
        """Returns True between events only: a checkpoint inside one would let its batches be continued."""
        between: bool = module.events_done == module.gate.done
        return between and self._schedule.is_due(module.steps_done)

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        if self._progress is not None:
            self._progress.end(module.steps_done, lambda: self._status(module))

    def score(self, module: Any) -> None:
        """Scores the weights that would be released now, and records that with all other scores; once after a step."""
        if self._scored_steps == module.steps_done:
            return
        self._scored_steps = module.steps_done
        state, figures = module.released_state(), dict[str, float]()
        full = not module.steps_left
        if self._held_out is not None:
            self._score = self._measure(self._held_out, module, state, full=full)
            figures |= {} if self._score is None else self._score.metrics
            if self._best is not None and self._score is not None:
                self._best.take(module.steps_done, self._score, state)
        figures |= module.figures()
        if self._training is not None:
            self.training_score = score = self._measure(self._training, module, state, full=full)
            figures |= {} if score is None else {f"{TRAINING}{name}": value for name, value in score.metrics.items()}
        if figures:
            spent = self._curve.at(count_events(module.gate.spent))
            self._record(module.steps_done, spent, figures)
            self._loggers.log_private(module.steps_done, spent, module.last_rate, figures)

    def released_state(self, module: Any) -> Mapping[str, Tensor]:
        """Returns the weights that are released at the end: those of the best iterate, if there is one."""
        kept = None if self._best is None else self._best.weights
        state: Mapping[str, Tensor] = module.released_state() if kept is None else kept
        return state

    def score_released(self, module: Any) -> Score | None:
        """Returns the full score of the weights that are released, and puts that of training records in
        `training_score`. Call it after `score`."""
        facts = None if self._best is None else self._best.facts
        is_last = facts is None or facts.step == module.steps_done
        state, score, training = self.released_state(module), self._score, self.training_score
        if self._held_out is not None and not (is_last and score is not None and score.full):
            score = self._measure(self._held_out, module, state, full=True)
            self._score = score if is_last else self._score
        if self._training is not None and not (is_last and training is not None and training.full):
            self.training_score = self._measure(self._training, module, state, full=True)
        return score

    def _measure(
        self, records: HeldOut, module: Any, state: Mapping[str, Tensor], *, full: bool = False
    ) -> Score | None:
        """Returns the score of these records; None where a module from Python raises on them, and from then on: what a
        run has paid for is released, with a score or without."""
        if module.snapshot is None:
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

    def log_covered(self, module: Any) -> None:
        """Logs what is covered of this step: once, and once more if it was scored since."""
        score = self._score if self._scored_steps == module.steps_done else None
        logged = (int(module.steps_done), score is not None)
        if self._logged == logged:
            return
        self._logged = logged
        spent = self._curve.at(count_events(module.gate.spent))
        self._loggers.log_covered(module.steps_done, spent, module.last_rate, module.figures(), score)

    def save(self, module: Any) -> None:
        """Writes the checkpoint, unless it holds these events already."""
        if module.events_done != self._saved_events:
            best = {} if self._best is None else {BEST: self._best.state()}
            self._checkpoint({**module.state(), **best})
            self._saved_events = module.events_done
        self._schedule.saved(module.steps_done)

    def _status(self, module: Any) -> str:
        spent = self._curve.at(count_events(module.gate.spent))
        lines = [f"ε {spent:.3g} of {self._plan.budget.epsilon:.3g}"]
        lines += [f"{name.replace('_', ' ')} {value:.3g}" for name, value in module.figures().items()]
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
