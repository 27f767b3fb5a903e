"""A request to run a plan: its options, the policies that allow it, and the place where it happens. No torch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.data.files import data_root as find_data_root
from dprecipe.faults import UsageFault
from dprecipe.policy.apply import enforce_on_run
from dprecipe.release.facts import Origin
from dprecipe.release.folder import load_signing_key
from dprecipe.training.loggers.run import check_loggers
from dprecipe.training.processes.cluster import check_address
from dprecipe.training.processes.launch import is_of_launch, is_restart_of_complete
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.runner import PythonInputs, check_has_teachers

if TYPE_CHECKING:
    from torch import nn

Place = Literal["complete", "launcher", "follower", "leader"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Everything that a user says of a run besides its plan: see `dprecipe.run`."""

    out: Path | None = None
    """Run folder; named by the plan if None."""
    data_root: str | Path | None = None
    resume: bool = False
    accept_lost_steps: bool = False
    teachers: Sequence[str | Path] = ()
    """Folders of `dprecipe teachers`, which together hold the votes of all."""
    cluster: str | None = None
    """Address of a cluster that trains teachers: see `training.processes.cluster`."""
    model: nn.Module | None = None
    """This and the next three replace what the recipe names."""
    train: object | None = None
    public: object | None = None
    test: object | None = None
    trainer: Origin = "recipe"
    """`python`: a trainer of the user's own takes the steps."""

    @property
    def replaced(self) -> tuple[str, ...]:
        """Keys of the recipe that are replaced by something from Python; `trainer` is the program's own."""
        given = {"model": self.model, "data.train": self.train, "data.public": self.public, "data.test": self.test}
        replaced = [key for key, value in given.items() if value is not None]
        return (*replaced, *(["trainer"] if self.trainer == "python" else []))


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run that its policies allow: the only way to `training.run.start.run`."""

    plan: Plan
    """Names the policies that it was checked against."""
    options: RunOptions
    path: Path
    """Run folder."""
    place: Place
    """Part of this process in the run: see `decide_place`."""
    resume: bool
    """The run continues in its folder: the user says so, or this launch of torchrun has made the folder."""
    root: Path
    """Folder where relative paths of data start."""

    @property
    def inputs(self) -> PythonInputs:
        """Inputs from Python, before any record is read."""
        options = self.options
        return PythonInputs(options.model, options.train, options.public, options.test)


def decide_place(plan: Plan, path: Path) -> Place:
    """Decides what this process does of the run of `plan` in the folder `path`.

    | place | when | what it does |
    |---|---|---|
    | `complete` | torchrun starts the command again after the release is there | verifies the release |
    | `launcher` | `runtime.processes` > 1, and nothing has started several | starts them, and waits |
    | `follower` | several processes were started, and this is not the first | takes part, writes nothing |
    | `leader` | otherwise | runs, alone or with followers; trains teachers on a cluster if one is named |

    Raises:
        UsageFault: see `is_of_launch`.
    """
    if is_restart_of_complete(path):
        return "complete"
    if "WORLD_SIZE" not in os.environ:
        return "launcher" if plan.runtime.processes > 1 else "leader"
    return "follower" if int(os.environ.get("RANK", "0")) > 0 else "leader"


def check_trains_once(plan: Plan) -> None:
    """Refuses the plan of a tuned run.

    Raises:
        UsageFault: the plan is that of a tuned run.
    """
    if plan.tuning is not None:
        file = plan.source.file
        raise UsageFault(f"{file} trains several times: it has a block `tuning`", f"dprecipe tune {shlex.quote(file)}")


def request_run(plan: Plan, options: RunOptions) -> RunRequest:
    """Checks all that can be known without reading a record: the policies above the recipe first.

    A run that is complete is not checked again.

    Raises:
        RecipeError, PlanRefused: a policy is wrong, or does not allow the run.
        UsageFault: the plan is that of a tuned run; the mechanism has no use for an option; several processes were
            started for a mechanism that runs in one; the signing key can't be used; or the folder exists (or, with
            `resume`, does not).
        RunFailed: see `RunFolder.open`.
    """
    check_trains_once(plan)
    path = RunFolder.default(plan) if options.out is None else options.out
    place, resume = decide_place(plan, path), options.resume or is_of_launch(path)
    root = find_data_root(options.data_root, plan.source.file)
    request = RunRequest(plan, options, path, place, resume, root)
    if place == "complete":
        return request
    began = RunFolder(path).policies if resume else None
    replaced = {*options.replaced, *(["trainer"] if resume and RunFolder(path).began_under_trainer else [])}
    request = replace(request, plan=enforce_on_run(plan, root, sorted(replaced), began))
    if place != "follower":
        RunFolder.open(path, plan) if resume else RunFolder.absent(path)
    load_signing_key(plan)
    if "WORLD_SIZE" in os.environ and "processes" not in mechanism_of(plan.mechanism).runtime_options:
        raise UsageFault(f"{plan.mechanism} runs in one process", "start it without torchrun")
    request.inputs.check_used(plan)
    if options.teachers or options.cluster is not None:
        check_has_teachers(plan)
    if options.teachers and options.cluster is not None:
        raise UsageFault(
            "--teachers and --ray can't be combined: votes from --teachers need no training", "leave one of them out"
        )
    if options.cluster is not None:
        check_address(options.cluster)
    check_loggers(plan)
    return request
