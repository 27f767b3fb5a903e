"""A recipe as a Lightning module, its data and its callbacks, for somebody's own trainer."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, final

from torch.utils.data import DataLoader

from dprecipe.contract.plan import Plan
from dprecipe.faults import Fault, Interrupted, RunFailed, UsageFault
from dprecipe.timeline import measure_run
from dprecipe.training.engine.full_precision import in_run_precision
from dprecipe.training.program.trainer_library import lightning
from dprecipe.training.run.request import RunOptions, request_run
from dprecipe.training.run.runner import EndedWithoutModel, Run, runner_of
from dprecipe.training.run.start import Prepared, explain_memory, prepare
from dprecipe.training.steps.fit import move_back
from dprecipe.training.steps.module import NoisyModule, count_steps
from dprecipe.training.steps.outside import StateGuard, describe_structure
from dprecipe.training.steps.stepwise import OpenAttempt, StepwiseRunner
from dprecipe.training.steps.trainer_settings import check_trainer, list_callbacks
from dprecipe.training.steps.watch import Stopping


@final
class StepCount(lightning.LightningDataModule):
    """The numbers of the steps: records go to the steps alone, and no loader of a trainer's has them."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def train_dataloader(self) -> DataLoader[int]:
        return count_steps(self._steps)


@final
class Certifying(lightning.Callback):
    """Scores and saves on the way, and publishes at the end."""

    def __init__(self, built: Built) -> None:
        self._built = built

    def on_train_batch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule, *rest: Any) -> None:
        if self._built.module.guard is not None:
            self._built.module.guard.check()
        self._built.training.watch.on_train_batch_end(trainer, self._built.module, *rest)

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._built.training.watch.on_train_start(trainer, self._built.module)

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._built.training.watch.on_train_end(trainer, self._built.module)

    def on_fit_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._built.close(None)

    def on_exception(self, trainer: lightning.Trainer, module: lightning.LightningModule, error: BaseException) -> None:
        self._built.close(error)


@final
class Built:
    """A recipe, ready for a trainer: `trainer.fit(built.module, built.data)`, then `built.release()`.

    | part | what it is |
    |---|---|
    | `module` | takes the recipe's noisy steps, and logs ε, the learning rate and public scores |
    | `data` | counts the steps; records go to the steps alone |
    | `callbacks` | open the ledger, save, score, certify; hand them to the trainer, beside your own |
    | `out` | the run folder, the same as that of `dprecipe run` |

    Guarantees: whatever the trainer and its other callbacks do, no noise is drawn before its event is in the ledger;
    the trainer is looked at before anything is spent; a model or a state that is changed between two steps ends the
    attempt. What callbacks may see is declared in the certificate (`provenance.trainer`).
    """

    def __init__(self, prepared: Prepared, runner: StepwiseRunner) -> None:
        self._prepared, self._runner = prepared, runner
        self._structure = describe_structure(self._program.model)  # as it was tried just now
        self._stack = ExitStack()
        self._training: OpenAttempt | None = None
        self._outcome: Run | Fault | None = None
        self.plan: Plan = prepared.request.plan
        self.out: Path = prepared.request.path
        self.module = NoisyModule(check=self._check, open_steps=self._open)
        self.data = StepCount(self.plan.length.steps)
        self.callbacks: list[lightning.Callback] = [Certifying(self), Stopping(self.request_stop)]

    @property
    def training(self) -> OpenAttempt:
        """The attempt that is open.

        Raises:
            UsageFault: there is none.
        """
        if self._training is None:
            raise UsageFault("nothing is being trained", "call trainer.fit(built.module, built.data)")
        return self._training

    def request_stop(self) -> None:
        """Ends the attempt after the step in hand: `build` with `resume=True` continues it."""
        self.training.steps.request_stop()

    def _check(self, trainer: lightning.Trainer | None) -> None:
        if self._outcome is not None:
            raise UsageFault(
                "this run was trained already, and its ledger is closed",
                "take the result with built.release(); if it was interrupted, build it again with resume=True",
            )
        if trainer is None:
            raise UsageFault("the module is in no trainer", "call trainer.fit(built.module, built.data)")
        check_trainer(trainer, self.module, self.data, self._program.device)
        callbacks = list_callbacks(trainer)
        if any(callback not in callbacks for callback in self.callbacks):
            raise UsageFault(
                "the trainer lacks the callbacks that open and close the ledger",
                "write Trainer(callbacks=[*built.callbacks, …])",
            )
        callbacks.sort(key=lambda callback: callback not in self.callbacks)  # ours see a state before others do

    @property
    def _program(self) -> Any:
        return self._prepared.program

    def _open(self) -> StateGuard:
        """Makes the run folder and opens the ledger; runs the paid steps of preprocessing.

        Raises:
            Fault: as `dprecipe.run` does.
        """
        if self._training is not None:
            raise UsageFault("this run is being trained", "build another one")
        try:
            with ExitStack() as stack:
                stack.enter_context(measure_run())
                stack.enter_context(explain_memory(before=False))
                prepared = self._prepared
                folder = prepared.open_folder()
                opened = self._runner.open_training(self.plan, folder, self._program, prepared.start)
                self._training = stack.enter_context(opened)
                stack.enter_context(in_run_precision())
                self._stack = stack.pop_all()
        except EndedWithoutModel as ended:
            self._outcome = ended.run
            raise RunFailed(ended.run.remarks[0], "built.release() is the release of what was spent") from None
        except BaseException as error:
            if self.out.exists():  # else nothing has begun, and another try may
                self._outcome = _explain(error)
            raise
        return StateGuard(self._training.steps, self._structure)

    def close(self, error: BaseException | None) -> None:
        """Settles the ledger and publishes, or notes why not: see `release`."""
        if self._training is None or self._outcome is not None:
            return
        training, self._training = self._training, None
        try:
            with self._stack:  # its end settles the ledger; it publishes if nothing is raised
                move_back(training.steps)
                training.steps.model.to(training.steps.device)
                if error is not None:
                    raise error
                if self.module.guard is not None:
                    self.module.guard.check()
            self._outcome = training.run
        except EndedWithoutModel as ended:
            self._outcome = ended.run
        except BaseException as other:
            self._outcome = _explain(other)
            if other is not error and not isinstance(other, Interrupted):
                raise

    def release(self) -> Run:
        """Returns the finished run, whose release is written and verified.

        Raises:
            UsageFault: nothing was trained.
            Interrupted: training stopped before the plan's end: `build` with `resume=True` continues it.
            Fault: whatever else ended it.
        """
        if self._training is not None:  # a callback of somebody's raised where ours were to close
            self.close(Interrupted("the trainer never came to its end", "build the run again with resume=True"))
        if isinstance(self._outcome, Run):
            return self._outcome
        if self._outcome is not None:
            raise self._outcome
        raise UsageFault("nothing was trained", "call trainer.fit(built.module, built.data) first")


def _explain(error: BaseException) -> Fault:
    if isinstance(error, Fault):
        return error
    return RunFailed(
        f"training ended with {type(error).__name__}; what was drawn is in the ledger",
        "mend what raised it, and continue by dprecipe.build(plan, out, resume=True)",
    )


def build_run(plan: Plan, options: RunOptions) -> Built:
    """Prepares a run for somebody's own trainer: reads its records and tries its program; spends nothing.

    Raises:
        UsageFault: the mechanism takes no steps that a trainer could count; several processes were asked for; or the
            duration of the run is secret.
        Fault: as `dprecipe.run`, before anything is spent.
    """
    request = request_run(plan, options)
    plan = request.plan
    if plan.runtime.processes > 1 or request.place != "leader":
        raise UsageFault("several processes train by dprecipe run alone", "set runtime.processes to 1")
    if plan.hides_duration:
        raise UsageFault(
            "how many units there are is secret, and the pace of a trainer's steps tells of it",
            "train by dprecipe run, which shows no pace",
        )
    runner = runner_of(plan)
    if not isinstance(runner, StepwiseRunner):
        raise UsageFault(f"{plan.mechanism} takes no steps that a trainer could count", "train by dprecipe.run(plan)")
    with measure_run():
        return Built(prepare(request, ExitStack()), runner)
