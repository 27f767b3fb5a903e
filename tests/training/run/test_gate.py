"""The gate: record, then release; refuse before the budget would be exceeded."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dprecipe.contract.plan import PlanBudget
from dprecipe.faults import RunFailed
from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from dprecipe.noise.lattice import lattice_spacing
from dprecipe.privacy import accountants, calibrate
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.correlated_sums import BandedGaussian, CycleGaussian
from dprecipe.privacy.correlation.series import inverse_of
from dprecipe.privacy.dealt_sums import DealtGaussian
from dprecipe.privacy.events import Charge, Event, count_by_event, count_events
from dprecipe.privacy.ledger import LedgerWriter, read
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian, PoissonLaplace
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.engine.clipping import Norm
from dprecipe.training.run import gate as gate_module
from dprecipe.training.run.gate import Gate, SumNoise, Ticket
from dprecipe.training.steps.noise import _CpuBuffer, add_noise

PLAN = "sha256:" + "0" * 64
RELATION = Neighbouring.ADD_OR_REMOVE_ONE
BUDGET = PlanBudget(2.0, 1e-5, RELATION, "pld")
EVENT = Gaussian(10.0)
ROOM = calibrate.calibrate_count(EVENT, BUDGET.epsilon, BUDGET.delta, RELATION, BUDGET.accountant)
ZERO = ClippedSum(torch.zeros(3), 1.0)


def gate(path: Path, planned: int, event: Event = EVENT, charged: tuple[Charge, ...] = (), done: int = 0) -> Gate:
    return Gate([Charge(event, planned)], BUDGET, LedgerWriter(path, PLAN), Secrets(1), charged, done)


def drain(gate: Gate) -> int:
    """Take every ticket there is; how many noisy sums came out."""
    releases = 0
    while (ticket := gate.admit()) is not None:
        for _ in range(ticket.releases):
            gate.release(ticket, ZERO)
            releases += 1
    return releases


def test_a_plan_within_the_budget_runs_whole(tmp_path: Path) -> None:
    gated = gate(tmp_path / "l", ROOM)
    assert drain(gated) == ROOM
    assert gated.close() == "completed"
    assert read(tmp_path / "l").charges == (Charge(EVENT, ROOM),)


@pytest.mark.parametrize(
    ("event", "norm"), [(EVENT, "l1"), (PoissonLaplace(1.0, 10.0), "l2")], ids=["gaussian", "laplace"]
)
def test_a_sum_that_is_bounded_in_another_norm_than_the_account_says_is_not_released(
    tmp_path: Path, event: Event, norm: Norm
) -> None:
    gated = gate(tmp_path / "l", 1, event)
    ticket = gated.admit()
    assert ticket is not None
    with pytest.raises(RunFailed, match=f"bounded in the {norm} norm"):
        gated.release(ticket, ClippedSum(torch.zeros(3), 1.0, norm))
    assert ticket.used == 0


def test_only_the_last_ticket_that_was_given_has_noise(tmp_path: Path) -> None:
    gated = gate(tmp_path / "l", 2)
    first, second = gated.admit(), gated.admit()
    assert first is not None
    assert second is not None
    for ticket in (first, Ticket(EVENT, 2)):
        with pytest.raises(RunFailed, match="gave no such ticket"):
            gated.release(ticket, ClippedSum(torch.zeros(3), 1.0))
        assert ticket.used == 0
    gated.release(second, ClippedSum(torch.zeros(3), 1.0))


def test_the_stop_is_a_refusal_before_the_budget_would_be_exceeded(tmp_path: Path) -> None:
    """A ledger with room for k steps gives exactly k noisy sums, whatever was asked for."""
    lost = (Charge(EVENT, 7),)
    gated = gate(tmp_path / "l", ROOM, charged=lost)
    assert drain(gated) == ROOM - 7
    assert gated.admit() is None
    assert gated.close() == "budget"
    charges = (*lost, *read(tmp_path / "l").charges)
    assert count_events(charges) == ROOM
    assert accountants.epsilon(charges, 1e-5, RELATION, "pld") <= BUDGET.epsilon
    assert accountants.epsilon([Charge(EVENT, ROOM + 1)], 1e-5, RELATION, "pld") > BUDGET.epsilon


def test_a_plan_that_lies_about_its_length_is_stopped_all_the_same(tmp_path: Path) -> None:
    lost = (Charge(Gaussian(5.0), 1),)  # an event the plan does not hold: the whole sum is asked about
    gated = gate(tmp_path / "l", ROOM, charged=lost)
    ran = drain(gated)
    assert gated.close() == "budget"
    assert accountants.epsilon((*lost, Charge(EVENT, ran)), 1e-5, RELATION, "pld") <= BUDGET.epsilon
    assert accountants.epsilon((*lost, Charge(EVENT, ran + 1)), 1e-5, RELATION, "pld") > BUDGET.epsilon


def test_law_1_every_event_is_on_disk_before_its_noise_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, drawn = tmp_path / "l", 0

    def spying(value: torch.Tensor, law: object, scale: object, stream: object) -> torch.Tensor:
        nonlocal drawn
        drawn += 1
        assert count_events(read(path).charges) >= drawn
        return value

    monkeypatch.setattr("dprecipe.training.run.gate.add_noise", spying)
    assert drain(gate(path, 200, PoissonGaussian(0.01, 5.0))) == 200 == drawn


def test_t6_no_ticket_no_noise_and_no_ticket_twice(tmp_path: Path) -> None:
    gated = gate(tmp_path / "l", 3)
    ticket = gated.admit()
    assert ticket is not None
    gated.release(ticket, ZERO)
    with pytest.raises(RunFailed, match="ledger does not hold"):
        gated.release(ticket, ZERO)


def test_an_epoch_of_batches_is_one_event_and_one_ticket(tmp_path: Path) -> None:
    event = DealtGaussian(10.0, 4)
    gated = gate(tmp_path / "l", 5, event)
    assert drain(gated) == 20
    gated.close()
    assert read(tmp_path / "l").charges == (Charge(event, 5),)


def test_t13_t15_noise_has_the_recorded_multiplier_times_the_sums_own_bound(tmp_path: Path) -> None:
    """Variance of 60,000 draws within five standard errors (6e-7), for two bounds."""
    gated = gate(tmp_path / "l", 2)
    for bound in (0.1, 3.0):
        ticket = gated.admit()
        assert ticket is not None
        noise = gated.release(ticket, ClippedSum(torch.full((60_000,), 2.0), bound)) - 2.0
        expected = (EVENT.noise_multiplier * bound) ** 2
        assert abs(float(noise.var()) / expected - 1) < 5 * math.sqrt(2 / 60_000)


def test_a_release_is_on_the_lattice_of_its_own_noise(tmp_path: Path) -> None:
    """Whatever the sum, and for the bound of each coordinate: 2^-21 to 2^-20 of the noise's scale."""
    bounds = torch.tensor([0.1, 0.1, 0.1, 0.1, 7.0]).repeat(4000).double()
    for bound, least in ((0.1, 0.1), (3.0, 3.0), (bounds, 0.1)):
        step = lattice_spacing(EVENT.noise_multiplier * least)
        for value in (torch.zeros(20_000), torch.rand(20_000) / 3, torch.randn(20_000).double() * 1e3):
            gated = gate(tmp_path / "l", 1)
            ticket = gated.admit()
            assert ticket is not None
            steps = gated.release(ticket, ClippedSum(value, bound)) / step
            assert torch.equal(steps, steps.round())
            assert len(set((steps.long() % 8).tolist())) == 8  # and on no coarser one
            (tmp_path / "l").unlink()


def test_t12_no_two_releases_share_noise(tmp_path: Path) -> None:
    gated = gate(tmp_path / "l", 40, DealtGaussian(10.0, 3))
    seen = set()
    while (ticket := gated.admit()) is not None:
        seen |= {gated.release(ticket, ZERO).numpy().tobytes() for _ in range(ticket.releases)}
    assert len(seen) == 120


def test_t24_an_interrupted_gate_settles_what_ran_and_a_new_one_charges_what_did_not(tmp_path: Path) -> None:
    path, faint = tmp_path / "l", Gaussian(100.0)
    first = gate(path, 100, faint)
    for _ in range(5):
        assert first.admit() is not None
    assert first.close(interrupted=True) == "interrupted"
    assert read(path).charges == (Charge(faint, 5),)
    second = gate(path, 100, faint, charged=read(path).charges, done=5)
    for _ in range(5):
        assert second.admit() is not None
    second._ledger.abandon()  # a crash
    charged = read(path).charges
    assert 10 <= count_events(charged) <= 12  # the last block is spent whole
    third = gate(path, 100, faint, charged=charged, done=8)
    assert drain(third) == 92
    third.close()
    assert count_events(read(path).charges) == count_events(charged) + 92


def test_a_ledger_that_cant_be_written_stops_the_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gated = gate(tmp_path / "l", 10)

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunFailed, match="No space left"):
        gated.admit()


def test_heterogeneous_plans_keep_their_order(tmp_path: Path) -> None:
    events = [Charge(Gaussian(20.0), 3), Charge(Gaussian(30.0), 2)]
    gated = Gate(events, BUDGET, LedgerWriter(tmp_path / "l", PLAN), Secrets(1))
    seen = []
    while (ticket := gated.admit()) is not None:
        seen.append(ticket.event)
    gated.close()
    assert seen == [Gaussian(20.0)] * 3 + [Gaussian(30.0)] * 2
    assert read(tmp_path / "l").charges == tuple(events)


def test_events_with_long_lines_are_reserved_several_at_a_time(tmp_path: Path) -> None:
    """An event of 256 bounds takes kilobytes of ledger: four of them share a line, one of few bounds has its own."""
    for shifts, reserved in ((256, 4), (3, 1)):
        table = tuple((0.001 * (i + 1), 1) for i in range(shifts))
        event = EncodedSum(0.001, 20.0, "laplace", None, table, False, PLAN)
        path = tmp_path / f"{shifts}"
        gated = gate(path, 400, event)
        assert gated.admit() is not None
        assert read(path).charges == (Charge(event, reserved),)


CYCLE = CycleGaussian(20.0, 0.75, 3, 0)


def draws_of(step: int, count: int, shard: int = 0) -> torch.Tensor:
    """The fresh draws of a step of the first pass or of a later one, as they are, without a sum."""
    ticket, used = divmod(step, CYCLE.batches)
    stream = Secrets(1).stream("noise", (shard << 64) + (ticket + 1 << 32) + used + 1)
    return add_noise(torch.zeros(count, dtype=torch.float64), Distribution("gaussian"), 1.0, stream)


def release_all(gated: Gate, clipped: ClippedSum) -> list[torch.Tensor]:
    noisy = []
    while (ticket := gated.admit()) is not None:
        noisy += [gated.release(ticket, replace(clipped, value=clipped.value.clone())) for _ in range(ticket.releases)]
    return noisy


def test_correlated_noise_takes_back_a_share_of_the_step_before_within_a_pass_and_across(tmp_path: Path) -> None:
    """In units of the noise, so of whatever norm; the first step takes nothing back."""
    bound = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).repeat(1000)
    noisy = release_all(gate(tmp_path / "l", 2, CYCLE), ClippedSum(torch.full((3000,), 7.0), bound))
    assert len(noisy) == 6
    for step, released in enumerate(noisy):
        expected = draws_of(step, 3000) - (CYCLE.previous * draws_of(step - 1, 3000) if step else 0.0)
        assert torch.allclose((released - 7.0) / (CYCLE.noise_multiplier * bound), expected, rtol=0, atol=4e-6)
        assert not torch.allclose((released - 7.0) / (CYCLE.noise_multiplier * bound), draws_of(step, 3000)) or not step


def test_correlated_noise_is_on_the_lattice_of_the_fresh_noise_and_rounded_once(tmp_path: Path) -> None:
    """The release is the sum plus all of the noise, in double precision, rounded to the nearest multiple."""
    sums = torch.linspace(-3, 3, 1001, dtype=torch.float64)
    noisy = release_all(gate(tmp_path / "l", 1, CYCLE), ClippedSum(sums, 1.0))
    spacing = lattice_spacing(CYCLE.noise_multiplier)
    streams = [Secrets(1).stream("noise", (1 << 32) + used) for used in (1, 2)]
    first, second = (torch.from_numpy(np.concatenate(_CpuBuffer(1001).draw(stream, 1001)).copy()) for stream in streams)
    exact = sums + CYCLE.noise_multiplier * (second - CYCLE.previous * first)
    assert torch.equal(noisy[1], torch.round(exact / spacing) * spacing)


def test_an_attempt_begins_with_fresh_noise(tmp_path: Path) -> None:
    """A later attempt has a new root, and goes on with the planned number of its pass."""
    path, events = tmp_path / "l", [Charge(CycleGaussian(20.0, 0.75, 3, number), 1) for number in range(3)]
    first = Gate(events, BUDGET, LedgerWriter(path, PLAN), Secrets(1))
    ticket = first.admit()
    assert ticket is not None
    first.release(ticket, ZERO)
    first.close(interrupted=True)
    resumed = Gate(events, BUDGET, LedgerWriter(path, PLAN), Secrets(1), read(path).charges, done=1)
    ticket = resumed.admit()
    assert ticket is not None
    assert ticket.event == events[1].event
    noisy = resumed.release(ticket, ClippedSum(torch.zeros(3000), 1.0))
    assert torch.allclose(noisy / 20.0, draws_of(0, 3000), rtol=0, atol=4e-6)  # nothing of step 2 is taken back


def test_a_pass_that_is_lost_is_charged_again_and_the_run_ends_a_pass_early(tmp_path: Path) -> None:
    path = tmp_path / "l"
    multiplier = calibrate.noise_multiplier(
        lambda m: [Charge(CycleGaussian(m, 0.75, 3, number), 1) for number in range(3)], 2.0, 1e-5, RELATION, "pld"
    )
    events = [Charge(CycleGaussian(multiplier, 0.75, 3, number), 1) for number in range(3)]
    ledger = LedgerWriter(path, PLAN)
    assert Gate(events, BUDGET, ledger, Secrets(1)).admit() is not None
    ledger.abandon()
    resumed = Gate(events, BUDGET, LedgerWriter(path, PLAN), Secrets(2), read(path).charges)
    assert drain(resumed) == 6
    assert resumed.close() == "budget"
    assert count_by_event(read(path).charges) == {events[0].event: 2, events[1].event: 1}
    assert accountants.epsilon(read(path).charges, 1e-5, RELATION, "pld") <= BUDGET.epsilon


def test_each_shard_takes_back_its_own(tmp_path: Path) -> None:
    noise = SumNoise(Secrets(1))
    for step in range(2):
        for shard in range(2):
            ticket = Ticket(CYCLE, 1)
            ticket.used = step
            released = noise.release(ticket, ClippedSum(torch.zeros(500), 1.0), shard) / CYCLE.noise_multiplier
            expected = draws_of(step, 500, shard) - (CYCLE.previous * draws_of(0, 500, shard) if step else 0.0)
            assert torch.allclose(released, expected, rtol=0, atol=4e-6)


BANDS = BandedGaussian(20.0, 0.5, (1.0, 0.8, 0.6))


@pytest.mark.parametrize("by_number", [False, True])
def test_banded_noise_is_that_of_the_inverse_matrix_across_groups(tmp_path: Path, by_number: bool) -> None:
    """w = C⁻¹ z, by the coefficients of 1 / c(x), of seven steps and fresh draws that are known; in scales, so of
    whatever norm. Only b - 1 vectors are kept."""
    bound = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).repeat(1000) if by_number else 0.5
    gated = gate(tmp_path / "l", 3, BANDS)
    noisy = release_all(gated, ClippedSum(torch.full((3000,), 7.0), bound))
    inverse = inverse_of(BANDS.strategy, 9)
    draws = [draws_of(step, 3000) for step in range(9)]
    for step, released in enumerate(noisy):
        expected = sum(float(inverse[lag]) * draws[step - lag] for lag in range(step + 1))
        assert torch.allclose((released - 7.0) / (BANDS.noise_multiplier * bound), expected, rtol=0, atol=1e-5)
    assert len(noisy) == 9
    assert [len(kept) for kept in gated._noise._noises.values()] == [2]


def test_banded_noise_is_rounded_once_and_kept_unrounded(tmp_path: Path) -> None:
    sums = torch.linspace(-3, 3, 1001, dtype=torch.float64)
    noisy = release_all(gate(tmp_path / "l", 1, BANDS), ClippedSum(sums, 1.0))
    spacing = lattice_spacing(BANDS.noise_multiplier)
    streams = [Secrets(1).stream("noise", (1 << 32) + used) for used in (1, 2, 3)]
    z_0, z_1, z_2 = (torch.from_numpy(np.concatenate(_CpuBuffer(1001).draw(each, 1001)).copy()) for each in streams)
    w_1 = -0.8 * z_0 + z_1
    w_2 = (-0.6 * z_0 - 0.8 * w_1) + z_2
    for released, noise in ((noisy[1], w_1), (noisy[2], w_2)):
        exact = sums + BANDS.noise_multiplier * noise
        assert (torch.round(exact / spacing) * spacing - released).abs().max() <= 1e-9 * spacing


def test_a_single_band_keeps_nothing_and_draws_what_dp_sgd_draws(tmp_path: Path) -> None:
    one = gate(tmp_path / "one", 3, BandedGaussian(20.0, 0.5, (1.0,)))
    plain = gate(tmp_path / "plain", 3, PoissonGaussian(0.5, 20.0))
    for ours, theirs in zip(release_all(one, ZERO), release_all(plain, ZERO), strict=True):
        assert torch.equal(ours, theirs)
    assert not any(one._noise._noises.values())


def test_after_a_release_that_failed_banded_noise_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept noise was overwritten in part, and the step's own noise is lost: to go on with it would correlate steps
    that the account takes for independent."""
    real, failing = add_noise, [4]

    def fail(*given: Any) -> torch.Tensor:
        failing[0] -= 1
        if not failing[0]:
            raise torch.OutOfMemoryError
        return real(*given)

    monkeypatch.setattr(gate_module, "add_noise", fail)
    noise, begun = SumNoise(Secrets(1)), SumNoise(Secrets(1))
    for event in (1, 2):
        ticket, other = Ticket(BANDS, event), Ticket(BANDS, event)
        for step in range(3):
            if (event, step) == (2, 0):
                with pytest.raises(torch.OutOfMemoryError):
                    noise.release(ticket, ClippedSum(torch.zeros(500), 1.0))
                other.used = 1
                continue
            released = noise.release(ticket, ClippedSum(torch.zeros(500), 1.0))
            if event == 2:
                assert torch.equal(released, begun.release(other, ClippedSum(torch.zeros(500), 1.0)))


def test_each_shard_keeps_its_own_noise() -> None:
    noise, alone = SumNoise(Secrets(1)), SumNoise(Secrets(1))
    for step in range(3):
        for shard in range(2):
            ticket, other = Ticket(BANDS, 1), Ticket(BANDS, 1)
            ticket.used = other.used = step
            released = noise.release(ticket, ClippedSum(torch.zeros(500), 1.0), shard)
            if shard == 1:
                assert torch.equal(released, alone.release(other, ClippedSum(torch.zeros(500), 1.0), 1))
