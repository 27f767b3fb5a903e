"""Places of a recipe's files, under every name that leads there: the names of links, of their targets, and other names
of the same file near by. Only names and links are looked at; no file is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

from dprecipe.data.files import find_existing, is_pattern
from dprecipe.policy.names import DataName, Spelling

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
            files += _list_links(files[0]) if inner else ()
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


def _list_links(folder: Path) -> Iterator[Path]:
    """Yields the entries of a folder that have names elsewhere."""
    return (Path(entry.path) for entry in _walk(folder) if _has_other_names(entry))


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
