"""Does what a remedy says, as a person would who knows nothing but the remedy and a few recipes that work.

The words of the remedy are read: a remedy that names another place, value or key than the one that helps is followed
there. Where it leaves a choice ("a number greater than 0", "add `epsilon`"), the value is one of a recipe that works.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from dprecipe.cli.show import resolved_text
from dprecipe.faults import Finding, RecipeError
from dprecipe.planning import rules
from dprecipe.recipe.read import read_text
from dprecipe.recipe.starters import MECHANISMS, SOURCES, make_starter
from dprecipe.text.dump import dump
from dprecipe.text.load import parse
from dprecipe.text.tree import Path as Steps
from dprecipe.text.tree import find_node, to_plain

GOLDEN = Path(__file__).parents[1] / "golden"
NOTHING = object()
# What a person chooses where no recipe that works has the key.
CHOICES: dict[str, Any] = {
    "mechanism.clip.quantile": 0.5,
    "mechanism.clip.learning_rate": 0.2,
    "mechanism.clip.count_noise": 10.0,
    "mechanism.noise.df": 9,
    "mechanism.noise.shape": 2,
    "mechanism.microbatch": 1,
    "mechanism.group_noise": [1.0, 2.0],
    "runtime.insecure.seed": 1,
    "release.sign.key": "key.pem",
    "data.public": {"source": "digits", "split": "test", "records": [0, 250]},
}
OPEN = ("data.unit", "data.train.label")
BY_KEY: dict[str, Any] = {"values": ["a", "b"], "mean": 0.5, "std": 0.5, "multiplier": 2.0, "columns": ["ward"]}


@dataclass(frozen=True)
class Followed:
    """A recipe after a remedy, and the place that the remedy named."""

    values: dict[str, Any]
    target: str


def follow(text: str, finding: Finding) -> Followed:
    """The recipe with one finding's remedy followed, by its words."""
    tree, _ = parse(text, "a.yaml")
    assert tree is not None
    values: Any = to_plain(tree)
    assert isinstance(values, dict)
    path, _ = find_node(tree, finding.path)
    written, words = ".".join(map(str, path)), finding.remedy
    if match := re.match(r"add `(\w+)`", words):
        return _set(values, finding.path, _human(finding.path, values))
    if written != finding.path:  # it is about something that is not written: its block stands for it
        return _set(values, finding.path, _human(finding.path, values))
    if words.startswith("write the two parts to files of their own"):
        return _set(values, "data.test", {"source": "csv", "path": "held-out.csv"})
    if match := re.match(r"lower ([\w.]+) to ([\d.]+)", words):
        return _set(values, match[1], parse_inline(match[2]))
    if words.startswith("choose a mechanism with a guarantee"):
        return _set(values, "mechanism", _human("mechanism", {"mechanism": {"kind": "dpsgd"}}))
    if re.match(r"remove it\b", words) or words.endswith(("remove the line", "under a name of its own")):
        return _set(values, path, NOTHING)
    if match := re.match(r"move it to ([\w.<>]+)", words):
        target = match[1]
        return _set(_set(values, path, NOTHING).values, target, _get(values, path))
    if match := re.match(r"remove ([a-z_]+(?:\.\w+)+), and set ([a-z_]+(?:\.\w+)+)$", words):
        values = _set(values, match[1], NOTHING).values
        there = _get(values, tuple(match[2].split(".")))
        return _set(values, match[2], _human(match[2], values) if there is NOTHING else there)
    if match := re.match(r"write `(\w+: [^`]*)` and `(\w+: [^`]*)`", words):
        values = _set(values, path, NOTHING).values
        for line in match.groups():
            ((key, end),) = parse_inline(f"{{{line}}}").items()
            values = _set(values, (*path[:-1], key), end).values
        return Followed(values, ".".join(map(str, (*path[:-1], key))))
    match = re.match(
        r"write ((?:data|model|mechanism|training|runtime)\.[\w.]+): ([{\[].*?[}\]])(?=[,;]|$| for )", words
    )
    if match is not None and ("…" not in match[2] or match[1] in OPEN):
        return _set(_set(values, path, NOTHING).values, match[1], parse_inline(_fill(match[2])))
    if " and " in words and (match := re.match(r"set (.*), the stricter of the two, and remove it here$", words)):
        values = _set(values, path, NOTHING).values
        for part in match[1].split(" and "):
            target, _, end = part.partition(" to ")
            values = _set(values, target, parse_inline(end)).values
        return Followed(values, target)
    if match := re.match(r"(?:set|write) ((?:data|model|mechanism|budget|training|runtime|release)\.[\w.]+)", words):
        rest = words[match.end() :]
        word = re.match(r" to (?:`([\w.-]+)`|([\w.+-]+|[\[{].*?[\]}])(?= or |, |: |;|$))", rest)
        value: Any = _human(match[1], values)
        if word is not None:
            value = parse_inline(word[1] or word[2])
        else:
            previous = _get(values, path)
            if isinstance(previous, int | float) and not isinstance(previous, bool) and isinstance(value, int | float):
                value = type(value)(previous) if not isinstance(value, int) or float(previous).is_integer() else value
        return _set(_set(values, path, NOTHING).values, match[1], value)
    if match := re.match(r"write it in (?:brackets|quotes): (.*)$", words):
        return _set(values, path, parse_inline(match[1]))
    match = re.match(r"write a block: (\{.*\})$", words)
    if match is not None and ("…" not in match[1] or finding.path in OPEN):
        return _set(values, path, parse_inline(_fill(match[1])))
    if match := re.match(r"write (?:a block: )?(\{.*\})$", words):
        return _set(values, path, _human(finding.path, values, kind=match[1]))
    if match := re.match(r"write (true|false|-?[0-9][0-9.e-]*)$", words):
        return _set(values, path, yaml.safe_load(match[1]))
    if words == "remove the quotes":
        return _set(values, path, yaml.safe_load(str(_get(values, path))))
    if words == "remove the brackets":
        return _set(values, path, _get(values, path)[0])
    if match := re.match(r"write `([^`]*)`", words):
        if finding.code in ("R101", "R112", "Y118"):
            return _rename(values, path, match[1])
        if match[1].startswith("- "):
            return _set(values, path, yaml.safe_load(match[1].replace("…", "norm: 1.0"))[0])
        meant = yaml.safe_load(match[1].replace("…", ""))
        if isinstance(meant, dict) and set(meant) == {path[-1]}:  # the whole line
            meant = meant[path[-1]]
        return _set(values, path, meant)
    return _set(values, path, _human(finding.path, values))


def findings_of(text: str) -> tuple[Finding, ...]:
    """What `validate` finds in a text."""
    try:
        loaded = read_text(text, "a.yaml")
    except RecipeError as error:
        return error.findings
    return loaded.located(rules.check(loaded.recipe))


def _fill(block: str) -> str:
    """A block whose open values a person knows."""
    return block.replace("max_records: …", "max_records: 4").replace("[…]", "[no, yes]")


def parse_inline(text: str) -> Any:
    """A value as a recipe has it: `no` is text."""
    tree, findings = parse(f"value: {text}\n", "a.yaml")
    assert tree is not None, text
    assert not findings, text
    plain = to_plain(tree)
    assert isinstance(plain, dict)
    return plain["value"]


def _rename(values: dict[str, Any], path: Steps, word: str) -> Followed:
    previous = _get(values, path)
    key, _, more = word.partition(": ")
    target = (*path[:-1], key)
    value = parse_inline(more) if more else previous
    if _get(values, target) is not NOTHING:  # both stand there: the misspelt one goes
        return Followed(_set(values, path, NOTHING).values, ".".join(map(str, target)))
    return _set(_set(values, path, NOTHING).values, target, value)


def _human(path: str, values: dict[str, Any], kind: str = "") -> Any:
    """A value that works at a place, from a recipe of the same mechanism if there is one."""
    if path in CHOICES:
        return copy.deepcopy(CHOICES[path])
    mechanism = values.get("mechanism")
    own = mechanism.get("kind") if isinstance(mechanism, dict) else None
    wanted = yaml.safe_load(kind.replace(", …", "").replace("…", "")) if kind else {}
    for same in (True, False):
        for good in _good():
            if same and good["mechanism"]["kind"] != own:
                continue
            value = _get(good, tuple(int(s) if s.isdecimal() else s for s in path.split(".")))
            if value is not NOTHING and all(isinstance(value, dict) and value.get(k) == v for k, v in wanted.items()):
                return copy.deepcopy(value)
    if (last := path.rpartition(".")[2]).isdecimal() and last != "0":
        return _human(f"{path[: -len(last)]}0", values, kind)
    return wanted or BY_KEY.get(last, NOTHING)


@cache
def _good() -> tuple[dict[str, Any], ...]:
    texts = [make_starter(mechanism, source, "good") for mechanism in MECHANISMS for source in SOURCES]
    texts += [path.read_text("utf-8") for path in sorted(GOLDEN.glob("*/fine*.yaml"))]
    return tuple(_readable(texts))


def _readable(texts: list[str]) -> Iterator[dict[str, Any]]:
    for text in texts:
        try:
            yield resolved_text(read_text(text))
        except RecipeError:
            continue


def _get(values: Any, path: Steps) -> Any:
    for step in path:
        if isinstance(values, dict) and str(step) in values:
            values = values[str(step)]
        elif isinstance(values, list) and str(step).isdecimal() and int(step) < len(values):
            values = values[int(step)]
        else:
            return NOTHING
    return values


def _set(values: dict[str, Any], path: str | Steps, value: Any) -> Followed:
    """A copy with the value at a path, or without what stands there."""
    split = path.split(".") if isinstance(path, str) else path
    steps = tuple(int(s) if str(s).isdecimal() else s for s in split)
    changed = copy.deepcopy(values)
    node: Any = changed
    for step, following in pairwise(steps):
        if isinstance(node, list) and isinstance(step, int) and step < len(node):
            node = node[step]
            continue
        below = node.get(str(step)) if isinstance(node, dict) else None
        if not isinstance(below, dict | list):
            if value is NOTHING:
                return Followed(changed, ".".join(map(str, steps)))
            below = [] if isinstance(following, int) else {}
            if isinstance(node, list):
                node.append(below)
            else:
                node[str(step)] = below
        node = below
    last = steps[-1]
    if value is NOTHING:
        if isinstance(node, dict):
            node.pop(str(last), None)
        elif isinstance(node, list) and isinstance(last, int) and last < len(node):
            node.pop(last)
    elif isinstance(node, list):
        if isinstance(last, int) and last < len(node):
            node[last] = value
        else:
            node.append(value if isinstance(last, int) else {str(last): value})
    else:
        node[str(last)] = value
    return Followed(changed, ".".join(map(str, steps)))


def written(followed: Followed) -> str:
    """The recipe as text."""
    return dump(followed.values)
