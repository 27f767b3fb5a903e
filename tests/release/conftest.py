"""A finished run without training: a plan, a ledger as the gate writes it, and a release folder beside it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import CertificateInvalid
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy import accountants, calibrate, cross_check
from dprecipe.privacy.ledger import Ledger, LedgerWriter, read
from dprecipe.recipe.read import read_text
from dprecipe.release import claim
from dprecipe.release.certificate import to_bytes
from dprecipe.release.facts import CheckResult, PublicScore, RunFacts, list_versions
from dprecipe.release.verify import verify

RECIPE = """\
extends: base.yaml
name: tampered
description: A test with <script>alert(1)</script> & "quotes"
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1437
mechanism:
  kind: dpsgd
  clip: {norm: 2.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
training:
  steps: 60
  optimizer: {kind: sgd, lr: 0.5}
"""
BASE = """\
recipe: dprecipe/v1
model: {kind: logistic_regression}
budget: {epsilon: 2.0, delta: 1e-5}
"""
HISTORY = [
    {"step": 20, "epsilon": 0.9, "accuracy": 0.713579, "loss": 0.9},
    {"step": 40, "epsilon": 1.5, "accuracy": 0.85, "loss": 0.6},
    {"step": 60, "epsilon": 2.0, "accuracy": 0.9, "loss": 0.4},
]


@dataclass(frozen=True)
class Finished:
    """A run folder with a release in it."""

    path: Path
    plan: Plan
    ledger: Ledger
    facts: RunFacts

    @property
    def release(self) -> Path:
        return self.path / "release"

    @property
    def ledger_file(self) -> Path:
        return self.path / "private" / "ledger.jsonl"


def plan_of(text: str = RECIPE, overrides: tuple[str, ...] = (), file: str = "/secret/place/recipe.yaml") -> Plan:
    parents = [("base.yaml", BASE)] if text.startswith("extends") else []
    return make_plan(read_text(text, file, overrides, parents))


def facts_of(**changes: object) -> RunFacts:
    mechanism = str(changes.pop("mechanism", "dpsgd"))
    check_ids = import_module(f"{mechanism_of(mechanism).package}.certificate").CHECKS
    checks = (*(CheckResult(name, f"{name} holds", True) for name in sorted(check_ids)),)
    fields = {
        "checks": checks,
        "versions": list_versions(),
        "device": "cpu",
        "started": "2026-01-01T10:00:00+00:00",
        "finished": "2026-01-01T10:05:00+00:00",
        "commitment": "ab" * 32,
        "score": PublicScore(0.9, 0.4, 360),
        **changes,
    }
    return RunFacts(**fields)  # type: ignore[arg-type]


def spend(path: Path, plan: Plan, *, crashes: int = 0) -> Ledger:
    """A ledger of a complete run; of which `crashes` attempts died with one event reserved."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(crashes):
        writer = LedgerWriter(path, plan.digest)
        writer.reserve(plan.events[0].event, 1)
        writer.abandon()
    writer = LedgerWriter(path, plan.digest)
    for charge in plan.events:
        remaining = charge.count
        while remaining:
            block = min(25, remaining)
            writer.reserve(charge.event, block)
            writer.settle(charge.event, block)
            remaining -= block
    writer.close("completed")
    return read(path)


Finish = Callable[..., Finished]


@pytest.fixture(scope="session", name="plan_of")
def plan_of_fixture() -> Callable[..., Plan]:
    return plan_of


@pytest.fixture(scope="session", name="facts_of")
def facts_of_fixture() -> Callable[..., RunFacts]:
    return facts_of


@pytest.fixture(scope="session")
def finish(put_release: Callable[..., RunFacts]) -> Finish:
    def finish(path: Path, plan: Plan, facts: RunFacts, *, crashes: int = 0) -> Finished:
        ledger = spend(path / "private" / "ledger.jsonl", plan, crashes=crashes)
        facts = replace(facts, steps_lost=crashes)
        return Finished(path, plan, ledger, put_release(path / "release", plan, ledger, facts, HISTORY))

    return finish


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, finish: Finish) -> Finished:
    """Read only: shared by all tests of a session."""
    return finish(tmp_path_factory.mktemp("finished") / "run", plan_of(), facts_of())


@pytest.fixture
def copy(finished: Finished, tmp_path: Path) -> Finished:
    """A run folder of one's own, to be tampered with."""
    shutil.copytree(finished.path, tmp_path / "run")
    return Finished(tmp_path / "run", finished.plan, finished.ledger, finished.facts)


@pytest.fixture(autouse=True)
def cached_accountants(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accountants are pure: asked the same, they answer from memory. They are the real ones."""
    for module, name in CACHED:
        monkeypatch.setattr(module, name, _cache(getattr(module, name)))


CACHED = (
    (accountants, "epsilon_answer"),
    (accountants, "profile"),
    (calibrate, "_cost"),
    (claim, "find_gaussian_bound"),
    (cross_check, "ask_library"),
)
_MEMORY: dict[Any, Any] = {}


def _cache(function: Any) -> Any:
    def call_cached(*args: Any) -> Any:
        key = (function.__name__, *(tuple(a) if isinstance(a, list | tuple) else a for a in args))
        if key not in _MEMORY:
            _MEMORY[key] = function(*args)
        return _MEMORY[key]

    return call_cached


WORDS = {
    "add_or_remove_one": "replace_one",
    "poisson_gaussian": "gaussian",
    "gaussian": "laplace",
    "completed": "budget",
    "claim": "alternative",
    "alternative": "claim",
    "cross_check": "claim",
    "code": "test",
    "declaration": "code",
    "covered": "declared",
    "public": "private_internal",
    "declared": "public",
    "recipe": "python",
    "2026-01-01T10:00:00+00:00": "2026-01-01T09:00:00+00:00",
    "2026-01-01T10:05:00+00:00": "2026-01-01T11:00:00+00:00",
}


WEAKER = re.compile(
    r"claim\.(profile\.\d+\.delta|gdp\.(mu|from_epsilon|to_epsilon)|groups\.\d+\.epsilon|risk\.(advantage|odds_factor|odds_failure)"
    r"|risk\.\w+\.\d+\.(true_positive_rate|success|posterior))|accounting\.[12]\.epsilon"
    r"|mechanism\.(data_dependent\.(cost|epsilon|worst_case_epsilon)|by_position\.\d+\.(epsilon|delta)"
    r"|projection\.bounds\.\d+\.epsilon)|stages\.\d+\.epsilon_alone|tuning\.one_run_epsilon"
)
"""Upper bounds, and where they begin: a larger one is a weaker statement, and true. Of their end, a smaller one."""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{path}.{key}".lstrip("."))
    else:
        yield path, value


def mutations(value: Any) -> list[Any]:
    """Other values of the same type, on both sides where there are sides."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value - 1]
        case float():
            return [value * 1.0001, value * 0.9999] if value else [1e-4, -1e-4]
        case str() if value in WORDS:
            return [WORDS[value]]
        case str() if re.search(r"[0-9a-f]{64}$", value):
            return [value[:-1] + ("0" if value[-1] != "0" else "1")]
        case str():
            return [value + "x"]
        case None:
            return [1.5]
        case []:
            return [["x"]]
        case {}:
            return [{"x": 1}]
    raise AssertionError(value)


def set_leaf(content: Any, path: str, value: Any) -> None:
    steps = path.split(".")
    if isinstance(content, list):
        key: Any = int(steps[0])
    else:  # the keys of solved values are paths themselves
        key = next(k for k in content if path == k or path.startswith(f"{k}."))
        steps = [key, *path.removeprefix(key).strip(".").split(".")]
    rest = ".".join(steps[1:])
    if rest:
        set_leaf(content[key], rest, value)
    else:
        content[key] = value


def find_unnoticed(release: Path, section: str, recorded_only: Iterable[str]) -> tuple[int, list[Any]]:
    """How many changes of one leaf of a section were tried, and those that `verify` does not find and name."""
    file = release / "certificate.json"
    text = file.read_text(encoding="utf-8")
    seen, wrong = 0, []
    for path, value in leaves(json.loads(text)["predicate"][section], section):
        if any(re.fullmatch(pattern, path) for pattern in recorded_only):
            continue
        for changed in mutations(value):
            if WEAKER.fullmatch(path) and (changed < value) is path.endswith("to_epsilon"):
                continue
            seen += 1
            content = json.loads(text)
            set_leaf(content["predicate"], path, changed)
            file.write_bytes(to_bytes(content))
            failures = failures_of(release)
            if not any(names_path(failure, path) for failure in failures):
                wrong.append((path, value, changed, failures))
    file.write_text(text, encoding="utf-8")
    return seen, wrong


def failures_of(path: Path) -> tuple[str, ...]:
    try:
        verify(path)
    except CertificateInvalid as error:
        return error.failures
    return ()


def names_path(failure: str, path: str) -> bool:
    """The failure's path, where it has one, is the leaf's, lies above it, or stands for the same text; another kind
    of event has other fields."""
    stated = failure.split(": ")[0].removeprefix("predicate.")
    stated = re.sub(r"^(events\.run_length\.\d+)\.[a-z_]+\.", r"\1.", stated)  # the kind it was read as
    if path.startswith("provenance.recipe."):
        return stated.startswith("provenance.recipe")
    if path.startswith("provenance.solved"):
        return stated.startswith((path, "provenance.recipe", "events"))  # another plan, with other events
    if path.endswith(".kind") and stated.startswith(path.removesuffix("kind")):
        return True
    return path == stated or path.startswith(stated + ".") or stated.startswith(path) or path in failure.split()


@pytest.fixture(scope="session")
def tampering() -> SimpleNamespace:
    """What changes a certificate leaf by leaf."""
    return SimpleNamespace(
        leaves=leaves, mutations=mutations, set_leaf=set_leaf, find_unnoticed=find_unnoticed, failures_of=failures_of
    )
