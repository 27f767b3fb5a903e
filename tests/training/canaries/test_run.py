"""Runs with canaries: what is published, what is not, and what a refuted claim leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from dprecipe.account.facts import new_facts
from dprecipe.account.opening import create_account
from dprecipe.api import run
from dprecipe.cli.account_runs import settle
from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets, Stream
from dprecipe.planning.audit import naming_of
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.audit.results import Guesses, Scores
from dprecipe.privacy.ledger import read
from dprecipe.release.verify import verify
from dprecipe.training.audit.run import ClaimRefuted
from dprecipe.training.canaries.contract import FILE, Coins, open_coins
from dprecipe.training.canaries.run import count_guesses
from dprecipe.training.checks.noise import DRAWS
from dprecipe.training.run import gate
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.steps import stepwise

CANARIES = "audit: {program: false, canaries: %d, canary: %s}\n"
Small = Callable[..., Plan]


def plan_of(small: Small, count: int = 60, canary: str = "gradient", *overrides: str) -> Plan:
    return small(*overrides, more=CANARIES % (count, canary))


def hidden_texts(folder: Path) -> list[str]:
    """The coins as a list, a row of digits, bits of bytes, or the numbers of those that are in."""
    digits = json.loads((folder / "private" / FILE).read_text())["inside"]
    inside = [number for number, digit in enumerate(digits) if digit == "1"]
    packed = np.packbits(np.array([int(digit) for digit in digits], dtype=bool)).tobytes()
    numbers = ", ".join(map(str, inside))
    words = [digits, ", ".join(digits), ",".join(digits), numbers, numbers.replace(" ", ""), packed.hex()]
    words.append(", ".join(str(digit == "1") for digit in digits))
    return [*words, words[-1].lower(), Coins(np.array([int(d) for d in digits], bool)).digest]


@pytest.mark.slow
@pytest.mark.parametrize("canary", ["gradient", "record"])
def test_a_run_publishes_four_counts_of_its_canaries_and_no_coin(
    small: Small, tmp_path: Path, capfd: pytest.CaptureFixture[str], canary: str
) -> None:
    plan = plan_of(small, 60, canary)
    result = run(plan, tmp_path / "run")
    statement = verify(result.release).statement
    audit = statement.predicate.audit
    assert audit is not None
    (bound,) = audit.bounds
    each = naming_of(plan).each
    assert isinstance(bound.evidence, Guesses)
    assert (bound.depth, bound.evidence.canaries, bound.claimed) == ("canaries", 60, statement.predicate.claim.epsilon)
    assert (bound.evidence.named_in, bound.evidence.named_out) == (each, each)
    assert not bound.refuted
    assert audit.specification is None  # batches are sampled
    out, err = capfd.readouterr()
    published = [path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if is_public(path)]
    assert len(published) > 5
    for text in hidden_texts(tmp_path / "run"):
        assert not any(text.encode() in content for content in [*published, out.encode(), err.encode()])


def is_public(path: Path) -> bool:
    """All files but the coins, and the scores of each, which are private; logs and reports of private/ count as public
    here."""
    return path.is_file() and path.name not in (FILE, "last.pt")


FULL = ("mechanism.sampling={scheme: full_batch}",)


@pytest.mark.slow
def test_scores_of_full_batches_are_compared_with_the_specification(small: Small, tmp_path: Path) -> None:
    audit = verify(run(plan_of(small, 200, "gradient", *FULL), tmp_path / "run").release).statement.predicate.audit
    assert audit is not None
    assert audit.specification is not None
    seen = audit.specification.evidence
    assert seen.inside == json.loads((tmp_path / "run" / "private" / FILE).read_text())["inside"].count("1")
    assert seen.inside + seen.outside == 200
    assert audit.specification.p_value > 1e-6


@pytest.mark.slow
def test_an_alarm_is_reported_and_released(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = Scores(inside=95, outside=105, difference=5.0)
    monkeypatch.setattr(stepwise, "compare_scores", lambda plan, canaries, released, from_python: seen)
    audit = verify(run(plan_of(small, 200, "gradient", *FULL), tmp_path / "run").release).statement.predicate.audit
    assert audit is not None
    assert audit.specification is not None
    assert (audit.specification.evidence, audit.specification.consistent) == (seen, False)
    assert "inconsistent with the specification" in capfd.readouterr().err


def test_batches_are_drawn_from_records_and_canaries(small: Small) -> None:
    plan, without = plan_of(small, 100), small()
    assert plan.mechanism_plan.sampling_rate == 64 / 1538
    assert without.mechanism_plan.sampling_rate == 64 / 1438
    assert plan.digest != plan_of(small, 101).digest != plan_of(small, 101, "record").digest
    assert "canaries" in {assumption.id for assumption in plan.assumptions}
    assert next(a.text for a in plan.assumptions if a.id == "size") == "the number of units, 1438, is public"


@pytest.mark.slow
def test_a_refuted_claim_is_not_released_and_not_resumed(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The program forgets nearly all of its noise; that its ε is 3 is refuted by 1,000 canaries but with a chance
    below 1e-9."""
    honest = gate.add_noise

    def forget(value: Tensor, distribution: Distribution, scale: float, stream: Stream) -> Tensor:
        checked = len(value) == DRAWS  # before the run: it would see the fault
        return honest(value, distribution, scale * (1 if checked else 0.05), stream)

    monkeypatch.setattr(gate, "add_noise", forget)
    facts = new_facts("digits", 2.0, 1e-4, "record", Neighbouring.ADD_OR_REMOVE_ONE)
    create_account(tmp_path / "digits.db", facts).close()
    charged = ("budget.epsilon=1.0", "mechanism.sampling={scheme: full_batch}", "budget.account=digits.db")
    plan, folder = plan_of(small, 600, "gradient", *charged), tmp_path / "run"
    with pytest.raises(ClaimRefuted, match=r"refute its claim of ε = .* no program that keeps to") as refused:
        run(plan, folder)
    assert refused.value.exit_code == 4
    assert not (folder / "release").exists()
    ledger = read(folder / "private" / "ledger.jsonl")
    assert sum(charge.count for charge in ledger.charges) == plan.length.steps
    reason = json.loads(RunFolder(folder).refuted.read_text())
    assert reason["bound"]["refuted"]
    assert reason["bound"]["lower"] > 1
    assert not reason["specification"]["consistent"]
    monkeypatch.undo()
    with pytest.raises(RunFailed, match="ended without a release: the canaries of this run refute") as again:
        run(plan, folder, resume=True)
    assert again.value.exit_code == 4
    capfd.readouterr()
    assert settle(folder) == 0
    out, err = capfd.readouterr()
    assert "settled; account digits counts" in out
    assert "none will come: the canaries of this run refute its claim" in err
    assert "--resume" not in err
    assert read(folder / "private" / "ledger.jsonl").attempts == 1


def test_names_are_the_ends_of_the_ranking(small: Small) -> None:
    plan = plan_of(small, 100)
    each, inside = naming_of(plan).each, np.arange(100) >= 50
    ranked = count_guesses(plan, Coins(inside), np.arange(100.0))
    assert ranked.correct == 2 * each
    assert count_guesses(plan, Coins(~inside), np.arange(100.0)).correct == 0
    assert count_guesses(plan, Coins(inside), np.zeros(100)).correct == 2 * each  # ties: in order of their numbers


def test_coins_are_drawn_once_and_not_again(tmp_path: Path) -> None:
    first = open_coins(tmp_path, 200, Secrets(), has_state=False)
    again = open_coins(tmp_path, 200, Secrets(), has_state=True)
    assert np.array_equal(first.inside, again.inside)
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    with pytest.raises(RunFailed, match="can't be read"):
        open_coins(tmp_path, 201, Secrets(), has_state=False)
    (tmp_path / FILE).write_text('{"schema": "dprecipe.canaries/v1", "inside": "012"}')
    with pytest.raises(RunFailed, match="can't be read"):
        open_coins(tmp_path, 3, Secrets(), has_state=False)
    (tmp_path / FILE).unlink()
    with pytest.raises(RunFailed, match="is lost"):
        open_coins(tmp_path, 200, Secrets(), has_state=True)
    assert not np.array_equal(open_coins(tmp_path, 200, Secrets(), has_state=False).inside, first.inside)
