"""Globs of policies and of recipes, compared by the paths that they stand for.

`may_meet` is true if some path matches both: never a wrong no, and a wrong yes only where one letter may be written as
several (`?` also stands for é as e and an accent). `is_within` is true if every path of one is a path of the other:
never a wrong yes. A policy's glob is one of `fnmatch`: `*` stands for any letters, `/` included. A recipe's is one of
`glob`: `*` and `?` stay within a folder, `**` stands for any folders.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from typing import final

from dprecipe.data.files import is_pattern

MAX_STATES = 1_000_000
"""The most pairs of states that are searched; two globs with more count as meeting."""


class Wild(Enum):
    """Classes of letters that are not listed one by one."""

    ANY = "any"
    NAME = "any but /"
    FOREIGN = "any but ASCII"

    def has(self, letter: str) -> bool:
        """Returns True if this class includes the letter."""
        return self is Wild.ANY or (letter != "/" if self is Wild.NAME else not letter.isascii())


Letters = str | Wild
"""The letters that one step takes: any of a text, or a class of letters."""


@final
class Automaton:
    """An automaton for the paths that a glob matches: states from 0 to the last, and steps between them."""

    def __init__(self) -> None:
        self.steps: list[list[tuple[Letters, int]]] = [[]]
        self.skips: list[list[int]] = [[]]

    @property
    def end(self) -> int:
        """The last state, in which a path is accepted."""
        return len(self.steps) - 1

    def take(self, letters: Letters) -> None:
        """Adds a step: one of these letters follows."""
        self.steps[self.end].append((letters, self.end + 1))
        self._begin()

    def take_many(self, letters: Letters) -> None:
        """Adds a loop: any number of these letters follows."""
        self.skips[self.end].append(self.end + 1)
        self._begin()
        self.steps[self.end].append((letters, self.end))

    def take_one_as_read(self, letters: Letters) -> None:
        """Adds a step: one of these letters follows, which may be written as several: é as e and an accent."""
        self.take(letters)
        self.take_many(Wild.FOREIGN)

    def take_folders(self) -> None:
        """Adds a loop: nothing follows, or folders, each with its `/`."""
        start = self.end
        self.take_many(Wild.ANY)
        self.take("/")
        self.skips[start].append(self.end)

    def _begin(self) -> None:
        self.steps.append([])
        self.skips.append([])


def fold(text: str) -> str:
    """Returns a path in which letters that some file system treats as equal are equal: capitals, composed letters, and
    `\\`."""
    return "".join(map(_fold_letter, unicodedata.normalize("NFD", text))).replace("\\", "/")


def _fold_letter(letter: str) -> str:
    upper = letter.upper()
    lower = (upper if len(upper) == 1 else letter).lower()
    return lower if len(lower) == 1 else letter


def clean(glob: str) -> str:
    """Returns a path or a glob without `.`, `//`, a `/` at its end, and `..` after a folder."""
    rooted, parts = glob.startswith("/"), list[str]()
    for part in glob.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part not in ("", ".") and not (part == ".." and rooted):
            parts.append(part)
    return "/" * rooted + "/".join(parts)


def may_meet(recipe_glob: str, rule_glob: str) -> bool:
    """Returns True if some path may match both a recipe's glob and a rule's. A rule's glob may begin at any folder of
    the path. If it begins with `/`, a recipe's relative path may be its end."""
    is_placed = rule_glob.startswith("/") and not recipe_glob.startswith("/")
    if not is_pattern(recipe_glob):
        path = fold(recipe_glob)
        if any(run not in path for run in _list_runs(rule_glob.lstrip("/") if not is_placed else "")):
            return False
    one, other = _read_recipe(recipe_glob, is_placed), _read_rule(rule_glob)
    return one.end * other.end > MAX_STATES or _have_common(one, other)


@lru_cache(maxsize=1000)
def _list_runs(glob: str) -> tuple[str, ...]:
    """Returns the runs of letters that every path of a rule contains, in order: they rule out most paths quickly."""
    plain = "".join(token if len(token) == 1 and token not in "*?" else "*" for token in _split_rule(glob))
    return tuple(fold(run) for run in plain.split("*"))


@lru_cache(maxsize=1000)
def _read_rule(glob: str) -> Automaton:
    result = Automaton()
    if not glob.startswith("/"):
        result.take_folders()
    for token in _split_rule(glob):
        if token == "*":
            result.take_many(Wild.ANY)
        elif token == "?":
            result.take_one_as_read(Wild.ANY)
        elif len(token) > 1:
            letters = None if token[1] == "!" else _list_letters(token[1:-1])
            result.take_one_as_read(Wild.ANY if letters is None else fold(letters))
        else:
            for letter in fold(token):
                result.take(letter)
    return result


@lru_cache(maxsize=1000)
def _read_recipe(glob: str, is_placed: bool) -> Automaton:
    result = Automaton()
    if is_placed:
        result.take("/")
        result.take_folders()
    parts = glob.split("/")
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if part == "**" and not is_last:
            result.take_folders()
            continue
        if part == "**":
            result.take_many(Wild.ANY)
        for letter in fold(part) if part != "**" else "":
            if letter == "*":
                result.take_many(Wild.NAME)
            elif letter == "?":
                result.take_one_as_read(Wild.NAME)
            else:
                result.take(letter)
        if not is_last:
            result.take("/")
    return result


def _split_rule(glob: str) -> Iterator[str]:
    """Yields `*`, `?`, sets with their brackets, and letters, as `fnmatch` reads them."""
    place = 0
    while place < len(glob):
        end = place + 1
        if glob[place] == "[":
            start = place + 1 + (glob[place + 1 : place + 2] == "!")
            closing = glob.find("]", start + 1)
            end = closing + 1 if closing >= 0 else end
        yield glob[place:end]
        place = end


PART = re.compile(r"[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[!-,.0-Z^-~]")
SET = re.compile(f"(?:{PART.pattern})+")


def _list_letters(inner: str) -> str | None:
    """Returns the letters of a set; None if it has more than ASCII's letters, digits and signs, and ranges of letters
    or digits."""
    if not SET.fullmatch(inner):
        return None
    parts = (part[0] for part in PART.finditer(inner))
    return "".join(chr(code) for part in parts for code in range(ord(part[0]), ord(part[-1]) + 1))


def _have_common(one: Automaton, other: Automaton) -> bool:
    todo, seen = [(0, 0)], {(0, 0)}
    while todo:
        first, second = todo.pop()
        if (first, second) == (one.end, other.end):
            return True
        follow = [(state, second) for state in one.skips[first]] + [(first, state) for state in other.skips[second]]
        follow += [
            (after, then)
            for letters, after in one.steps[first]
            for others, then in other.steps[second]
            if _have_letter(letters, others)
        ]
        fresh = set(follow) - seen
        seen |= fresh
        todo += fresh
    return False


def _have_letter(one: Letters, other: Letters) -> bool:
    if isinstance(one, Wild):
        return isinstance(other, Wild) or any(map(one.has, other))
    return any(map(other.has, one)) if isinstance(other, Wild) else not set(one).isdisjoint(other)


STAR, LETTER, FOLDERS = "\ue000", "\ue001", "\ue002"
"""Letters that stand for a recipe's `*`, `?` and `**` when a rule's glob is compared with them. If a path itself has
such a letter, only `*` in a rule matches it."""


def is_within(recipe_glob: str, rule_glob: str) -> bool:
    """Returns True if every path of a recipe's glob matches the rule's: from its beginning, or by its last part if the
    rule's glob has no `/`. Letters in another case, or composed in another way, are different letters."""
    marked = re.sub(r"(?:^|(?<=/))\*\*/", FOLDERS, recipe_glob)
    marked = re.sub(r"(?:^|(?<=[/\ue002]))\*\*$", FOLDERS, marked)
    marked = re.sub(r"\*+", STAR, marked).replace("?", LETTER)
    inside = _compile_rule(rule_glob)
    if inside.fullmatch(marked):
        return True
    last = re.split("[/\ue002]", marked)[-1]
    return "/" not in rule_glob and last != "" and inside.fullmatch(last) is not None


@lru_cache(maxsize=1000)
def _compile_rule(glob: str) -> re.Pattern[str]:
    """Compiles a rule's glob with its letters as they are. Wildcards for one letter do not match the marks that stand
    for none or for several."""
    runs, run = [], ""
    for token in _split_rule(glob):
        if token == "*":
            runs.append(run)
            run = ""
        elif token == "?":
            run += f"[^{STAR}{FOLDERS}]"
        elif len(token) > 1:
            negated = token[1] == "!"
            letters = _list_letters(token[1 + negated : -1])
            run += "(?!)" if not letters else f"[{f'^{STAR}{LETTER}{FOLDERS}' * negated}{re.escape(letters)}]"
        else:
            run += re.escape(token) if token not in (STAR, LETTER, FOLDERS) else "(?!)"
    first, *others = [*runs, run]
    if not others:
        return re.compile(first, re.DOTALL)
    middle = "".join(f"(?>.*?{part})" for part in others[:-1])
    return re.compile(f"{first}{middle}.*{others[-1]}", re.DOTALL)
