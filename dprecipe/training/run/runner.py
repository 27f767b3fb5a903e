"""The interface of runners, which carry out the plans of a mechanism, with its inputs and results. Imports no torch."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from dprecipe import notebook
from dprecipe.contract.facts import NO_MODEL
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.data.facts import Role
from dprecipe.data.paid.constants import StageConstants
from dprecipe.data.records import RecordSource
from dprecipe.faults import InternalFault, UsageFault
from dprecipe.planning.from_python import list_own
from dprecipe.release.facts import Origin
from dprecipe.release.scores import list_leading, make_tile, select_numbers
from dprecipe.training.processes.cluster import Cluster
from dprecipe.training.program.gather import Gathered, gather_records
from dprecipe.training.run.folder import RunFolder

if TYPE_CHECKING:
    from torch import nn

    from dprecipe.training.audit.request import AuditEvidence, AuditRequest
    from dprecipe.training.probe.program import Check
    from dprecipe.training.program.evaluate import Score


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run."""

    folder: Path
    release: Path
    plan: Plan
    epsilon: float
    stop_reason: str
    score: Score | None
    seconds: float
    remarks: tuple[str, ...] = ()
    """Further remarks on the run, in words."""
    verified: bool = True
    """True if the release verifies; false if an attempt's randomness was fixed, so that it is no release."""

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}: {self.stop_reason}, ε = {self.epsilon:g})"

    def _repr_html_(self) -> str:
        return show_run(self.plan, self.folder, self.release, self.epsilon, self.remarks, self.verified)

    @property
    def has_model(self) -> bool:
        """Returns whether the release has a model (see `dprecipe.release.no_model`)."""
        return self.stop_reason != NO_MODEL


def show_run(plan: Plan, folder: Path, release: Path, epsilon: float, remarks: Sequence[str], verified: bool) -> str:
    """Renders a finished run as a notebook card. A notebook may be passed on, so it shows only the released score."""
    score = _read_released_score(release)
    kind, text = "good", "The release verifies from its folder alone."
    if not verified:
        kind, text = "error", "This is no release: its randomness was fixed, so nobody is protected."
    return notebook.render_card(
        f"Run of {plan.name}",
        notebook.render_numbers(
            [
                *score,
                (f"ε = {epsilon:g}", f"spent, of {plan.budget.epsilon:g}"),
                (f"δ = {plan.budget.delta:g}", f"protects each {plan.guarantee.unit}"),
            ]
        ),
        notebook.render_text(text, kind),
        *(notebook.render_text(remark, "warning") for remark in remarks),
        notebook.render_rows(
            [
                ("publish", str(release)),
                ("for people", str(release / "report.html") if plan.release.report else "no report was asked for"),
                ("keep private", str(folder / "private")),
            ]
        ),
    )


def _read_released_score(release: Path) -> list[tuple[str, str]]:
    """Reads the scores in the release that say most, as tiles; returns no tile if there is none."""
    try:
        content = json.loads((release / "metrics.json").read_bytes())["public_evaluation"]
        numbers, where = select_numbers(content), f"{content['records']:,} records declared public"
        return [make_tile(key, numbers, where) for key in list_leading(numbers)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


class EndedWithoutModel(Exception):
    """The attempt has ended and published `run`, which has no model."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.stop_reason)
        self.run = run


@dataclass(frozen=True, slots=True)
class Start:
    """Start of an attempt: its moment, its options and its inputs from outside the folder."""

    moment: datetime
    accept_lost_steps: bool = False
    """True to release a model that lacks most of the steps charged, rather than none: see `check_trained`."""
    trial: bool = False
    """True for one of several runs, the best of which is released: its results are kept, and it makes no release."""
    constants: tuple[StageConstants, ...] = ()
    """For a trial: the constants that the paid steps of preprocessing released, once, before all runs."""
    data: bytes | None = None
    """Digest by which an account knows the data (`account_run.digest_data`); None if the plan names no account."""
    trainer: Origin = "recipe"
    """`python`: a trainer of the user's own takes the steps, with callbacks of theirs between them."""


@dataclass(frozen=True, slots=True)
class PythonInputs:
    """Inputs from Python that replace those of the recipe, and all records, wherever they came from."""

    model: nn.Module | None = None
    train: object | None = None
    public: object | None = None
    test: object | None = None
    gathered: Gathered | None = None
    teachers: tuple[Path, ...] = ()
    """Folders of teachers that have voted elsewhere; only for a mechanism with teachers."""
    cluster: Cluster | None = None
    """Cluster that trains teachers."""

    def check_used(self, plan: Plan) -> None:
        """Refuses inputs that the mechanism of the plan does not use.

        Raises:
            UsageFault: there is such an input.
        """
        mechanism = mechanism_of(plan.mechanism)
        if self.model is not None and mechanism.is_convex:
            raise UsageFault(
                f"mechanism {plan.mechanism} takes no model from Python: its constants are not proved",
                "leave `model` out: the recipe names the model",
            )
        check_brings(plan, self.model)
        if self.model is not None and not plan.has_model:
            raise UsageFault("the recipe has no model, and releases labels alone", "leave `model` out")
        if self.public is not None and plan.data.is_elsewhere:
            raise UsageFault("the queries are the rows of the votes: no public records are read", "leave `public` out")
        if self.public is not None and not mechanism.has_student:
            raise UsageFault(f"mechanism {plan.mechanism} uses no public records", "leave `public` out")

    def records(self, role: Role, plan: Plan, root: Path) -> RecordSource | None:
        """Returns the records of a role, prepared; reads them now if they have not been gathered.

        Raises:
            UsageFault, DataFault: see `dprecipe.training.program.gather.gather_records`.
        """
        gathered = self.gathered
        if gathered is None:
            objects: dict[Role, object | None] = {"train": self.train, "public": self.public, "test": self.test}
            gathered = gather_records(plan, root, objects)
        return gathered.prepared(role)


def check_brings(plan: Plan, model: nn.Module | None) -> None:
    """Refuses a plan that leaves its loss or its optimiser to a module, where there is none.

    Raises:
        UsageFault: there is none.
    """
    keys = list_own(plan.training)
    if keys and model is None:
        raise UsageFault(
            f"{' and '.join(f'{key}: python' for key in keys)}: a module from Python brings it, and none was passed",
            "train by dprecipe.run(plan, model=...), or name the recipe's own",
        )


def check_has_teachers(plan: Plan) -> None:
    """Refuses a plan whose run trains no teachers, so that none can be trained elsewhere.

    Raises:
        UsageFault: it trains none.
    """
    if not mechanism_of(plan.mechanism).has_teachers:
        raise UsageFault(
            f"mechanism {plan.mechanism} has no teachers, so `dprecipe teachers`, --teachers and --ray don't apply",
            "leave the option out",
        )
    if not plan.mechanism_plan.reads_training_records:
        raise UsageFault(
            "the votes come from a file, so there are no teachers to train",
            "run the recipe without --teachers and --ray",
        )


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Findings of a rehearsal."""

    done: str
    """Description of the trial and its speed, in words."""
    seconds: float | None
    """Estimated seconds of training, at the pace of now; None where nothing is trained. Where units may have several
    records, that is at most: all have as many."""
    checks: tuple[Check, ...]
    remarks: tuple[str, ...] = ()
    """Remarks on how gradients are computed, if it makes a difference, in words."""
    least_seconds: float | None = None
    """Estimated seconds where each unit has one record; None where none may have more."""

    def describe(self) -> str:
        """Describes what was tried, and how long training takes. How many records the units have is private, so that
        both ends are shown."""
        if self.seconds is None:
            return f"rehearsed {self.done}; nothing was spent"
        takes = f"about {write_duration(self.seconds)}"
        if self.least_seconds is not None:
            takes = (
                f"at most {takes}, if each unit has all the records that it may have, and about "
                f"{write_duration(self.least_seconds)}, if each has one"
            )
        return f"rehearsed {self.done}; on a machine as busy as now, training takes {takes}; nothing was spent"


def write_duration(seconds: float) -> str:
    """Returns a duration in the unit that a person would choose."""
    if seconds < 90:
        return f"{seconds:.1g} s" if seconds < 1 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


P = TypeVar("P")
"""The program that a runner's `prepare` makes and its `attempt` takes."""


class Runner(Protocol[P]):
    """The runner of a mechanism: runs exactly the events of a plan, each on the ledger before its noise is drawn.

    A mechanism's runner is `RUNNER` in its module `train.run`.
    """

    @abstractmethod
    def prepare(self, plan: Plan, root: Path, inputs: PythonInputs) -> P:
        """Tries the program on synthetic records, and only then reads the run's own. Spends nothing, writes no file.

        `root`: the folder at which relative paths of data start. `inputs`: those from Python.

        Raises:
            UsageFault: no certificate could state this run.
            DataFault: the data is not what the recipe declares.
            PlanRefused, RunFailed: the program does not do what the accounting assumes.
        """

    @abstractmethod
    def attempt(self, plan: Plan, folder: RunFolder, program: P, start: Start) -> Run:
        """Continues from the folder's state to the end of the plan or of the budget, and publishes.

        See `dprecipe.training.run.attempt.open_attempt`.

        Raises:
            Interrupted: the user stopped it; `resume` continues.
            RunFailed, BudgetSpent, UsageFault: the attempt failed; the ledger says how much was spent.
        """

    def follow(self, plan: Plan, program: P) -> Run:
        """Takes part in an attempt that another process leads; only if `several` processes can run the mechanism."""
        raise InternalFault(f"{plan.mechanism} runs in one process")

    @abstractmethod
    def rehearse(self, plan: Plan) -> Rehearsal:
        """Tries a little of a run on synthetic records; reads no data, spends nothing, leaves nothing.

        Raises:
            PlanRefused, RunFailed: as `prepare` would.
        """

    def audit(self, plan: Plan, request: AuditRequest) -> AuditEvidence:
        """Attacks the program of a plan with synthetic records, at the depths of the request.

        Reads no data, spends nothing, leaves nothing. Called only for a mechanism with `audit_depths`, and for no other
        depth.

        Raises:
            PlanRefused, RunFailed: as `prepare` would, since the probe is part of the program.
        """
        raise InternalFault(f"{plan.mechanism} has no audit")


def runner_of(plan: Plan) -> Runner[object]:
    """Returns the runner of a plan; imports torch.

    Raises:
        RunFailed: a library that the runner needs can't be imported.
    """
    return cast("Runner[object]", mechanism_of(plan.mechanism).import_runner())
