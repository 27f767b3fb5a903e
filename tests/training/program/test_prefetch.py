"""One part ahead: the same parts, in the same order, fetched in another thread while the one before is in use."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
import torch
from torch import Tensor

from dprecipe.data.records import Records
from dprecipe.training.program import prefetch, records
from dprecipe.training.program.prefetch import prefetch_results
from dprecipe.training.program.records import Store, UnitRowsBatch

CPU = torch.device("cpu")


def test_answers_come_in_order_and_one_at_a_time_ahead() -> None:
    begun: list[int] = []
    answers = prefetch_results(lambda number: begun.append(number) or -number, range(6))
    for number in range(6):
        assert next(answers) == -number
        time.sleep(0.02)
        assert begun == list(range(min(6, number + 2)))
    assert next(answers, None) is None


def test_the_next_one_is_fetched_while_this_one_is_in_use() -> None:
    """The third call waits for the consumer to say that it has the second answer: it would for ever, were it made
    only when asked for."""
    in_use, fetched = threading.Event(), threading.Event()

    def fetch(number: int) -> int:
        if number == 1:
            assert in_use.wait(5)
            fetched.set()
        return number

    answers = prefetch_results(fetch, range(2))
    assert next(answers) == 0
    in_use.set()
    assert fetched.wait(5)
    assert list(answers) == [1]


def test_of_nothing_there_is_nothing() -> None:
    assert list(prefetch_results(lambda number: number, [])) == []


def test_what_a_call_raises_is_raised_where_its_answer_is_due() -> None:
    answers = prefetch_results(lambda number: 1 // (2 - number), range(4))
    assert [next(answers), next(answers)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(answers)
    assert list(answers) == []


@pytest.mark.slow
@pytest.mark.parametrize("close", [True, False])
def test_who_stops_early_leaves_no_thread(close: bool) -> None:
    before = threading.active_count()
    answers = prefetch_results(lambda number: number, range(100))
    assert next(answers) == 0
    if close:
        answers.close()  # type: ignore[attr-defined]
    else:
        del answers
        gc.collect()
    assert threading.active_count() == before


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The CPU is taken for a device that computes by itself; the threads that fetched from memory."""
    seen: set[int] = set()
    real = Records.batch

    def noted(self: Records, indices: object) -> object:
        seen.add(threading.get_ident())
        return real(self, indices)  # type: ignore[arg-type]

    monkeypatch.setattr(records, "runs_asynchronously", lambda device: True)
    monkeypatch.setattr(Records, "batch", noted)
    return seen


def stored(units: bool) -> Store:
    generator = np.random.default_rng(0)
    of_units = np.unique(np.sort(generator.integers(12, size=50)), return_inverse=True)[1] if units else None
    retained = Records(generator.random((50, 1, 4, 4), dtype=np.float32), generator.integers(3, size=50), of_units)

    def augmented(generator: torch.Generator) -> records.Augment:
        return lambda x, _: x + torch.rand(len(x), 1, 1, 1, generator=generator)

    return Store(retained, CPU, augmented)


def same(found: Tensor | None, expected: Tensor | None) -> bool:
    return found is expected is None or torch.equal(found, expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("units", [False, True])
def test_parts_fetched_ahead_are_those_fetched_in_turn(
    threads: set[int], units: bool, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What augmentation draws for them, too: it draws in the order of the parts."""
    chosen = np.array([0, 1, 3, 4, 5, 6, 7, 8])

    def parts() -> list[records.BatchPart]:
        batch = stored(units).batch(chosen, 7)
        return list((UnitRowsBatch(batch, 2) if several else batch).parts(8))

    result = parts()
    assert threads
    assert threading.get_ident() not in threads
    threads.clear()
    monkeypatch.setattr(records, "runs_asynchronously", lambda device: False)
    expected = parts()
    assert threads == {threading.get_ident()}
    assert len(result) == len(expected) >= 1 + (units or several)
    for one, other in zip(result, expected, strict=True):
        assert same(one.features, other.features)
        assert same(one.labels, other.labels)
        assert same(one.units, other.units)


def test_on_a_cpu_nothing_is_fetched_ahead() -> None:
    assert not prefetch.runs_asynchronously(CPU)
    assert prefetch.runs_asynchronously(torch.device("cuda"))
    tensor = torch.zeros(3)
    assert prefetch.carry_to_device(tensor, CPU) is tensor
    array = np.zeros(3)
    assert prefetch.pin_array(array, CPU).data_ptr() == array.ctypes.data


def test_records_of_another_s_making_are_fetched_where_they_were_asked_for(threads: set[int]) -> None:
    """What reads a file or a connection may be bound to its thread."""

    class Own:
        units = None
        unit_count = 9

        def __len__(self) -> int:
            return 9

        def batch(self, indices: object) -> tuple[np.ndarray, np.ndarray]:
            threads.add(threading.get_ident())
            count = len(np.arange(9)[indices])  # type: ignore[call-overload]
            return np.zeros((count, 2), dtype=np.float32), np.zeros(count, dtype=np.int64)

    assert len(list(Store(Own(), CPU).batch(np.arange(9), 0).parts(2))) == 5
    assert threads == {threading.get_ident()}
