"""The gate of votes: nothing unpaid, nothing asked twice, a stop that no vote decides."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pate.aggregators import NOTHING
from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold
from dprecipe.mechanisms.pate.theory.filter import sum_filter
from dprecipe.mechanisms.pate.train import ballot as module
from dprecipe.mechanisms.pate.train.answers import PASSED, UNASKED, AnswersFile
from dprecipe.mechanisms.pate.train.ballot import Ballot
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, count_events
from dprecipe.privacy.ledger import LedgerWriter, read

Opened = Callable[..., Any]
ALL = ["lnmax", "gnmax", "confident", "interactive"]
UNBOUNDED = ("budget.epsilon=100000",)
EVEN = np.full((1, 3), 1 / 3)


@pytest.mark.parametrize("aggregator", ["lnmax", "gnmax"])
def test_every_query_is_answered_and_the_count_is_the_plans(booth: Opened, aggregator: str) -> None:
    one_booth = booth(aggregator, 130)
    ballot = one_booth.open()
    ballot.put(range(130))
    assert ballot.stop_reason == "completed"
    assert ballot.answered == ballot.queries_put == 130
    assert ((ballot.outcomes >= 0) & (ballot.outcomes < 3)).all()
    assert one_booth.remaining_budget.charged == one_booth.plan.events


def test_queries_are_selected_and_each_check_and_answer_is_charged(booth: Opened) -> None:
    one_booth = booth("confident", 400)
    ballot = one_booth.open()
    ballot.put(range(400))
    check, answer = NoisyThreshold(30.0), NoisyMax("gaussian", 20.0)
    assert ballot.stop_reason == "completed"
    assert 0 < ballot.answered < 400
    assert set(ballot.outcomes[~ballot.answered_queries]) == {NOTHING}
    assert (one_booth.remaining_budget.count(check), one_booth.remaining_budget.count(answer)) == (400, ballot.answered)


def test_what_the_filter_leaves_is_charged_at_the_end(booth: Opened) -> None:
    one_booth = booth("confident", 200)
    ballot = one_booth.open()
    ballot.put(range(200))
    one_booth.remaining_budget.charge_rest()
    limit = one_booth.plan.mechanism_plan.filter_limit
    assert sum_filter(one_booth.remaining_budget.charged) == pytest.approx(limit, rel=1e-9)
    assert not one_booth.remaining_budget.holds(one_booth.plan.events[:1])
    one_booth.remaining_budget.charge_rest()  # a run that is resumed after that
    assert sum_filter(one_booth.remaining_budget.charged) == pytest.approx(limit, rel=1e-9)
    budget = one_booth.plan.budget
    charged_epsilon = accountants.epsilon(
        one_booth.remaining_budget.charged, budget.delta, budget.neighbouring, budget.accountant
    )
    assert charged_epsilon <= one_booth.plan.guarantee.epsilon * (1 + 1e-6)


@pytest.mark.slow
def test_lnmax_wins_as_often_as_its_scale_says(booth: Opened) -> None:
    """100,000 queries, a gap of 30 votes, a third class 10,000 behind: with Laplace noise of scale b on each count, a
    gap of g wins with probability 1 - exp(-g/b) (1 + g/2b) / 2. A scale of 1/b, or of b/√2, is 100 errors off."""
    queries, gap, scale = 100_000, 30, 20.0
    counts = np.tile(np.array([10_030, 10_000, 0], np.int32), (queries, 1))
    ballot = booth("lnmax", queries, f"mechanism.aggregator.noise.multiplier={scale}", *UNBOUNDED, counts=counts).open()
    ballot.put(range(queries))
    wins = float(np.mean(ballot.outcomes[ballot.answered_queries] == 0))
    expected = 1 - math.exp(-gap / scale) * (1 + gap / (2 * scale)) / 2
    error = math.sqrt(expected * (1 - expected) / ballot.answered)
    assert ballot.answered == queries
    assert abs(wins - expected) < 4 * error


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one", "zero_out_one"])
@pytest.mark.parametrize("queries", [1, 7])
def test_epsilon_of_lnmax_by_hand(relation: Neighbouring, queries: int) -> None:
    """A moved vote changes two counts by one: 2/b a query, where δ does not decide; both relations alike."""
    charges = [Charge(NoisyMax("laplace", 20.0), queries)]
    for accountant in ("pld", "rdp"):
        found = accountants.epsilon(charges, 1e-30, Neighbouring(relation), accountant)
        assert found == pytest.approx(2 / 20.0 * queries, rel=1e-6)


def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "noise", lambda event, stream, count: np.zeros(count))


@pytest.mark.parametrize("budget", ["0.27", "0.35", "0.5", "2.0"])
@pytest.mark.parametrize("answers", ["null", "40"])
def test_blocks_ask_and_stop_as_queries_one_by_one(
    booth: Opened, monkeypatch: pytest.MonkeyPatch, budget: str, answers: str
) -> None:
    quiet(monkeypatch)
    one_booth = []
    for blocks in (5, 10**6):
        monkeypatch.setattr(module, "BLOCKS", blocks)
        one = booth("confident", 300, f"budget.epsilon={budget}", f"mechanism.queries.answers={answers}")
        ballot = one.open()
        ballot.put(range(300))
        one_booth.append((ballot.outcomes.tolist(), ballot.stop_reason, Counter(dict(map(tuple, _pairs(one))))))
    assert one_booth[0] == one_booth[1]


def _pairs(one: Any) -> list[tuple[Any, int]]:
    return [(charge.event, charge.count) for charge in one.remaining_budget.charged]


def test_the_run_stops_before_the_filter_is_exceeded_and_not_earlier(
    booth: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet(monkeypatch)
    one_booth = booth("confident", 4000, "budget.epsilon=0.4")
    ballot = one_booth.open()
    ballot.put(range(4000))
    limit, square = one_booth.plan.mechanism_plan.filter_limit, sum_filter(one_booth.remaining_budget.charged)
    assert ballot.stop_reason == "budget"
    assert square <= limit * (1 + 1e-12) < square + 1 / 30**2 + 2 / 20**2


def test_what_the_votes_cost_never_stops_a_run(booth: Opened) -> None:
    # Unanimous votes cost next to nothing by any data-dependent bound, split ones the most: both stop at one place.
    ends = []
    for row in ([5, 0, 0], [2, 2, 1]):
        one_booth = booth("gnmax", 1000, "budget.epsilon=3", "mechanism.queries.max=auto", counts=[row] * 1000)
        queries = one_booth.plan.mechanism_plan.queries
        one_booth.counts = one_booth.counts[:1].repeat(queries, axis=0)
        ballot = one_booth.open()
        ballot.put(range(queries))
        ends.append((ballot.answered, ballot.stop_reason, one_booth.remaining_budget.charged))
    assert ends[0] == ends[1]


def test_as_many_answers_as_asked_for(booth: Opened) -> None:
    one_booth = booth("confident", 400, "mechanism.queries.answers=17")
    ballot = one_booth.open()
    ballot.put(range(400))
    assert (ballot.answered, ballot.stop_reason) == (17, "completed")
    assert ballot.queries_put < 400


def test_a_stop_between_blocks(booth: Opened) -> None:
    one_booth = booth("gnmax", 200)
    ballot, asked = one_booth.open(), iter([False, False, True])
    ballot.put(range(200), stop=lambda: next(asked))
    assert ballot.stop_reason is None
    assert ballot.answered == 8
    again = one_booth.open()
    assert again.outcomes.tolist() == ballot.outcomes.tolist()
    again.put(range(200))
    assert again.outcomes[:8].tolist() == ballot.outcomes[:8].tolist()
    assert (again.answered, count_events(one_booth.remaining_budget.charged)) == (200, 200)


@pytest.mark.parametrize("aggregator", ALL)
def test_each_step_is_on_disk_before_the_next(booth: Opened, monkeypatch: pytest.MonkeyPatch, aggregator: str) -> None:
    steps: list[tuple[str, Any]] = []
    reserve, settle, append, drawn = LedgerWriter.reserve, LedgerWriter.settle, AnswersFile.append, module.noise
    monkeypatch.setattr(
        LedgerWriter, "reserve", lambda self, event, n: (reserve(self, event, n), steps.append(("reserve", event)))
    )
    monkeypatch.setattr(
        LedgerWriter, "settle", lambda self, event, n: (settle(self, event, n), steps.append(("settle", event)))
    )
    monkeypatch.setattr(
        AnswersFile, "append", lambda self, entry, head: (append(self, entry, head), steps.append(("append", None)))
    )

    def noise(event: Any, stream: Any, count: int) -> Any:
        steps.append(("draw", event))
        return drawn(event, stream, count)

    monkeypatch.setattr(module, "noise", noise)
    booth(aggregator, 100).open().put(range(100))
    assert len(steps) % 4 == 0
    for number in range(0, len(steps), 4):
        names, events = zip(*steps[number : number + 4], strict=True)
        assert names == ("reserve", "draw", "append", "settle")
        assert events[0] == events[1] == events[3]


def test_no_two_draws_share_a_stream(booth: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[str, int]] = []
    real = module.Secrets.stream
    monkeypatch.setattr(
        module.Secrets, "stream", lambda self, what, index: (used.append((what, index)), real(self, what, index))[1]
    )
    booth("confident", 200).open().put(range(200))
    assert len(used) == len(set(used)) > 50


class Crash(Exception):
    """The power fails."""


@pytest.mark.parametrize("aggregator", ALL)
@pytest.mark.parametrize("step", ["reserve", "noise", "append", "settle"])
def test_a_crash_at_any_step_forgets_nothing_and_pays_for_all(
    booth: Opened, monkeypatch: pytest.MonkeyPatch, aggregator: str, step: str
) -> None:
    one_booth = booth(aggregator, 40, "budget.epsilon=20" if aggregator == "lnmax" else "budget.epsilon=3")
    owner = {"reserve": LedgerWriter, "settle": LedgerWriter, "append": AnswersFile, "noise": module}[step]
    real, drawn, known = getattr(owner, step), Counter[Any](), np.full(40, UNASKED)
    honest = module.noise

    def counted(event: Any, stream: Any, count: int) -> Any:
        drawn[event] += count if isinstance(event, NoisyThreshold) else count // 3
        return honest(event, stream, count)

    for attempt in range(200):
        monkeypatch.setattr(module, "noise", counted)
        left = 1 + attempt % 4

        def crashing(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                raise Crash
            return (counted if step == "noise" else real)(*arguments)

        monkeypatch.setattr(owner, step, crashing)
        ballot = one_booth.open()
        assert (ballot.outcomes[known >= 0] == known[known >= 0]).all()  # no answer is forgotten or asked again
        try:
            ballot.put(range(40))
        except Crash:
            pass
        else:
            break
        finally:
            settled = ballot.outcomes != UNASKED
            known[settled] = ballot.outcomes[settled]
            one_booth.shut()
            charges = Counter({c.event: 0 for c in one_booth.plan.events})
            for charge in read(one_booth.folder / "ledger.jsonl").charges:
                charges[charge.event] += charge.count
            assert drawn <= charges  # nothing is drawn that was not paid
    assert ballot.stop_reason in ("completed", "budget")
    assert count_events(charge for charge in read(one_booth.folder / "ledger.jsonl").charges) >= ballot.answered


def test_what_a_crash_took_is_paid_again_while_the_budget_lasts(booth: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of ε: auto nothing is left for a second time, so as many queries stay open as were lost.
    one_booth = booth("gnmax", 100)
    with monkeypatch.context() as patch:
        patch.setattr(AnswersFile, "append", lambda self, entry, head: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            one_booth.open().put(range(100))
    ballot = one_booth.open()
    assert ballot.lost
    ballot.put(range(100))
    assert (ballot.stop_reason, ballot.answered) == ("budget", 98)
    assert count_events(one_booth.remaining_budget.charged) == 100
    roomy = booth("gnmax", 100, "budget.epsilon=30")
    with monkeypatch.context() as patch:
        patch.setattr(AnswersFile, "append", lambda self, entry, head: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            roomy.open().put(range(100))
    ballot = roomy.open()
    ballot.put(range(100))
    assert (ballot.stop_reason, ballot.answered, count_events(roomy.remaining_budget.charged)) == (
        "completed",
        100,
        102,
    )


def test_a_torn_last_line_is_cut_and_asked_anew(booth: Opened) -> None:
    one_booth = booth("gnmax", 50, "budget.epsilon=30")
    one_booth.open().put(range(10))
    one_booth.shut()
    file = one_booth.folder / "answers.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    ballot = one_booth.open()
    assert (ballot.answered, ballot.lost) == (9, True)
    ballot.put(range(50))
    assert ballot.answered == 50
    assert all(json.loads(line) for line in file.read_text("utf-8").splitlines())


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        '{"ledger": "x", "is_answer": true, "queries": [0]}',
        '{"ledger": "x", "is_answer": true, "queries": [0, 1], "outcomes": [1]}',
        '{"ledger": "x", "is_answer": true, "queries": [50], "outcomes": [1]}',
        '{"ledger": "x", "is_answer": true, "queries": [0], "outcomes": [3]}',
        '{"ledger": "x", "is_answer": 1, "queries": [0], "outcomes": [1]}',
        '{"ledger": "x", "is_answer": true, "queries": [0], "outcomes": [-3]}',
    ],
)
def test_a_damaged_file_of_answers_is_refused(booth: Opened, line: str) -> None:
    one_booth = booth("gnmax", 50)
    one_booth.open().put(range(50))
    one_booth.shut()
    file = one_booth.folder / "answers.jsonl"
    file.write_text(line + "\n" + file.read_text("utf-8"), encoding="utf-8")
    with pytest.raises(RunFailed, match="damaged"):
        one_booth.open()


def test_answers_of_another_ledger_are_refused(booth: Opened) -> None:
    one_booth = booth("gnmax", 50)
    one_booth.open().put(range(50))
    one_booth.shut()
    os.remove(one_booth.folder / "ledger.jsonl")
    with pytest.raises(RunFailed, match="not of this ledger"):
        one_booth.open()


def test_the_second_round_asks_for_what_the_student_does_not_expect(
    booth: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet(monkeypatch)
    counts = [[5, 0, 0], [3, 1, 1], [5, 0, 0], [0, 5, 0], [2, 2, 1], [4, 1, 0]]
    ballot = booth("interactive", 6, counts=counts).open()
    ballot.put(range(3))
    assert ballot.outcomes.tolist() == [0, NOTHING, 0, *[UNASKED] * 3]
    # n - 5 p is at most 4.5, 0.33 and 0.5: a label, one that nobody is confident of, and the student's own.
    ballot.put(range(3, 6), np.array([[0.9, 0.1, 0.0], EVEN[0], [0.7, 0.3, 0.0]]))
    assert ballot.outcomes.tolist()[3:] == [1, NOTHING, NOTHING]
    again = booth("interactive", 6, counts=counts).open()
    again.put(range(3))
    again.put(range(3, 6), np.array([[0.9, 0.1, 0.0], EVEN[0], [0.81, 0.19, 0.0]]))
    assert again.outcomes.tolist()[3:] == [1, NOTHING, 0]
    assert again.answered_queries.tolist() == [True, False, True, True, False, False]


def test_an_interrupted_round_goes_on_with_the_rows_that_are_left(
    booth: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet(monkeypatch)
    one_booth = booth("interactive", 4, counts=[[5, 0, 0]] * 4)
    stops = iter([False, True])
    expected = np.array([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [1.0, 0, 0]])
    one_booth.open().put(range(4), expected, lambda: next(stops))
    ballot = one_booth.open()
    assert ballot.queries_put == 1
    ballot.put(range(4), expected)
    assert ballot.answered_queries.tolist() == [False, True, True, False]
    assert ballot.outcomes.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("row", [[np.nan, 0.5, 0.5], [-0.1, 0.6, 0.5], [0.5, 0.4, 0.0], [np.inf, 0, 0], [0.5, 0.5]])
def test_scores_that_are_no_distribution_are_refused(booth: Opened, row: list[float]) -> None:
    ballot = booth("interactive", 3).open()
    with pytest.raises(RunFailed, match="no distributions"):
        ballot.put(range(3), np.array([row] * 3))


def test_a_check_that_passed_before_a_crash_is_answered_first(booth: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    one_booth = booth("confident", 100, counts=[[5, 0, 0]] * 100)
    real = Ballot._answer
    with monkeypatch.context() as patch:
        patch.setattr(Ballot, "_answer", lambda self, block: None if not len(block) else (_ for _ in ()).throw(Crash()))
        for _ in range(9):
            with pytest.raises(Crash):
                one_booth.open().put(range(100))
    ballot = one_booth.open()
    passed = np.flatnonzero(ballot.outcomes == PASSED)
    assert len(passed)
    first: list[int] = []
    monkeypatch.setattr(Ballot, "_answer", lambda self, block: (first.extend(block.tolist()), real(self, block))[1])
    ballot.put(range(100))
    assert first[: len(passed)] == passed.tolist()
    checks = one_booth.remaining_budget.count(NoisyThreshold(30.0))
    assert (checks, ballot.queries_put, ballot.lost) == (100, 100, False)


def test_a_hundred_thousand_queries_take_blocks_of_a_few_megabytes(booth: Opened) -> None:
    counts = np.zeros((100_000, 3), np.int32)
    counts[:, 0] = 5
    ballot = booth("confident", 100_000, counts=counts).open()
    assert ballot._block == 2000
    ballot.put(range(100_000))
    assert ballot.stop_reason == "completed"


def test_paths_are_private(booth: Opened, tmp_path: Path) -> None:
    one_booth = booth("gnmax", 10)
    one_booth.open()
    assert oct((one_booth.folder / "answers.jsonl").stat().st_mode)[-3:] == "600"
