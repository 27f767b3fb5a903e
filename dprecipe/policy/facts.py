"""Facts about a recipe, a plan or a certificate that policies govern: read once, so that rules see a single form.

A recipe gives a data set a name; its files may have others. So a rule is compared with all paths that the recipe's text
may stand for, and in a run also with the places where its files lie, under every name that leads there: the names of
links, of their targets, and other names of the same file near by. Only names and links are looked at; no file is
opened. A rule covers what may be meant, and excludes only what is surely meant.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, final

from dprecipe import __version__
from dprecipe.contract.table import mechanism_of
from dprecipe.data.files import find_existing, is_pattern
from dprecipe.data.schema import Data
from dprecipe.data.sources.base import SourceBlock
from dprecipe.language.statement import ReleaseStatement
from dprecipe.policy.globs import clean, is_within, may_meet
from dprecipe.policy.read import PolicyRule
from dprecipe.recipe.root import AnyRecipe, PublicRecipe


@dataclass(frozen=True, slots=True)
class Spelling:
    """A name of a data set.

    `glob`: a recipe's, from the data root; or an absolute path or glob. `excepted_as`: the name that exceptions have to
    use; None if they use that of another spelling. `is_inner`: it names something that is read in a folder.
    """

    glob: str
    excepted_as: str | None = None
    is_inner: bool = False


@dataclass(frozen=True, slots=True)
class DataName:
    """A data set that a recipe reads, at `key`. `file`: its path or pattern there, if it has files. `is_public`: the
    recipe declares that it is public."""

    key: str
    spellings: tuple[Spelling, ...]
    file: str | None = None
    is_public: bool = False


def name_data(source: SourceBlock, path: str, is_public: bool) -> Iterator[DataName]:
    """Yields the data sets of a source whose key is `path`: its files, including those of labels and tables; for a
    database each table (`postgres:DB_URL/wards.admissions`); for data that come with the program their kind
    (`digits:`)."""
    for key, file in source.files.items():
        yield name_file(file, f"{path}.{key}", is_public, source.folder_suffixes if key == "path" else ())
    for name, glob in source.names_elsewhere:
        yield DataName(f"{path}.source", (Spelling(glob, name),), None, is_public)


def name_file(file: str, key: str, is_public: bool, suffixes: Sequence[str] = ()) -> DataName:
    """Returns the name of a file, or of a folder in which files with these endings are read."""
    name = drop_ups(clean(file))  # a recipe does not say where the data root lies
    inner = tuple(Spelling(clean(f"{name}/**/*{suffix}"), None, True) for suffix in suffixes)
    return DataName(key, (Spelling(name, clean(file)), *inner), file, is_public)


def forget_name(name: DataName) -> DataName:
    """Returns the same data set for other records that replace what the recipe names: no exception surely covers
    them."""
    unknown = (each if each.excepted_as is None else replace(each, excepted_as="") for each in name.spellings)
    return replace(name, spellings=tuple(unknown))


def covers(rule: PolicyRule, name: DataName, folders: Sequence[str]) -> bool:
    """Returns True if a rule covers a data set. `folders`: the policy's folder, under each of its names."""
    globs = None if rule.data is None else [drop_ups(clean(glob)) for glob in rule.data]
    return (globs is None or any(_may_name(glob, name, folders) for glob in globs)) and not all(
        any(is_within(spelling.excepted_as, clean(glob)) for glob in rule.excluded or ())
        for spelling in name.spellings
        if spelling.excepted_as is not None
    )


def drop_ups(path: str) -> str:
    """Returns a path without the `..` that it begins with."""
    while path == ".." or path.startswith("../"):
        path = path[3:]
    return path


def _may_name(glob: str, name: DataName, folders: Sequence[str]) -> bool:
    """Returns True if a rule's glob may match a data set, something in it, or a folder that it lies in."""
    is_file = "." in posixpath.basename(glob)
    for spelling in name.spellings:
        own = spelling.glob if glob.startswith("/") else _start_at(spelling.glob, folders)
        if may_meet(own, glob):
            return True
        parts = own.split("/")
        for count in range(1, len(parts)):
            is_open = set(parts[count - 1]) <= {"*", "?"} and parts[count - 1] != ""
            if is_open and (is_file or (spelling.is_inner and "/" not in glob)):
                continue  # any folder might have the name that a rule gives to files
            if may_meet("/".join(parts[:count]) or "/", glob):
                return True
    return False


def _start_at(path: str, folders: Sequence[str]) -> str:
    """Returns an absolute path relative to a policy's folder, if it lies there: folders above that are no part of a
    name."""
    for folder in folders:
        if path.startswith(f"{folder.rstrip('/')}/"):
            return path[len(folder.rstrip("/")) + 1 :]
    return path


Signing = Literal["none", "unknown", "known"]


@dataclass(frozen=True, slots=True)
class GovernedFacts:
    """The facts that the rules look at. A fact that is not known yet is None, and no rule about it fails.

    `data`: the data sets. `is_unit_made`: a query may make the unit's column from others. `signing`: `unknown` if there
    is a signature but the key is not at hand; `key`: its id. `versions`: those of the packages that are known at this
    stage.
    """

    mechanism: str
    model: str
    sources: tuple[tuple[str, str], ...]
    """Pairs (path of the key, kind), one for every source."""
    data: tuple[DataName, ...]
    is_public: bool
    """True if the recipe has no privacy at all."""
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    is_unit_made: bool = False
    max_records: int | None = None
    neighbouring: str | None = None
    accountant: str | None = None
    account: str | None = None
    signing: Signing = "none"
    key: str | None = None
    statement: ReleaseStatement | None = None
    accepted: Sequence[str] = ()
    trainer: str = "recipe"
    """`python`: somebody's own trainer takes the steps."""
    versions: Mapping[str, str] = field(default_factory=lambda: {"dprecipe": __version__})


def read_facts(recipe: AnyRecipe) -> GovernedFacts:
    """Returns the facts of a recipe; ε is None if it is `auto`."""
    data = recipe.data
    named = [("data.train", data.train), ("data.test", data.test_source), ("data.public", data.public)]
    sources = tuple((f"{path}.source", source.source) for path, source in named if source is not None)
    if isinstance(recipe, PublicRecipe):
        return GovernedFacts("none", recipe.model.kind, sources, tuple(_name_sources(data)), True)
    budget, unit = recipe.budget, data.unit
    own = mechanism_of(recipe.mechanism.kind).private_files(recipe.mechanism)
    return GovernedFacts(
        recipe.mechanism.kind,
        recipe.model.kind,
        sources,
        (*_name_sources(data), *(name_file(file, f"mechanism.{key}", False) for key, file in own.items())),
        False,
        epsilon=None if budget.epsilon == "auto" else budget.epsilon,
        delta=budget.delta,
        unit=data.unit_name,
        is_unit_made=not (unit == "record" or data.train.keeps_column(unit.column)),
        max_records=1 if unit == "record" else unit.max_records,
        neighbouring=budget.neighbouring,
        accountant=budget.accountant,
        account=budget.account,
        signing="none" if recipe.release.sign is None else "unknown",
        statement=recipe.release.statement,
        accepted=tuple(recipe.accept),
    )


def name_sample(file: str) -> GovernedFacts:
    """Returns the facts of a file that is read as public without a recipe."""
    return GovernedFacts("none", "", (), (name_file(file, "file", True),), False)


def _name_sources(data: Data) -> Iterator[DataName]:
    yield from name_data(data.train, "data.train", data.train.access == "public")
    if data.test_source is not None:
        yield from name_data(data.test_source, "data.test", data.test_source.access == "public")
    elif data.test is not None and data.test.access == "public":
        yield from name_data(data.train, "data.train", True)
    if data.public is not None:
        yield from name_data(data.public, "data.public", True)


def matches_account(name: str, patterns: Sequence[str]) -> bool:
    """Returns True if one of these globs surely matches an account's name. A glob without `/` matches the last part."""
    return any(is_within(name, glob) if "://" in name else is_within(clean(name), clean(glob)) for glob in patterns)


MAX_LINKS = 40
MAX_DEPTH = 200
"""The most folders of a path that are looked at one by one."""
MAX_ENTRIES = 100_000
"""The most names that are searched for other names of the same file."""
Identity = tuple[int, int]
"""The device and the number of a file."""


def place_data(names: Sequence[DataName], root: Path, policies: Sequence[str]) -> tuple[DataName, ...]:
    """Returns the same data sets, with the names of their places. `root`: the data root. `policies`: the files of
    policies, whose folders are also searched for other names."""
    finder = _Finder(root)
    found = [finder.list_names(name) for name in names]
    folders = dict.fromkeys([root, *(Path(file).parent for file in policies)])
    others = _find_others({each for _, identities, _ in found for each in identities}, list(folders))
    placed = []
    for name, (spellings, identities, own) in zip(names, found, strict=True):
        beside = (other for each in identities for other in others.get(each, ()) if other not in own)
        paths = [path for other in beside for path in finder.follow(other)]
        more = [*spellings, *map(finder.spell, paths)]
        placed.append(replace(name, spellings=tuple(dict.fromkeys([*name.spellings, *more]))))
    return tuple(placed)


@final
class _Finder:
    """A finder that follows links, and remembers where folders lie."""

    def __init__(self, root: Path) -> None:
        self._known: dict[str, tuple[str, ...]] = {}
        self._root = root.absolute()
        self._roots = tuple(dict.fromkeys(_as_posix(path) for path in self.follow(os.fspath(self._root))))

    def list_names(self, name: DataName) -> tuple[list[Spelling], list[Identity], set[str]]:
        """Returns the names of a data set's files, their identities, and their paths."""
        if name.file is None:
            return [], [], set()
        spellings: list[Spelling] = []
        inner = [each.glob.removeprefix(name.spellings[0].glob) for each in name.spellings if each.is_inner]
        if is_pattern(name.file):
            spellings = [Spelling(f"{root}/{each.glob}") for root in self._roots for each in name.spellings]
            files = find_existing((name.file,), self._root)
        else:
            files = [self._root / name.file]
            for path in map(_as_posix, self.follow(os.fspath(files[0]))):
                spellings += [self.spell(path), *(Spelling(path + below, None, True) for below in inner)]
            if inner:
                files += (Path(entry.path) for entry in _walk(files[0]) if _has_other_names(entry))
        identities, paths = [], set[str]()
        for file in files:
            names = self.follow(os.fspath(file))
            paths.update(names)
            spellings += map(self.spell, names if len(names) > 1 else ())
            identities += _identify(file)
        return spellings, identities, paths

    def spell(self, path: str) -> Spelling:
        """Returns the spelling of a path, which exceptions have to name from the data root, if it lies there."""
        path = _as_posix(path)
        inside = [path[len(root.rstrip("/")) + 1 :] for root in self._roots if path.startswith(f"{root.rstrip('/')}/")]
        return Spelling(path, inside[0] if inside else path)

    def follow(self, path: str, links: int = 0) -> tuple[str, ...]:
        """Returns a path and all paths that its links lead through; the last is where it lies."""
        if path.count(os.sep) > MAX_DEPTH or "\0" in path:
            return (path,)
        folder, last = os.path.split(path)
        if folder == path or folder == "":
            return (path,)
        if path not in self._known:
            self._known[path] = self._follow_last(self.follow(folder, links), last, links)
        return self._known[path]

    def _follow_last(self, above: tuple[str, ...], last: str, links: int) -> tuple[str, ...]:
        if last in ("", "."):
            return above
        if last == "..":
            return (os.path.dirname(above[-1]),)
        own = tuple(os.path.join(folder, last) for folder in above)
        try:
            target = os.readlink(own[-1])
        except OSError:
            return own
        return own if links >= MAX_LINKS else own + self.follow(os.path.join(above[-1], target), links + 1)


def _as_posix(path: str) -> str:
    return path.replace(os.sep, "/")


def _identify(file: str | Path) -> list[Identity]:
    """Returns the identity of a file that exists and may have other names."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return []
    return [(status.st_dev, status.st_ino)]


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    todo = [os.fspath(folder)]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                listed = list(entries)
        except OSError:
            continue
        for entry in listed:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                todo.append(entry.path)


def _has_other_names(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_symlink() or (entry.is_file() and os.stat(entry.path).st_nlink > 1)
    except OSError:
        return False


def _find_others(identities: set[Identity], folders: Sequence[Path]) -> dict[Identity, list[str]]:
    """Returns the names of files below some folders, as far as these are searched. A file or folder that is mounted
    elsewhere has one link, and two places."""
    found: dict[Identity, list[str]] = {}
    left = MAX_ENTRIES
    for folder in folders if identities else ():
        for entry in _walk(folder.absolute()):
            left -= 1
            if left < 0:
                return found
            for identity in identities.intersection(_identify(entry.path)):
                found.setdefault(identity, []).append(entry.path)
    return found
