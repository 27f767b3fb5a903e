"""Depth `program` of mechanisms of noisy sums: deterministic and statistical tests of the compiled program."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import nn

from dprecipe.contract.plan import Plan
from dprecipe.models.form import Form
from dprecipe.models.modules.inspection import is_draw_free
from dprecipe.privacy.audit.results import Equality, Excess
from dprecipe.privacy.events import Charge, Event
from dprecipe.training.audit.crafted import CraftedRecords
from dprecipe.training.audit.ledger import examine_ledgers, examine_plan
from dprecipe.training.audit.noise import examine_blind, examine_divisor, examine_lattice, examine_noise
from dprecipe.training.audit.replay import examine_replay
from dprecipe.training.audit.request import AuditFinding
from dprecipe.training.audit.rig import Rig, Seen
from dprecipe.training.audit.sampling import draw_batches, examine_batches
from dprecipe.training.audit.sums import ROUNDING, SumSearch
from dprecipe.training.engine.full_precision import in_run_precision
from dprecipe.training.probe.sums import SumTests
from dprecipe.training.program.losses import choose_loss
from dprecipe.training.program.program import Sets, StepwiseProgram, Synthetic, form_of, prepare, store_of
from dprecipe.training.program.records import Store
from dprecipe.training.run.runner import PythonInputs
from dprecipe.training.steps.contract import Build

PART = 8
"""Units in a part of the engine, so that batches of a few parts are fast."""
DRAWS = 200_000
"""Numbers of noise that are examined, about."""
MIN_RELEASES, MAX_RELEASES = 4, 200
"""Releases of each of two attempts."""
UNITS = (0, 0, 1, 0, 3, 0)
"""Units of the batches whose noise is examined, over and over."""
SAMPLING_SECONDS, PLANNED_SECONDS = 3.0, 4.0


def remark_on(device: torch.device) -> tuple[str, ...]:
    """Returns what to say of an audit on this device."""
    if device.type == "cpu":
        return ()
    return (f"sums on {device} are not the same, bit for bit, each time: the audit is of this device alone",)


@final
@dataclass(frozen=True, slots=True)
class Bench:
    """A compiled program on synthetic records, and where its attempts are kept."""

    plan: Plan
    """Plan as it is audited: speed settings are its own."""
    build: Build
    program: StepwiseProgram
    form: Form
    folder: Path
    beat: Callable[[], None]
    """Called between pieces of work."""

    def records(self, seed: int = 0, least: int = PART + 3) -> CraftedRecords:
        """Returns synthetic records of the declared form."""
        return CraftedRecords(self.plan, self.form, seed, least)

    def store(self, records: CraftedRecords, plan: Plan | None = None) -> Store:
        """Stores records as the run's own are stored."""
        return store_of(replace(plan or self.plan, audit=None), records, self.program.device)  # without canaries

    def open(self, store: Store, name: str, charge: Charge, plan: Plan | None = None) -> Rig:
        """Returns an attempt in the folder of this name."""
        return Rig(plan or self.plan, self.build, self.program, store, self.folder / name, charge)

    @property
    def phases(self) -> tuple[tuple[int, Event], ...]:
        """The first step of the first event and of the last one, with the event, if they are two."""
        charges = self.plan.mechanism_plan.events
        starts = [0, *accumulate(charge.count * charge.event.steps for charge in charges)][:-1]
        return tuple(dict.fromkeys((starts[at], charges[at].event) for at in (0, len(charges) - 1)))


@contextmanager
def open_bench(
    plan: Plan,
    build: Build,
    tests: Callable[[Plan, nn.Module], SumTests],
    beat: Callable[[], None],
    inputs: PythonInputs | None = None,
) -> Iterator[Bench]:
    """Yields the program of a plan, probed as for a run, in a temporary folder; with nothing that reaches beyond it. A
    module from Python is copied, and of records from there only the form is read.

    Raises:
        PlanRefused, RunFailed: see `dprecipe.training.program.program.prepare`.
    """
    rows = plan.mechanism_plan.copies * (1 if plan.data.unit == "record" else plan.data.unit.max_records)
    speed = {"compile": False, "processes": 1, "insecure": None, "physical_batch": PART * rows, "loggers": ()}
    audited = replace(
        plan,
        runtime=plan.runtime.model_copy(update=speed),
        budget=replace(plan.budget, account=None),
        release=plan.release.model_copy(update={"report": False}),
    )
    given = inputs or PythonInputs()
    model = copy.deepcopy(given.model)
    program = prepare(audited, tests, lambda: Sets(Synthetic(audited)), model, given.train)
    form = form_of(audited, program.facts, program.model, given.train)
    with tempfile.TemporaryDirectory() as folder, in_run_precision():
        yield Bench(audited, build, program, form, Path(folder), beat)


def examine_program(bench: Bench, physical_batch: int) -> Iterator[AuditFinding]:
    """Yields all tests of the depth. `physical_batch`: the run's own."""
    yield from examine_plan(bench.plan)
    yield from _search_sums(bench, physical_batch)
    drawn: set[bytes] = set()
    for number, (start, event) in enumerate(bench.phases):
        yield from _examine_noise(bench, start, event, number, drawn)
    start, event = bench.phases[0]
    records = bench.records(least=0)  # exactly those who are sampled
    attempts, streams = [], set[bytes]()
    for _ in range(2):
        with bench.open(bench.store(records), "sampling", Charge(event, 1000)) as rig:
            attempts.append(draw_batches(rig, records, SAMPLING_SECONDS / 2, bench.beat))
            rig.close()
            streams |= rig.secrets.keys
    yield from examine_batches(event, records.unit_count, attempts)
    yield _examine_streams(drawn, streams)
    yield _examine_given(bench, start, event)
    yield _examine_blind(bench, start, event)
    stores = [bench.store(bench.records(seed)) for seed in (0, 1)]
    yield from examine_replay(bench.open, stores, event, start)


def _examine_given(bench: Bench, start: int, event: Event) -> AuditFinding:
    """Checks that the sum to which the gate adds noise, in its bound, is the one that the search has looked at."""
    records = bench.records()
    with bench.open(bench.store(records), "given", Charge(event, 1)) as rig:
        rig.module.steps_done = start
        units = np.arange(min(3, records.unit_count))
        expected, seen = rig.sum(units), rig.step(units)
    off = float((seen.summed / seen.bound - expected.value / expected.bound).abs().max())
    text = "noise is added to the sum whose sensitivity was searched for, by the bound that it states"
    return AuditFinding("program", "sum_given", text, Excess(largest=off, allowed=ROUNDING))


def _examine_blind(bench: Bench, start: int, event: Event) -> AuditFinding:
    """Returns two attempts with the same draws, and different units."""
    store, seen = bench.store(bench.records()), []
    with bench.open(store, "blind0", Charge(event, 1)) as one, bench.open(store, "blind1", Charge(event, 1)) as other:
        other.share_noise(one)
        for rig, count in ((one, 0), (other, 3)):
            rig.module.steps_done = start
            seen.append(rig.step(np.arange(min(count, store.units))))
    return examine_blind(seen[0], seen[1])


def search_sums(bench: Bench, rig: Rig, records: CraftedRecords, store: Store) -> SumSearch:
    """Returns a search for the record that moves the rig's sums farthest."""
    target = bench.program.facts.target
    loss = choose_loss(target, bench.plan.training)
    coupled = store.augments or not is_draw_free(bench.program.model)
    return SumSearch(rig, records, bench.form, loss, target, min(PART, records.unit_count), coupled, bench.beat)


def _search_sums(bench: Bench, physical_batch: int) -> Iterator[AuditFinding]:
    records, (start, event) = bench.records(), bench.phases[0]
    store = bench.store(records)
    with bench.open(store, "sums", Charge(event, 1)) as rig:
        rig.module.steps_done = start
        search = search_sums(bench, rig, records, store)
        yield from search.run()
    runtime = bench.plan.runtime.model_copy(update={"physical_batch": physical_batch})
    plan, units = replace(bench.plan, runtime=runtime), round(bench.plan.mechanism_plan.largest_expected_batch)
    with bench.open(bench.store(records, plan), "planned", Charge(event, 1), plan) as rig:
        yield from search.run_planned_size(rig, max(1, min(units, records.unit_count)), PLANNED_SECONDS)


def _examine_streams(one: Set[bytes], other: Set[bytes]) -> AuditFinding:
    """Streams of noise of two runs."""
    text = "two runs of one plan have no stream of noise in common"
    return AuditFinding("program", "streams_secret", text, Equality(differing=len(one & other), compared=len(other)))


def _examine_noise(bench: Bench, start: int, event: Event, number: int, drawn: set[bytes]) -> Iterator[AuditFinding]:
    """Examines two attempts of one run; the second goes on where the first was stopped. Their streams of noise are
    added to `drawn`."""
    records = bench.records()
    size = sum(p.numel() for p in bench.program.model.parameters() if p.requires_grad)
    releases = max(MIN_RELEASES, min(MAX_RELEASES, DRAWS // (2 * size)))
    charge = Charge(event, 2 * -(-releases // event.steps))
    attempts: list[list[Seen]] = []
    rigs: list[Rig] = []
    state = None
    for _ in range(2):
        with bench.open(bench.store(records), f"noise{number}", charge) as rig:
            if state is not None:
                rig.module.restore(state)
            seen = []
            for at in range(releases):
                bench.beat()
                rig.module.steps_done = start
                seen.append(rig.step(np.arange(min(UNITS[at % len(UNITS)], records.unit_count))))
            state = rig.module.state()
            attempts.append(seen)
            rigs.append(rig)
            rig.close()
            drawn |= rig.secrets.keys
    every = [seen for attempt in attempts for seen in attempt]
    suffix = "" if number == 0 else "_last"
    for finding in (*examine_noise(attempts), *examine_divisor(every), *examine_lattice(every), *examine_ledgers(rigs)):
        yield replace(finding, id=f"{finding.id}{suffix}")
