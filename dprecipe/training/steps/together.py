"""The processes of one run: what they compare before it, what the leader sends them, and how they learn of its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from dprecipe import __version__
from dprecipe.contract.plan import Plan
from dprecipe.data.paid.constants import StageConstants
from dprecipe.faults import InternalFault
from dprecipe.noise.entropy import Secrets
from dprecipe.training.canaries.contract import Coins
from dprecipe.training.processes.processes import Processes, join_processes
from dprecipe.training.program.program import StepwiseProgram
from dprecipe.training.publish.provenance import digest_of, digest_set
from dprecipe.training.run.runner import EndedWithoutModel


@final
@dataclass(frozen=True, slots=True)
class Shared:
    """Values that the leader of a run sends to its followers before the first step."""

    secrets: Secrets
    constants: tuple[StageConstants, ...]
    """Constants that the paid steps of preprocessing released."""
    coins: Coins | None
    """Coins of the canaries of an audited run."""


@contextmanager
def telling_end(processes: Processes) -> Iterator[None]:
    """Tells the other processes of a run, which wait for its first step, if it has ended without a model."""
    try:
        yield
    except EndedWithoutModel as ended:
        run = ended.run
        processes.agree(lambda: run)
        raise


def refuse_answer() -> Any:
    """Refuses to answer for a process that is not the leader: it is never asked."""
    raise InternalFault("a process that is not the leader was asked")


def processes_of(plan: Plan, program: StepwiseProgram) -> Processes:
    """Returns the processes of this run, once all of them hold the same plan, weights and records.

    Raises:
        UsageFault: they hold different ones.
        RunFailed: they can't reach each other.
    """
    processes = join_processes(program.device)
    if processes.count > 1:
        processes.check_same("plan", plan.digest)
        # It is outside the plan, and decides what processes send each other and who adds noise.
        processes.check_same("runtime.sharding", plan.runtime.sharding)
        processes.check_same("runtime.physical_batch", plan.runtime.physical_batch)
        processes.check_same("model", digest_of(p.detach().cpu().numpy() for p in program.model.state_dict().values()))
        processes.check_same("version of dprecipe", __version__)
        processes.check_same("set of records", digest_set(program.sets.train))
    return processes
