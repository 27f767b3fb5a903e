"""Forgeries of the corpus: what is changed in a copy, and the failure that must name it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dprecipe.release.untrusted import sha256_of, to_bytes

ROOT = Path(__file__).parent

Change = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Forgery:
    """A change of a release, and the failure that names it."""

    release: str
    named: str
    change: Change = lambda predicate: None
    files: Callable[[Path], object] = lambda folder: None
    keep_ledger: bool = False
    slow: bool = False


def forge(
    name: str,
    target: Path,
    change: Change = lambda predicate: None,
    files: Callable[[Path], object] = lambda folder: None,
    keep_ledger: bool = False,
) -> Path:
    """Returns a changed copy of a release, whose certificate names the files as they are."""
    shutil.copytree(ROOT / "rules1" / name, target)
    if not keep_ledger:
        shutil.rmtree(target / "private")
    release = target / "release"
    files(release)
    file = release / "certificate.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content["predicate"])
    named = {subject["name"] for subject in content["subject"]}
    content["subject"] = [
        {"name": each, "digest": {"sha256": sha256_of(release / each).removeprefix("sha256:")}}
        for each in sorted(named)
    ]
    file.write_bytes(to_bytes(content))
    return release


def put(path: str, value: object) -> Change:
    """Sets one field; `value` may be a function of the one before."""

    def change(predicate: dict[str, Any]) -> None:
        *steps, last = path.split(".")
        block: Any = predicate
        for step in steps:
            block = block[int(step) if isinstance(block, list) else step]
        key: Any = int(last) if isinstance(block, list) else last
        block[key] = value(block[key]) if callable(value) else value

    return change


def both(*changes: Change) -> Change:
    return lambda predicate: [change(predicate) for change in changes]


def less(value: float) -> float:
    return value * 0.9


def claim_less(predicate: dict[str, Any]) -> None:
    epsilon = predicate["claim"]["epsilon"] * 0.5
    predicate["claim"]["epsilon"] = predicate["budget"]["spent"] = predicate["accounting"][0]["epsilon"] = epsilon


def rewrite(name: str, change: Callable[[str], str]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(change((folder / name).read_text(encoding="utf-8")), "utf-8")


def swap(name: str, old: str, new: str) -> Callable[[Path], object]:
    return rewrite(name, lambda text: text.replace(old, new))


def append(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + b"records")


def more_noise(predicate: dict[str, Any]) -> None:
    """All of it, as if the solver had found twice the noise: but for the plan, whose digest the ledger has."""
    predicate["provenance"]["solved"]["mechanism.noise.multiplier"] *= 2
    predicate["events"]["run_length"][0]["noise_multiplier"] *= 2
    claim_less(predicate)


FORGERIES = {
    "a smaller ε": Forgery("dpsgd", r"claim\.epsilon: the events cost", claim_less),
    "a smaller δ": Forgery("dpsgd", r"claim\.delta", put("claim.delta", less)),
    "a larger budget": Forgery("dpsgd", r"budget\.epsilon", put("budget.epsilon", 30.0)),
    "fewer events": Forgery("dpsgd", r"events", put("events.run_length.0.count", 2)),
    "more noise than was solved": Forgery(
        "dpsgd", r"events\.run_length\.0: not an event", put("events.run_length.0.noise_multiplier", 2.0)
    ),
    "more noise throughout": Forgery("dpsgd", r"provenance\.plan", more_noise),
    "a value that is not open": Forgery(
        "dpsgd", r"provenance\.solved\.training\.steps: the recipe does not", put("provenance.solved", {
            "mechanism.noise.multiplier": 0.697007, "training.steps": 3})
    ),
    "no solved value": Forgery("dpsgd", r"provenance\.solved: mechanism\.noise", put("provenance.solved", {})),
    "another size": Forgery(
        "dpsgd", r"recipe\.resolved\.data\.size: not what", put("provenance.recipe.resolved.data.size", 10**6)
    ),
    "another default": Forgery(
        "dpsgd",
        r"provenance\.recipe\.resolved\.training\.optimizer\.momentum",
        put("provenance.recipe.resolved.training.optimizer.momentum", 0.5),
    ),
    "a key that there is not": Forgery(
        "dpsgd", r"provenance\.recipe\.resolved", put("provenance.recipe.resolved.training.free_lunch", True)
    ),
    "another recipe": Forgery(
        "dpsgd", r"provenance\.recipe", put("provenance.recipe.text", lambda text: text.replace("1438", "14380"))
    ),
    "a word for a unit": Forgery("dpsgd", r"claim\.unit\.noun", put("claim.unit.noun", "household")),
    "no assumptions": Forgery("dpsgd", r"assumptions", put("assumptions", [])),
    "what was declared is proved": Forgery(
        "dpsgd", r"assumptions\.\d+\.checked_by", put("assumptions.7.checked_by", "code")
    ),
    "a check left out": Forgery("dpsgd", r"checks: \w+ is missing", put("checks", lambda rows: rows[1:])),
    "a check that failed": Forgery("dpsgd", r"checks\.0\.passed", put("checks.0.passed", False)),
    "a sentence": Forgery("dpsgd", r"claim\.sentence: does not belong", put("claim.sentence", "Nothing is revealed.")),
    "rules to come": Forgery("dpsgd", r"rules: the certificate names rules 2", put("rules", 2)),
    "no rules": Forgery("dpsgd", r"rules: a certificate needs|rules", lambda p: p.pop("rules")),
    "a lower profile": Forgery("dpsgd", r"claim\.profile\.3\.delta", put("claim.profile.3.delta", less)),
    "a smaller μ": Forgery("dpsgd", r"claim\.gdp\.mu", put("claim.gdp.mu", less)),
    "μ for every ε": Forgery("dpsgd", r"claim\.gdp: stated for a longer", put("claim.gdp.to_epsilon", None)),
    "a cheaper family": Forgery("dpsgd", r"claim\.groups\.0\.epsilon", put("claim.groups.0.epsilon", less)),
    "a weaker attacker": Forgery(
        "dpsgd", r"claim\.risk\.guesses\.2\.success", put("claim.risk.guesses.2.success", less)
    ),
    "a generator of one's own": Forgery("dpsgd", r"randomness\.generator", put("randomness.generator", "dice")),
    "bytes behind the weights": Forgery(
        "dpsgd", r"model\.safetensors", files=append("model.safetensors")
    ),
    "another description": Forgery("dpsgd", r"model\.json", files=swap("model.json", "4.0", "5.0")),
    "a better score": Forgery(
        "dpsgd", r"metrics\.json", files=swap("metrics.json", '"accuracy": 0.', '"accuracy": 0.9')
    ),
    "a card that promises": Forgery("dpsgd", r"card\.md", files=rewrite("card.md", lambda t: t + "Nobody is at risk.")),
    "a file too many": Forgery("dpsgd", r"iterates\.npz", files=lambda f: (f / "iterates.npz").write_bytes(b"all")),
    "another ledger": Forgery("dpsgd", r"budget\.attempts", put("budget.attempts", 2), keep_ledger=True),
    "labels that nobody answered": Forgery(
        "pate", r"labels\.csv", files=rewrite("labels.csv", lambda t: t + "".join(f"{400 + n},1\n" for n in range(30)))
    ),
    "a filter's rest": Forgery(
        "votes", r"events\.run_length: less than the filter's limit", put("events.run_length", lambda rows: rows[:-1])
    ),
    "teachers that were not": Forgery("votes", r"mechanism\.voting\.teachers", put("mechanism.voting.teachers", 500)),
    "a smaller bound": Forgery(
        "pnsgd", r"mechanism\.projection\.bounds\.\d\.epsilon", put("mechanism.projection.bounds.0.epsilon", less)
    ),
    "a pass not charged": Forgery("correlated", r"events", put("events.run_length", lambda rows: rows[:1])),
    "noise taken back": Forgery(
        "correlated", r"mechanism\.correlation|events|provenance", put("provenance.solved", {
            "mechanism.noise.multiplier": 2.4622, "mechanism.noise.previous": 0.9})
    ),
    "a lower rate of a part": Forgery(
        "bands", r"events\.run_length\.0", put("events.run_length", lambda rows: [{**rows[0], "part_rate": 0.07}])
    ),
    "bands that take nothing back": Forgery(
        "bands", r"mechanism\.correlation", put("mechanism.correlation.coefficients", [1.0, 0.0, 0.0])
    ),
    "a module as the recipe's": Forgery("module", r"provenance\.model: recipe", put("provenance.model", "recipe")),
    "a model after all": Forgery(
        "no-model", r"events\.total: fewer events", put("budget.stop_reason", "completed")
    ),
    "encoded with more noise": Forgery(
        "encoded", r"events\.run_length\.0", put("events.run_length.0.kind", "gaussian"), slow=True
    ),
    "one attempt": Forgery("attempts", r"budget\.stop_reason", put("budget.attempts", 1), slow=True),
    "other constants": Forgery("paid", r"stages\.0", put("stages.0.constants", "sha256:" + "0" * 64), slow=True),
    "a cheaper step": Forgery("paid", r"stages\.0\.epsilon_alone", put("stages.0.epsilon_alone", less), slow=True),
    "a value that no run draws": Forgery("tuned", r"P182", put("tuning.chosen.0.value", 9.0), slow=True),
    "less counted": Forgery(
        "account", r"account\.counted", put("account.counted.rdp", lambda rows: [0.0] * len(rows)), slow=True
    ),
    "more names right": Forgery(
        "audit", r"audit\.bounds\.0", put("audit.bounds.0.evidence.correct", 10), slow=True
    ),
    "a looser curve to audit": Forgery(
        "audit",
        r"refuted",
        both(
            put("audit.bounds.0.evidence", lambda e: {**e, "correct": 10, "named_in": 5, "named_out": 5}),
            put("audit.bounds.0.curve", lambda rows: [{**row, "delta": 1.0} for row in rows]),
        ),
        slow=True,
    ),
    "another base": Forgery(
        "language",
        r"provenance\.initial_weights|model\.json",
        put("provenance.initial_weights", None),
        slow=True,
    ),
}  # fmt: skip

WORDS_AND_DEFAULTS = frozenset({"a card that promises", "another default"})
"""Another version has other words and defaults: it does not compare them, and says so."""
