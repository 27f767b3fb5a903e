"""Runs that are cut short: a pass is charged again, noise begins anew, and nothing of noise or order is on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

import dprecipe
from dprecipe.contract.plan import Plan
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.ledger import read
from dprecipe.training.run import gate
from dprecipe.training.run.gate import Gate
from dprecipe.training.steps.noisy_steps import NoisySteps


class Crash(BaseException):
    """A process that ends in the middle of a step."""


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Ends the program in a step of an attempt, counted from 1, as its sum is released; None: no more."""
    release, taken, limit = Gate.release, 0, 0

    def counted(self: Gate, *given: Any) -> Tensor:
        nonlocal taken
        if self.planned and len(self.planned) > 1:  # not the gates of the checks before a run
            taken += 1
            if taken == limit:
                raise Crash
        return release(self, *given)

    def set_limit(step: int | None) -> None:
        nonlocal taken, limit
        taken, limit = 0, step or 0

    monkeypatch.setattr(Gate, "release", counted)
    return set_limit


@pytest.mark.parametrize(
    ("step", "lost", "stop", "trained"),
    [
        pytest.param(8, 1, "budget", 15, id="within a pass"),
        pytest.param(11, 2, "budget", 15, id="as a pass begins", marks=pytest.mark.slow),
    ],
)
def test_a_pass_that_was_cut_short_is_charged_again(
    cycles: Callable[..., Plan],
    crash_at: Callable[[int | None], None],
    tmp_path: Path,
    step: int,
    lost: int,
    stop: str,
    trained: int,
) -> None:
    """Four passes fill the budget: with one charged twice, the run ends a pass early."""
    plan, out = cycles(), tmp_path / "run"
    crash_at(step)
    with pytest.raises(Crash):
        dprecipe.run(plan, out)
    crash_at(None)
    dprecipe.run(plan, out, resume=True)
    ledger = read(out / "private" / "ledger.jsonl")
    counts = {charge.event.number: charge.count for charge in ledger.charges}  # type: ignore[attr-defined]
    assert counts == {number: 2 if number == lost else 1 for number in range(3)}
    verified = dprecipe.verify(out / "release")
    predicate = verified.statement.predicate
    assert (predicate.budget.stop_reason, predicate.sampling.steps_trained) == (stop, trained)
    assert predicate.claim.epsilon <= 3


@pytest.mark.slow
def test_nothing_of_noise_or_order_is_in_the_files_of_a_run(
    cycles: Callable[..., Plan], crash_at: Callable[[int | None], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the draws (each of them alone, as doubles or floats), nor a stream's key, nor the order; also after a
    crash within a pass, whose checkpoint is read again."""
    secrets: list[bytes] = []
    add_noise, stream = gate.add_noise, Secrets.stream

    def seeing(value: Tensor, distribution: object, scale: float, *streams: Any) -> Tensor:
        before = value.clone()
        noisy = add_noise(value, distribution, scale, *streams)  # type: ignore[arg-type]
        noise = ((noisy - before) / scale).numpy()
        secrets.extend(array[start : start + 2].tobytes()
                       for array in (noise, noise.astype(np.float32), noise * scale)
                       for start in range(0, len(noise), 97))  # fmt: skip
        return noisy

    def keyed(self: Secrets, *given: Any) -> Any:
        result = stream(self, *given)
        secrets.append(result.key)
        return result

    monkeypatch.setattr(gate, "add_noise", seeing)
    monkeypatch.setattr(Secrets, "stream", keyed)
    out = tmp_path / "run"
    crash_at(13)
    with pytest.raises(Crash):
        dprecipe.run(cycles(), out)
    files = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
    crash_at(None)
    dprecipe.run(cycles(), out, resume=True)
    files += [path.read_bytes() for path in out.rglob("*") if path.is_file()]
    assert len(secrets) > 300
    assert len(files) > 5
    content = b"\0".join(files)
    assert not [secret for secret in secrets if secret in content]


@pytest.mark.slow
def test_a_later_attempt_has_another_order_and_takes_nothing_back_at_first(
    cycles: Callable[..., Plan], crash_at: Callable[[int | None], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_back: list[int] = []
    orders: list[list[list[int]]] = [[]]
    add_noise, sum_units = gate.add_noise, NoisySteps.sum_units

    def seeing(value: Tensor, distribution: Any, scale: Any, stream: Any, *earlier: Any) -> Tensor:
        if len(value) == 650:
            taken_back.append(len(earlier))
        return add_noise(value, distribution, scale, stream, *earlier)

    def summing(self: NoisySteps, ticket: Any, number: int, units: NDArray[np.int64]) -> Any:
        orders[-1].append(units.tolist())
        return sum_units(self, ticket, number, units)

    monkeypatch.setattr(gate, "add_noise", seeing)
    monkeypatch.setattr(NoisySteps, "sum_units", summing)
    crash_at(9)
    with pytest.raises(Crash):
        dprecipe.run(cycles(), tmp_path / "run")
    first, orders[:] = orders[0], [[]]
    before, taken_back[:] = taken_back[-8:], []
    crash_at(None)
    dprecipe.run(cycles(), tmp_path / "run", resume=True)
    assert before == [0, *[1] * 7]
    assert taken_back[-10:] == [0, *[1] * 9]  # two passes
    assert first[:5] != orders[0][:5]
    assert orders[0][:5] == orders[0][5:10]
