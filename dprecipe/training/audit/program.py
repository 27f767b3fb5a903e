"""Depth `program` of mechanisms of noisy sums: deterministic and statistical tests of the compiled program.

The ledger and the plan: every draw of noise is on record before, none is drawn twice, and the events cost ε.

Replay of the optimiser: its momentum, averages, filters and adapted constants follow from noisy sums alone. Two
programs see different records, in batches of different sizes, and are given the same noisy sums: a gate hands the
second what the first released. Their states must then be equal, bit for bit.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor, nn

from dprecipe.contract.plan import Plan
from dprecipe.models.form import Form
from dprecipe.models.modules.inspection import is_draw_free
from dprecipe.privacy import accountants, cross_check
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.audit.results import Equality, Excess
from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.sampling import EveryUnit
from dprecipe.training.audit.crafted import CraftedRecords
from dprecipe.training.audit.noise import examine_blind, examine_divisor, examine_lattice, examine_noise
from dprecipe.training.audit.request import AuditFinding
from dprecipe.training.audit.rig import Rig, Seen
from dprecipe.training.audit.sampling import draw_batches, examine_batches
from dprecipe.training.audit.sums import ROUNDING, SumSearch
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.engine.full_precision import in_run_precision
from dprecipe.training.probe.sums import SumTests
from dprecipe.training.program.own_loss import loss_of
from dprecipe.training.program.program import Sets, StepwiseProgram, Synthetic, form_of, prepare, store_of
from dprecipe.training.program.records import Store
from dprecipe.training.run.gate import Gate, Ticket
from dprecipe.training.run.runner import PythonInputs
from dprecipe.training.steps.contract import Build
from dprecipe.training.steps.states import find_differences, flatten_state

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
    """Plan as it is audited: speed settings are its own, and no filter stands between noisy sums and the optimiser."""
    build: Build
    program: StepwiseProgram
    form: Form
    folder: Path
    beat: Callable[[], None]
    """Called between pieces of work."""
    filtered: Plan | None = None
    """The same plan with its filter, where it has one."""

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
    plain = replace(audited, training=audited.training.model_copy(update={"filter": None}))
    filtered = None if audited.training.filter is None else audited
    with tempfile.TemporaryDirectory() as folder, in_run_precision():
        yield Bench(plain, build, program, form, Path(folder), beat, filtered)


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
    yield from examine_replay(partial(bench.open, plan=bench.filtered), stores, event, start)


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
    loss = loss_of(bench.plan, bench.program.model)
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


RENYI = 0.02
"""Largest relative excess of the library's Rényi accountant over ours: their orders differ."""


def examine_ledgers(rigs: Sequence[Rig]) -> Iterator[AuditFinding]:
    """Yields the tests of closed attempts whose events were all released."""
    differing, draws, early, repeated = 0, 0, 0, 0
    for rig in rigs:
        differing += abs(rig.settled - math.ceil(rig.secrets.draws / rig.event.steps))
        draws, early, repeated = draws + rig.secrets.draws, early + rig.secrets.early, repeated + rig.secrets.repeated
    draws = max(1, draws)
    texts: Mapping[str, tuple[str, int]] = {
        "ledger_counts": ("the ledger settles as many events as had noise drawn", differing),
        "ledger_first": ("an event is in the ledger's file before its noise is drawn", early),
        "streams_once": ("no stream of noise is drawn from twice", repeated),
    }
    for name, (text, count) in texts.items():
        yield AuditFinding("program", name, text, Equality(differing=min(count, draws), compared=draws))


def examine_plan(plan: Plan) -> Iterator[AuditFinding]:
    """Checks that the planned events cost what is claimed, at the δ that the recipe states, by two libraries."""
    budget, written = plan.budget, plan.resolved["budget"]
    delta, cap = float(written["delta"]), written["epsilon"]
    claimed = plan.guarantee.epsilon
    own = accountants.epsilon(plan.events, delta, budget.neighbouring, budget.accountant)
    yield _excess("epsilon", "the planned events cost no more than the claim, at the recipe's δ", own, claimed)
    if cap != "auto":
        yield _excess("epsilon_cap", "the claim is within the recipe's budget", claimed, float(cap))
    yield from _examine_unsampled(plan)
    relative, absolute = max(charge.event.cross_check_tolerance for charge in plan.events)
    answer = cross_check.ask_library(plan.events, delta, budget.neighbouring)
    if answer.name == "dp_accounting.pld":
        allowed = claimed * (1 + relative) + absolute
    else:
        allowed = accountants.epsilon(plan.events, delta, budget.neighbouring, "rdp") * (1 + RENYI) + absolute
    if math.isfinite(answer.epsilon):
        text = "a second library finds no more than the claim, at the recipe's δ"
        yield _excess("epsilon_second", text, answer.epsilon, allowed)


def _examine_unsampled(plan: Plan) -> Iterator[AuditFinding]:
    """Steps with every unit are charged the μ² that their noise and the move of a unit come to. The second
    library takes μ from the events; here it is computed independently."""
    relation, owed, charged = Neighbouring(plan.budget.neighbouring), 0.0, 0.0
    moved = 2.0 if relation is Neighbouring.REPLACE_ONE else 1.0
    for charge in plan.mechanism_plan.events:
        event = charge.event
        squared = event.squared_mu(charge.count, relation)
        if squared is not None and isinstance(event.sampling(), EveryUnit):
            (multiplier,) = event.multipliers
            owed += charge.count * (moved / multiplier) ** 2
            charged += squared
    if owed:
        text = "steps with every unit are charged what their noise and the move of one unit come to"
        yield _excess("unsampled_mu", text, math.sqrt(owed), math.sqrt(charged) * (1 + 1e-12))


def _excess(name: str, text: str, largest: float, allowed: float) -> AuditFinding:
    return AuditFinding("program", name, text, Excess(largest=largest, allowed=allowed))


SIZES = ((1, 4), (3, 0), (2, 7), (0, 2))
"""Units in each batch of the two programs."""


@final
class ReplayGate:
    """A gate that hands out recorded noisy sums, in order."""

    def __init__(self, noisy: Sequence[Tensor]) -> None:
        self._noisy = iter(noisy)
        self.done = 0

    def admit(self) -> Ticket | None:
        return None

    def release(self, ticket: Ticket, clipped: ClippedSum) -> Tensor:
        return next(self._noisy).clone().to(clipped.value.device)


def examine_replay(
    open_rig: Callable[[Store, str, Charge], Rig], stores: Sequence[Store], event: Event, start: int
) -> Iterator[AuditFinding]:
    """Yields the test of states. `stores`: of two data sets that differ in every record. `start`: the number of the
    step."""
    states: list[dict[str, Any]] = []
    recorded: list[Tensor] = []
    for number, store in enumerate(stores):
        with open_rig(store, f"replay{number}", Charge(event, len(SIZES))) as rig:
            rig.module.steps_done = start
            if number:
                rig.module.gate = cast(Gate, ReplayGate(recorded))
            for sizes in SIZES:
                rig.module.step_on(rig.ticket(), rig.number, np.arange(min(sizes[number], store.units)))
                rig.number += 1
            recorded = recorded or [noisy for _, _, noisy in rig.gate.seen]
            states.append(flatten_state({**rig.module.state(), "released": rig.module.released_state()}))
    first, second = states
    differing, compared = len(find_differences(first, second)), len(first.keys() | second.keys())
    text = "weights, momentum, averages and adapted constants follow from noisy sums alone, bit for bit"
    yield AuditFinding("program", "post_processing", text, Equality(differing=differing, compared=compared))
