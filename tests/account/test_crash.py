"""Clients that are killed at any moment, many at once: nothing reserved is lost, nothing counts twice, nobody waits for
ever."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from dprecipe.account.account import DataAccount
from dprecipe.account.facts import new_facts
from dprecipe.account.faults import AccountUnavailable
from dprecipe.account.opening import create_account, open_account
from dprecipe.account.standing import find_cost
from dprecipe.account.state import OPEN, SETTLED, VOID, largest
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import Spent
from dprecipe.privacy.noisy_sums import Gaussian

EVENT = Gaussian(2000.0)
PLANNED = 10
MIN_DONE = 2
"""Runs that every client ends, at least, after the last kill."""


@dataclass
class Story:
    """What the clients of one name wrote of a run before and after each call."""

    asked: list[tuple[int, int]] = field(default_factory=list)
    """(attempt, events) of each reservation that was asked for."""
    reserved: list[tuple[int, int]] = field(default_factory=list)
    ending: tuple[str, int] | None = None
    """What was asked for last: `settle` or `void`, and events."""
    ended: bool = False


def read_stories(path: Path) -> dict[str, Story]:
    stories: dict[str, Story] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        word, run, attempt, events = line.split()
        story = stories.setdefault(run, Story())
        match word:
            case "ask":
                story.asked.append((int(attempt), int(events)))
            case "reserved":
                story.reserved.append((int(attempt), int(events)))
            case "fault":
                stories.setdefault("-", Story()).asked.append((0, 0))
            case "settle" | "void":
                story.ending = (word, int(events))
            case "ended":
                story.ended = True
    return stories


def be_client(address: str, log: Path, name: str, stop: Path, seed: int) -> None:
    """Reserve and settle run after run until told to stop; goes on where a client of this name was killed."""
    luck = random.Random(seed)
    account = open_account(address)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(word: str, run: str, attempt: int, events: int) -> None:
        os.write(file, f"{word} {run} {attempt} {events}\n".encode())

    def insist(call: Callable[[], object]) -> None:
        while True:
            try:
                call()
                return
            except AccountUnavailable as fault:
                say("fault", "-", 0, 0)
                if not any(word in str(fault) for word in ("lost", "held", "too many clients")):
                    raise

    number, done = 0, 0
    stories = read_stories(log)
    while not (stop.exists() and done >= MIN_DONE):
        run = f"{name}-{number}"
        story = stories.pop(run, Story())
        number += 1
        if story.ended:
            continue
        if story.ending is not None:
            word, events = story.ending  # asked for, and nobody knows whether it was done
        else:
            attempt, planned = story.asked[-1] if story.asked else (1, PLANNED)
            if story.reserved and luck.random() < 0.5:  # a resumed run: its next attempt, with what was wasted
                attempt, planned = attempt + 1, planned + luck.randrange(3)
            say("ask", run, attempt, planned)
            charges = (Charge(EVENT, planned),)
            insist(partial(account.reserve, run, attempt, charges, "x", nonce=f"n{attempt}"))
            say("reserved", run, attempt, planned)
            word, events = ("settle", luck.randrange(1, PLANNED + 1)) if luck.random() < 0.9 else ("void", 0)
            say(word, run, attempt, events)
            story.asked.append((attempt, planned))
        attempt = story.asked[-1][0]
        drawn = (Charge(EVENT, events),)
        if word == "settle":
            insist(partial(account.settle, run, attempt, drawn, final=True))
        else:
            insist(partial(account.void, run, attempt))
        say("ended", run, attempt, events)
        done += 1
    os._exit(0)


def start_client(address: str, folder: Path, name: str, seed: int) -> int:
    child = os.fork()
    if child == 0:
        try:
            be_client(address, folder / f"{name}.log", name, folder / "stop", seed)
        except BaseException as error:
            (folder / f"{name}.error").write_text(repr(error))
        os._exit(1)
    return child


def harass(address: str, folder: Path, clients: int, kills: int, pause: float, seed: int = 1) -> float:
    """Run clients, kill one after the other at random moments and start others in their place; seconds it took to end
    all runs after the last kill."""
    luck = random.Random(seed)
    names = {start_client(address, folder, f"c{number}", number): f"c{number}" for number in range(clients)}
    for number in range(kills):
        time.sleep(luck.uniform(0, 2 * pause))
        victim = luck.choice(list(names))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        name = names.pop(victim)
        names[start_client(address, folder, name, 1000 + number)] = name
    (folder / "stop").touch()
    begin = time.monotonic()
    failed = [name for child, name in names.items() if os.waitpid(child, 0)[1]]
    assert failed == [], [
        (folder / f"{name}.error").read_text() for name in failed if (folder / f"{name}.error").exists()
    ]
    took = time.monotonic() - begin
    print(f"{clients} clients, {kills} kills; all runs ended {took:.1f} s after the last kill")
    return took


def check(account: DataAccount, folder: Path) -> int:
    """Every run is in the account as its clients' own words allow, and nothing else is; gives the number of runs."""

    def cost(events: int) -> Spent:
        return find_cost((Charge(EVENT, events),), account.facts.neighbouring, account.facts.cap)

    count = account.verify()
    stories = {run: story for log in folder.glob("*.log") for run, story in read_stories(log).items()}
    faults = len(stories.pop("-", Story()).asked)
    print(f"{len(stories)} runs, {count.totals.count} entries, {faults} faults that clients tried again after")
    assert set(count.runs) <= set(stories)
    for run, story in stories.items():
        state = count.runs.get(run)
        assert state is not None or not story.reserved, f"{run}: a reservation is lost"
        if state is None:
            continue
        if story.ended:
            assert story.ending is not None
            expected = (SETTLED, cost(story.ending[1])) if story.ending[0] == "settle" else (VOID, Spent((0.0,) * 9))
            assert (state.status, state.counted) == expected, run
        elif story.ending is None:
            confirmed = cost(0)
            for _, events in story.reserved:
                confirmed = largest(confirmed, cost(events))
            assert state.status == OPEN
            assert state.counted.covers(confirmed)
    return len(count.runs)


@pytest.fixture
def in_a_file(tmp_path: Path) -> str:
    facts = new_facts("crash", 50.0, 1e-6, "record", Neighbouring.ADD_OR_REMOVE_ONE)
    account = create_account(tmp_path / "crash.db", facts)
    account.bind(b"x" * 32)
    find_cost((Charge(EVENT, PLANNED),), facts.neighbouring, facts.cap)  # loads what clients need, before they fork
    account.close()
    return str(tmp_path / "crash.db")


@pytest.fixture
def in_a_database(database: str) -> str:
    facts = new_facts("crash", 50.0, 1e-6, "record", Neighbouring.ADD_OR_REMOVE_ONE)
    account = create_account(database, facts)
    account.bind(b"x" * 32)
    find_cost((Charge(EVENT, PLANNED),), facts.neighbouring, facts.cap)
    account.close()
    return database


def test_a_few_kills(in_a_file: str, tmp_path: Path) -> None:
    harass(in_a_file, tmp_path, clients=3, kills=6, pause=0.02)
    assert check(open_account(in_a_file), tmp_path) >= 3 * MIN_DONE


def harass_much(address: str, folder: Path) -> None:
    """Many clients, most of which wait for the lock; then a few, so that many kills hit the one that has it."""
    harass(address, folder, clients=60, kills=30, pause=0.01)
    assert check(open_account(address), folder) >= 120 * MIN_DONE
    (folder / "stop").unlink()
    harass(address, folder, clients=8, kills=100, pause=0.01, seed=2)
    assert check(open_account(address), folder) >= 128 * MIN_DONE


@pytest.mark.slow
def test_many_kills_in_a_file(in_a_file: str, tmp_path: Path) -> None:
    harass_much(in_a_file, tmp_path)


@pytest.mark.slow
def test_many_kills_in_a_database(in_a_database: str, tmp_path: Path) -> None:
    harass_much(in_a_database, tmp_path)
