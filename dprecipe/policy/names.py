"""The data sets of a recipe, as a policy's rules know them: by every name that they may have.

A recipe gives a data set a name; its files may have others. So a rule is compared with all paths that the recipe's text
may stand for, and in a run also with the places where its files lie (`dprecipe.policy.places`). A rule covers what may
be meant, and excludes only what is surely meant.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dprecipe.data.sources.base import SourceBlock
from dprecipe.policy.globs import clean, is_within, may_meet
from dprecipe.policy.schema import PolicyRule


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
