"""The contract of a mechanism: a schema, an account, a trainer, and its additions to the language and the command line.

- `schema.py`: a frozen model tagged by `kind`, named `BLOCK`; structure only.
- `plan.py`: `PLAN`, the type of its plans (`MechanismPlan`), and the text of `dprecipe plan` about them.
- `account.py`: `check` and `plan`, pure arithmetic: from a block to that plan, every free variable solved.
- `train/run.py`, which may import torch: a `RUNNER` that runs exactly those events, through a gate.
- `certificate.py`: `PART`, everything that a certificate says about the mechanism (`CertificatePart`).
- `starter.py`, `synonyms.toml`, `commands/`: optional.

Importing this module and the mechanisms' `__init__` loads no model of the language: `dprecipe --help` has to be fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, cast, get_args

from dprecipe.data.names import name_unit
from dprecipe.privacy.rounding import round_down
from dprecipe.privacy.tuning.score import list_score_charges

if TYPE_CHECKING:
    from dprecipe.contract.certificate import CertificatePart
    from dprecipe.contract.commands import Commands
    from dprecipe.contract.plan import Assumption, Length, Plan
    from dprecipe.contract.stages import PaidStage
    from dprecipe.contract.starter import Starter
    from dprecipe.data.schema import Data
    from dprecipe.faults import DataFault, Finding
    from dprecipe.language.audit import AuditBlock
    from dprecipe.language.base import Auto, Block
    from dprecipe.language.blocks import Budget, Runtime
    from dprecipe.language.training import Training
    from dprecipe.language.tuning import Tuning
    from dprecipe.models.schema import Model
    from dprecipe.privacy.events import Charge, Event

    class MechanismBlock(Block):
        """A `mechanism` block of any kind."""

        kind: str

        @property
        def solvable(self) -> dict[str, float | int | Auto]:
            """Values that may be `auto`, by dotted path."""


RuntimeOption = Literal["compile", "precision", "recompute", "physical_batch", "processes", "sharding", "loggers"]
"""A key of `runtime` that not every mechanism reads."""
ALL_RUNTIME_OPTIONS: frozenset[RuntimeOption] = frozenset(get_args(RuntimeOption))


class Blocks(Protocol):
    """The blocks of a recipe that a mechanism may see: its own, and those whose constants it accounts with."""

    @property
    def data(self) -> Data: ...
    @property
    def model(self) -> Model: ...
    @property
    def mechanism(self) -> MechanismBlock: ...
    @property
    def budget(self) -> Budget: ...
    @property
    def training(self) -> Training: ...
    @property
    def tuning(self) -> Tuning | None: ...
    @property
    def audit(self) -> AuditBlock | None: ...
    @property
    def runtime(self) -> Runtime: ...


@dataclass(frozen=True)
class Facts:
    """The public constants that an account may use: all of them are written in the recipe."""

    size: int
    """Number of units that batches are drawn from: the planned units of the data, and the canaries of an audit."""
    budget: Budget
    training: Training
    unit: str
    data: Data
    model: Model
    attachments: Mapping[str, str] = field(default_factory=dict)
    """The contents of the recipe's files, as text: see `contract.plan.RecipeSource`."""
    stage_noise: Mapping[int, float] = field(default_factory=dict)
    """Noise multipliers of paid steps that are solved already, by the number of the step."""
    runtime: Runtime | None = None
    """The recipe's settings for the run itself; None where nothing is run."""
    known: bool = False
    """True if the recipe leaves values open, which were solved before."""

    @cached_property
    def stages(self) -> tuple[PaidStage, ...]:
        """The paid steps of preprocessing whose noise is known. What a mechanism releases is solved together with them.
        Raises `PlanRefused` where no noise meets a step's share of ε (P126).
        """
        from dprecipe.contract.stages import solve_stages

        return solve_stages(self.data, self.budget, self.stage_noise)

    @property
    def stage_charges(self) -> tuple[Charge, ...]:
        """Charges of those steps, in order."""
        from dprecipe.contract.stages import list_charges

        return list_charges(self.stages)

    selection: tuple[str, float, float | None] | None = None
    """(distribution, mean, shape) of the number of runs: the budget is for the best, and for stages, which run once."""
    score: tuple[Charge, ...] = ()
    """The charges that each run of a tuned run pays for the score by which it is compared."""

    def release(self, own: Sequence[Charge]) -> tuple[Charge, ...]:
        """Returns all charges: the stages', then `own`, or the best of several runs with these charges."""
        return (*self.stage_charges, *self.select(own))

    def select(self, own: Sequence[Charge]) -> tuple[Charge, ...]:
        """Returns the charges without the stages: `own`, or the best of several such runs, each with its score."""
        if self.selection is None:
            return tuple(own)
        from dprecipe.privacy.tuning.plan import select_best

        return (select_best((*own, *self.score), *self.selection),)

    @property
    def layers(self) -> tuple[int, ...]:
        """Number of parameters of each layer of the model."""
        from dprecipe.data.facts import describe_data
        from dprecipe.models.layout import layer_sizes

        data = describe_data(self.data)
        return layer_sizes(self.model, data.shape, data.outputs, data.vocabulary)

    @property
    def cap(self) -> float | None:
        """The budget's ε, `None` for `auto`; rounded down to the digits in which costs are reported (rounded up)."""
        epsilon = self.budget.epsilon
        return None if epsilon == "auto" else round_down(epsilon)

    @staticmethod
    def of(recipe: Blocks, attachments: Iterable[tuple[str, str]] = ()) -> Facts:
        return Facts(
            recipe.data.planned_units + (0 if recipe.audit is None else recipe.audit.canaries or 0),
            recipe.budget,
            recipe.training,
            unit_name(recipe),
            recipe.data,
            recipe.model,
            dict(attachments),
            selection=None if recipe.tuning is None else recipe.tuning.runs.selection,
            score=() if recipe.tuning is None else list_score_charges(recipe.tuning.score.noise_multiplier),
            runtime=recipe.runtime,
        )


def unit_name(recipe: Blocks) -> str:
    """Returns the name that the guarantee has for the protected unit."""
    unit = recipe.data.unit
    return name_unit(None) if unit == "record" else name_unit(unit.column, unit.name)


class MechanismPlan(Protocol):
    """A mechanism's plan, as the core knows it: what the mechanism will do, with every free variable solved.

    Such a plan is a frozen dataclass, whose fields become the plan's JSON. Noise, sampling rates and the number of
    steps are read from the events and stored nowhere else. `contract.plan.UsualPlan` has the answers that most share.
    """

    @property
    def kind(self) -> str:
        """The mechanism's kind."""

    @property
    def events(self) -> tuple[Charge, ...]:
        """The charges of the run, in order."""

    @property
    def indivisible(self) -> tuple[Charge, ...]:
        """The charges of any run that begins, however it ends; empty where it can end early at a lower cost."""

    @property
    def length(self) -> Length:
        """The length of the run."""

    @property
    def released(self) -> tuple[str, ...]:
        """The results that the run publishes, in words: the model first."""

    @property
    def scheme(self) -> str:
        """The sampling scheme."""

    @property
    def sampling_rate(self) -> float | None:
        """The sampling rate of the first step; `None`: no unit joins at a rate."""

    @property
    def expected_batch(self) -> float:
        """Expected size of the first batch, in units."""

    @property
    def largest_expected_batch(self) -> float:
        """The largest expected batch size of the run, in units."""

    @property
    def max_batch_size(self) -> int | None:
        """Upper bound on the batch size, in units; `None`: no bound."""

    @property
    def hides_duration(self) -> bool:
        """True if the guarantee is an average over the run's length, so that this length is secret."""

    @property
    def has_one_norm(self) -> bool:
        """True if one norm bounds a unit's part in a noisy sum of gradients as a whole."""

    @property
    def copies(self) -> int:
        """Rows that the model sees for each record."""

    @property
    def attachments(self) -> tuple[str, ...]:
        """The names of the attachments that the plan depends on: see `RecipeSource.attachments`."""

    @property
    def reads_training_records(self) -> bool:
        """True if the run opens the private records."""

    @property
    def identity(self) -> str | None:
        """The column that identifies a training record permanently; `None`: records need no identity."""

    @property
    def epsilon_note(self) -> str:
        """Text that `dprecipe plan` prints after ε: empty, or starting with a comma."""

    def describe(self) -> list[tuple[str, str]]:
        """Returns the rows that `dprecipe plan` prints: a name and a value each."""


P_co = TypeVar("P_co", bound=MechanismPlan, covariant=True)


@dataclass(frozen=True, slots=True)
class Planned(Generic[P_co]):
    """The result of planning a recipe."""

    plan: P_co
    solved: Mapping[str, float | int]
    """The values that were `auto`, by path in the recipe."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Finding, ...] = ()
    """Warnings that depend on the solved values."""


B_contra = TypeVar("B_contra", bound="Block", contravariant=True)


class Account(Protocol[B_contra]):
    """The accounting half of a mechanism."""

    def check(self, spec: B_contra, facts: Facts) -> list[Finding]:
        """Finds what makes the mechanism impossible or unaccountable; cheap, reads no data."""

    def plan(self, spec: B_contra, facts: Facts) -> Planned[MechanismPlan]:
        """Solves the free variable. Raises `PlanRefused` when the budget can't hold the plan."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A mechanism as the core knows it: its traits, and the places of its parts.

    Parts are imported on first use, so that help and validation stay fast and load no torch.
    """

    kind: str
    package: str
    summary: str
    """A description in one line."""
    reads_files: bool = False
    """True if `<package>.files` summarises files that the recipe names."""
    private_files: Callable[[object], Mapping[str, str]] = lambda block: {}
    """Returns the files of private data that a recipe's block names, below the data root, by key; policies use it."""
    checks_files: bool = False
    """True if `<package>.private_files` compares the files of `private_files` with a plan."""
    has_student: bool = False
    """True if the released model, of any kind, is a student of public records and released labels: it is free."""
    is_convex: bool = False
    """True if it is for convex losses with proved constants: its account judges the model; its steps are its own."""
    has_length: bool = True
    """True if `training` sets the length of the run; if not, a recipe omits the block."""
    composes_paid_steps: bool = False
    """True if its guarantee holds together with paid steps of preprocessing, which read private records."""
    can_hide_size: bool = False
    """True if its run and its account need only a bound on the number of units, and divide by a released number."""
    can_split: bool = False
    """True if a split may decide the number of training units: `Facts.size` is then only the planned number."""
    can_omit_records: bool = False
    """True if a record may add nothing to its sums: labels may be missing (`dprecipe.data.omitted`)."""
    can_be_tuned: bool = False
    """True if its account solves for the best of several runs (`Facts.select`); trials keep its events."""
    covers_iterates: bool = False
    """True if it releases every noisy gradient: filters, and any choice among iterates, are free."""
    runtime_options: frozenset[RuntimeOption] = frozenset()
    """The mechanism-specific keys of `runtime` that it reads."""
    hides_duration: Callable[[object], bool] = lambda block: False
    """Returns True if the guarantee of a recipe's block is an average over the run's length; its plan says so too."""
    has_teachers: bool = False
    """True if it trains many models on parts of the records, which other machines can train: `--teachers`, `--ray`."""
    canaries: tuple[str, ...] = ()
    """The kinds of canaries that its runs can have (`AuditBlock.canary`)."""
    audit_depths: tuple[str, ...] = ()
    """The depths of its audits (`dprecipe.privacy.audit.results.Depth`), run by its runner's `audit`."""
    relations: tuple[str, ...] = ("add_or_remove_one", "replace_one", "zero_out_one")
    """The neighbouring relations that its guarantee covers (`privacy.adjacency.Neighbouring`)."""
    relations_reason: str = ""
    """The reason why its guarantee covers no other relation, as a clause."""

    @property
    def block(self) -> type[Block]:
        """The type of its block of a recipe."""
        return cast("type[Block]", import_module(f"{self.package}.schema").BLOCK)

    @property
    def events(self) -> tuple[type[Event], ...]:
        """The event types that it releases; importing them registers them for ledgers and certificates."""
        return cast("tuple[type[Event], ...]", import_module(f"{self.package}.events").EVENTS)

    @property
    def account(self) -> Account[Block]:
        """Its accounting module. Each such module checks itself against the protocol, for its own block."""
        return cast("Account[Block]", import_module(f"{self.package}.account"))

    @property
    def plan_type(self) -> type[MechanismPlan]:
        """The type of its plans."""
        return cast("type[MechanismPlan]", import_module(f"{self.package}.plan").PLAN)

    @property
    def certificate(self) -> CertificatePart[Any, Any, Any]:
        """Its part of the certificate."""
        return cast("CertificatePart[Any, Any, Any]", import_module(f"{self.package}.certificate").PART)

    @property
    def starter(self) -> Starter | None:
        """Its starter recipes; None where it has none."""
        return cast("Starter", import_module(f"{self.package}.starter")) if self._has("starter") else None

    def draft_votes(self, file: Path, path: str, blank: str) -> str | None:
        """Drafts a recipe for a private file of votes, `path` in it; None where it has no draft. Raises `DataFault`."""
        draft = getattr(self.starter, "draft_votes", None)
        return None if draft is None else cast("str", draft(file, path, blank))

    @property
    def commands(self) -> Commands | None:
        """Its additions to the command line; None where there are none."""
        return cast("Commands", import_module(f"{self.package}.commands")) if self._has("commands") else None

    def find_file_faults(self, plan: Plan, root: Path, public: int | None) -> list[DataFault]:
        """Returns what is wrong with the files of private data that the mechanism's block names. `public`: how many
        public records were read; None if none were."""
        module = import_module(f"{self.package}.private_files") if self.checks_files else None
        return [] if module is None else cast("list[DataFault]", module.find_faults(plan, root, public))

    @property
    def synonyms(self) -> str:
        """The text of its `synonyms.toml`; empty where it has none."""
        from importlib import resources

        file = resources.files(self.package) / "synonyms.toml"
        return file.read_text("utf-8") if file.is_file() else ""

    def _has(self, part: str) -> bool:
        return find_spec(f"{self.package}.{part}") is not None

    def import_runner(self) -> object:
        """Imports torch and the plans' runner, `RUNNER` of `<package>.train.run` (`dprecipe.training.run.runner`).

        Raises:
            RunFailed: a library that it needs can't be imported.
        """
        from dprecipe.libraries import importing_libraries

        with importing_libraries(package=self.package):
            runner: object = import_module(f"{self.package}.train.run").RUNNER
        return runner

    def read_attachments(self, recipe: Blocks, folder: Path) -> tuple[Mapping[str, str], list[Finding]]:
        """Reads the files that the recipe names: their contents as text, and findings. Most recipes name none."""
        if not self.reads_files:
            return {}, []
        files = import_module(f"{self.package}.files")
        return cast("tuple[Mapping[str, str], list[Finding]]", files.read_attachments(recipe, folder))
