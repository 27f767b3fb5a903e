"""Kills, power failures, failing disks and races, over all mechanisms: `python tests/chaos/chaos.py`.

A server imports everything once and forks a child for every attempt. Each case is a run in a folder of its own: its
faults happen, then it is resumed until it ends. The case passes when

- every attempt ended by the kill, in a release, or in a fault with a message and a known exit code;
- the run ended in a release that verifies, with the ledger beside it;
- its certificate counts at least as many events as noise was drawn for, which a file outside the run counts;
- nothing private is outside `private/`, and only its owner can read what is in it.

Prints a table, and exits with 1 if a case failed. The same seed gives the same cases; moments differ.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

torch.set_num_threads(1)

from disk import ERRORS, KILL, Disk, Fault  # noqa: E402

import dprecipe  # noqa: E402
from dprecipe.api import run  # noqa: E402
from dprecipe.contract.plan import Plan  # noqa: E402
from dprecipe.contract.table import mechanism_of  # noqa: E402
from dprecipe.data.files import data_root  # noqa: E402
from dprecipe.faults import CertificateInvalid  # noqa: E402
from dprecipe.faults import Fault as ReportedFault  # noqa: E402
from dprecipe.mechanisms.pate.events import NoisyMax  # noqa: E402
from dprecipe.mechanisms.pate.train import ballot  # noqa: E402
from dprecipe.planning.make import plan as make_plan  # noqa: E402
from dprecipe.recipe.read import read_text  # noqa: E402
from dprecipe.release import report  # noqa: E402, F401
from dprecipe.training.run.runner import PythonInputs  # noqa: E402
from recipes import recipes  # noqa: E402
from tests.count_draws import count_noisy_sums  # noqa: E402

INTERNAL = 70
MAX_ATTEMPTS = 60
HANGS_SECONDS = 120.0
KNOWN_EXITS = {2, 3, 4}
REFUSED = 3


@dataclass
class Target:
    """A plan, prepared once: every child continues from a copy."""

    plan: Plan
    runner: Any
    program: Any
    seconds: float = 0.0
    changes: int = 0
    largest: int = 0


@dataclass
class CaseCounts:
    """The results of the cases of one kind."""

    cases: int = 0
    kills: int = 0
    power: int = 0
    attempts: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    verified: int = 0
    failures: list[str] = field(default_factory=list)


class Case:
    """One run in a folder of its own."""

    def __init__(self, target: Target, base: Path, counts: CaseCounts) -> None:
        self.target, self.counts = target, counts
        self.base = base
        self.root = base / "disk"
        self.root.mkdir(parents=True)
        self.out = self.root / "run"
        self.draws = base / "draws"
        self.draws.touch()
        self.words = base / "words"
        self.disk = Disk(self.root, base / "shadow")
        self.disk.start()
        counts.cases += 1

    def start(
        self,
        fault: Fault | None = None,
        *,
        accept: bool = False,
        resume: bool | None = None,
        largest_file: int | None = None,
        wait: Callable[[], None] = lambda: None,
    ) -> int:
        """Fork a child that continues the run."""
        self.counts.attempts += 1
        child = os.fork()
        if child:
            return child
        code = INTERNAL
        try:
            words = os.open(self.words, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(words, 2)
            code = self._attempt(fault, accept, resume, largest_file, wait)
        except ReportedFault as reported:
            os.write(2, f"fault {reported.exit_code}: {reported.message}\n  = {reported.remedy}\n".encode())
            code = reported.exit_code
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def _attempt(
        self, fault: Fault | None, accept: bool, resume: bool | None, largest: int | None, wait: Callable[[], None]
    ) -> int:
        target = self.target
        count_draws(target.plan, self.draws)

        def prepared(*_: object) -> Any:
            wait()
            return target.program

        type(target.runner).prepare = prepared
        self.disk.install(fault, largest)
        on = self.out.exists() if resume is None else resume
        run(target.plan, self.out, resume=on, accept_lost_steps=accept)
        if fault is None:
            (self.base / "changes").write_text(str(self.disk.changes))
        return 0

    def await_end(self, child: int, kill_after: float | None = None) -> int:
        """Wait for a child, killed after so many seconds; its exit code, below 0 for a signal."""
        begun = time.monotonic()
        deadline = HANGS_SECONDS if kill_after is None else kill_after
        while (status := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() - begun >= deadline:
                os.kill(child, signal.SIGKILL)
                status = os.waitpid(child, 0)
                if kill_after is None:
                    self.add_failure(f"an attempt hung for {HANGS_SECONDS:.0f} s")
                break
            time.sleep(0.002)
        code = os.waitstatus_to_exitcode(status[1])
        if code >= 0:
            self._count(code)
        return code

    def _count(self, code: int) -> None:
        if code == 0:
            return
        said = self.words.read_text(errors="replace") if self.words.exists() else ""
        last = [line for line in said.splitlines() if line.startswith("fault ")][-1:]
        self.counts.faults[f"exit {code}"] += 1
        if code not in KNOWN_EXITS:
            self.add_failure(f"an attempt ended with {code}: {said[-1500:]}")
        elif not last:
            self.add_failure(f"exit {code} without a message")

    def finish(self) -> None:
        """Resume without faults until the run has ended, and check what the release promises."""
        accepted = False
        for _ in range(6):
            if (self.out / "release").exists():
                break
            code = self.await_end(self.start(accept=accepted))
            if code == REFUSED and not accepted:
                accepted = True
                self.counts.lost += 1
            elif code:
                self.add_failure(f"an undisturbed attempt ended with {code}: {self.words.read_text()[-1500:]}")
                return
        self.check_release()

    def check_release(self) -> None:
        release = self.out / "release"
        try:
            verified = dprecipe.verify(release)
        except (CertificateInvalid, ReportedFault) as invalid:
            self.add_failure(f"does not verify: {invalid}")
            return
        if not any("ledger beside it" in line for line in verified.checked):
            self.add_failure("the ledger is not beside the release")
        predicate = verified.statement.predicate
        events, draws = predicate.events.total, self.draws.stat().st_size
        per_event = max(charge.event.steps for charge in self.target.plan.mechanism_plan.events)
        if self.target.plan.mechanism != "pnsgd" and events * per_event < draws:
            self.add_failure(f"{draws} draws of noise, and {events} events charged")
        if outside := list(self.root.glob(".run.*/private/*")):
            self.add_failure(f"left beside the run: {outside}")
        if others := {path.name for path in self.out.iterdir()} - FOLDER:
            self.add_failure(f"left in the run folder: {others}")
        for path in [self.out / "private", *(self.out / "private").rglob("*")]:
            if path.stat().st_mode & 0o077:
                self.add_failure(f"{path.name} can be read by others: {path.stat().st_mode & 0o777:o}")
        self.counts.verified += 1

    def note(self, what: str) -> None:
        """A line of the case's own log: what happened to it, and the state then."""
        ledger = self.out / "private" / "ledger.jsonl"
        lines = ledger.read_bytes().count(b"\n") if ledger.exists() else "no"
        with open(self.base / "log", "a", encoding="utf-8") as log:
            log.write(f"{what}: {self.draws.stat().st_size} draws, {lines} lines of the ledger\n")

    def add_failure(self, why: str) -> None:
        self.counts.failures.append(f"{self.target.plan.mechanism}, {self.base}: {why}")


FOLDER = {"recipe.yaml", "resolved.yaml", "plan.json", "release", "private"}


def count_draws(plan: Plan, path: Path) -> None:
    """One byte for each event, before its noise is drawn; the checks before a run are not counted."""
    counter = os.open(path, os.O_WRONLY | os.O_APPEND)
    votes = ballot.noise

    def counted_votes(event: Any, stream: Any, count: int) -> Any:
        classes = plan.mechanism_plan.classes if isinstance(event, NoisyMax) else 1
        os.write(counter, b"." * (count // classes))
        return votes(event, stream, count)

    count_noisy_sums(lambda: os.write(counter, b"."))
    ballot.noise = counted_votes  # type: ignore[assignment]


def targets(folder: Path, only: str) -> list[Target]:
    """The plans, tried once: how long an attempt takes, and how often it changes something on disk."""
    result = []
    for with_report in (False, True):
        for mechanism, texts in recipes(with_report).items():
            if only not in ("", mechanism) or (with_report and mechanism != "dpsgd"):
                continue
            for text in texts[: 1 if with_report else None]:
                plan = make_plan(read_text(text, str(folder / "chaos.yaml")))
                runner = mechanism_of(plan.mechanism).import_runner()
                target = Target(plan, runner, runner.prepare(plan, data_root(None, None), PythonInputs()))
                warm = folder / f"warm-{len(result)}"
                run(plan, warm / "run")  # what is imported and worked out once is not waited for by every child
                target.largest = max(path.stat().st_size for path in warm.rglob("*") if path.is_file())
                dprecipe.verify(warm / "run" / "release")
                target.seconds = math.inf
                for again in range(3):  # the least: the machine may be busy
                    case, begun = (
                        Case(target, folder / f"tried-{len(result)}-{again}", CaseCounts()),
                        time.monotonic(),
                    )
                    if case.await_end(case.start()) != 0:
                        sys.exit(case.words.read_text())
                    target.seconds = min(target.seconds, time.monotonic() - begun)
                    target.changes = int((case.base / "changes").read_text())
                result.append(target)
                show(f"{plan.mechanism}: an attempt takes {target.seconds:.2f} s and changes {target.changes} things")
    return result


def kills(target: Target, base: Path, counts: CaseCounts, chance: random.Random, max_kills: int) -> None:
    """A run that is killed up to `max_kills` times, at a chosen disk operation or at a random moment; a third of the
    kills are power failures too."""
    case, killed = Case(target, base, counts), 0
    for _ in range(MAX_ATTEMPTS):
        if killed >= max_kills or (case.out / "release").exists():
            break
        if chance.random() < 0.5:
            # Resumed attempts change less than a whole one: rather early than late, so that most are killed.
            code = case.await_end(case.start(Fault(1 + int(target.changes * chance.random() ** 2), KILL)))
        else:
            code = case.await_end(case.start(), chance.uniform(0.0, 0.8 * target.seconds))
        if code == REFUSED:
            break
        if code >= 0:
            continue
        killed += 1
        counts.kills += 1
        case.note("killed")
        if chance.random() < 1 / 3:
            counts.power += 1
            case.disk.lose_power(chance)
            case.note("power lost")
    case.finish()


def disk_fault(target: Target, base: Path, counts: CaseCounts, chance: random.Random) -> None:
    """A run whose disk refuses: once or from then on, at a random change, or beyond a size of files."""
    case = Case(target, base, counts)
    if chance.random() < 0.2:
        counts.faults["file size limited"] += 1
        case.await_end(case.start(largest_file=chance.randint(0, target.largest)))
    else:
        lasting = chance.random() < 0.5
        counts.faults["lasting" if lasting else "once"] += 1
        case.await_end(case.start(Fault(chance.randint(1, target.changes), chance.choice(ERRORS), lasting)))
    case.finish()


def race(target: Target, base: Path, counts: CaseCounts, chance: random.Random) -> None:
    """Two processes and one run folder."""
    case, kind = (
        Case(target, base, counts),
        chance.choice(("two resumes", "late resume", "two runs", "resume of a run")),
    )
    counts.faults[kind] += 1
    if kind in ("two resumes", "late resume"):
        case.await_end(case.start(), chance.uniform(0.2, 0.6) * target.seconds)
        if not case.out.exists():
            case.await_end(case.start(Fault(target.changes // 2, KILL)))
    if kind == "two runs":
        first, second = case.start(resume=False), case.start(resume=False)
    elif kind == "resume of a run":
        first = case.start(resume=False)
        while not case.out.exists() and running(first):
            time.sleep(0.001)
        second = case.start(resume=True, wait=lambda: time.sleep(chance.uniform(0.0, target.seconds)))
    elif (case.out / "release").exists():
        case.check_release()
        return
    else:
        first = case.start()

        def late() -> None:
            while running_elsewhere(first):
                time.sleep(0.01)

        second = case.start(resume=True, wait=late if kind == "late resume" else lambda: None)
    for child in (first, second):
        case.await_end(child)
    case.finish()


def running(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def running_elsewhere(process: int) -> bool:
    """Of a process that is no child of this one; a dead one that nobody has waited for does not run."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def show(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--races", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a mechanism")
    parser.add_argument("--keep", action="store_true", help="keep the folders of cases that held")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory = Path("/dev/shm")  # a disk of the simulation's own is not waited for
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=memory if memory.is_dir() else None))
    tried, chance, begun = targets(folder, given.only), random.Random(given.seed), time.monotonic()
    names = list(dict.fromkeys(target.plan.mechanism for target in tried))
    tallies: dict[tuple[str, str], CaseCounts] = {}
    for kind, wanted in (("kills", given.kills), ("disk", given.faults), ("race", given.races)):
        for number, name in enumerate(names):
            counts = tallies[kind, name] = CaseCounts()
            mine = [target for target in tried if target.plan.mechanism == name]
            share = wanted // len(names) + (number < wanted % len(names))
            while (counts.kills if kind == "kills" else counts.cases) < share:
                base = folder / f"{kind}-{name}-{counts.cases}"
                target, failed = chance.choice(mine), len(counts.failures)
                if kind == "kills":
                    kills(target, base, counts, chance, min(chance.randint(1, 12), share - counts.kills))
                else:
                    (disk_fault if kind == "disk" else race)(target, base, counts, chance)
                for failure in counts.failures[failed:]:
                    show(f"FAILED: {failure}")
                if len(counts.failures) == failed and not given.keep:
                    shutil.rmtree(base)
            took = time.monotonic() - begun
            show(f"{took:7.0f} s  {kind} {name}: {counts.cases} cases, {len(counts.failures)} failures")
    show(table(tallies))
    failed = sum(len(counts.failures) for counts in tallies.values())
    if not failed:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
    show(json.dumps({"failures": failed, "kills": sum(t.kills for t in tallies.values())}))
    return 1 if failed else 0


def table(tallies: dict[tuple[str, str], CaseCounts]) -> str:
    rows = [
        "| what | mechanism | runs | SIGKILLs | with power lost | attempts | faults | most steps lost | verified |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (kind, name), counts in tallies.items():
        faults = ", ".join(f"{count} × {what}" for what, count in sorted(counts.faults.items())) or "none"
        rows.append(
            f"| {kind} | `{name}` | {counts.cases} | {counts.kills} | {counts.power} | {counts.attempts} | {faults} | "
            f"{counts.lost} | {counts.verified} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
