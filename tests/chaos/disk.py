"""A disk that fails on demand, and that knows what a power failure would leave of it.

`Disk.install` replaces the functions of `os` and `open` in this process: each change below `root` is counted, and at
the one that is asked for the disk refuses, or the process is killed, in the middle of a write where it is one. Each
fsync is link in a journal, `shadow`: what a file held then, and which names a folder listed. `lose_power` rebuilds
`root` as a disk may have it afterwards: of every folder the names as they were last synced, or as they are; of every
file the content that was last synced, then nothing, a part of what was written since, zeros, or all of it.

Writes of compiled code (the weights of a release) pass by these functions: a limit of the size of files makes the
system itself refuse them.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import random
import resource
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KILL = "kill"
_PATCHED = ("write", "fsync", "replace", "rename", "link", "mkdir", "ftruncate", "open")
_REAL = {name: getattr(os, name) for name in _PATCHED}
_REAL_OPEN = builtins.open


@dataclass(frozen=True)
class Fault:
    """The fault at this disk operation: `KILL`, or an errno; lasting, or once."""

    at: int
    what: str | int
    lasting: bool = False


class Disk:
    """The folder `root`, and the journal of what was flushed of it."""

    def __init__(self, root: Path, shadow: Path) -> None:
        self.root, self.shadow = root, shadow
        self.changes = 0
        self._fault: Fault | None = None

    def start(self) -> None:
        """Record everything that exists as flushed to disk."""
        shutil.rmtree(self.shadow, ignore_errors=True)
        self.shadow.mkdir()
        for folder, _, files in os.walk(self.root):
            self._safe_folder(Path(folder))
            for name in files:
                self._safe_file(Path(folder) / name)

    # In the process that is to fail.

    def install(self, fault: Fault | None, largest_file: int | None = None) -> None:
        self._fault = fault
        for name in ("replace", "rename", "link", "mkdir"):
            setattr(os, name, self._named(name))
        os.write, os.fsync, os.ftruncate, os.open = self._write, self._fsync, self._ftruncate, self._open  # type: ignore
        builtins.open = io.open = self._opened  # type: ignore[assignment]
        if largest_file is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    def _mine(self, where: Any) -> bool:
        try:
            path = (
                os.readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else os.path.abspath(os.fspath(where))
            )
        except (OSError, TypeError):
            return False
        return path == str(self.root) or path.startswith(f"{self.root}/")

    def _due(self, where: object) -> bool:
        """Count a change; whether the fault strikes at this one."""
        if not self._mine(where):
            return False
        self.changes += 1
        fault = self._fault
        return fault is not None and (self.changes == fault.at or (fault.lasting and self.changes > fault.at))

    def _strike(self) -> None:
        assert self._fault is not None
        if self._fault.what == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(self._fault.what, os.strerror(int(self._fault.what)))

    def _named(self, name: str) -> Any:
        real = _REAL[name]

        def change(path: Any, *rest: Any, **named: Any) -> Any:
            if self._due(rest[0] if name == "link" else path):
                if self._fault is not None and self._fault.what == KILL and self._fault.at % 2:
                    real(path, *rest, **named)  # half of the time the change happens, unreported
                self._strike()
            done = real(path, *rest, **named)
            if name == "mkdir" and self._mine(path):
                (self.shadow / f"{os.stat(path).st_ino}.dir").unlink(missing_ok=True)
            return done

        return change

    def _write(self, file: int, content: Any) -> int:
        if self._due(file):
            _REAL["write"](file, bytes(content)[: len(content) // 2])
            self._strike()
        return int(_REAL["write"](file, content))

    def _ftruncate(self, file: int, size: int) -> None:
        if self._due(file):
            self._strike()
        _REAL["ftruncate"](file, size)

    def _fsync(self, file: int) -> None:
        if self._due(file):
            self._strike()
        _REAL["fsync"](file)
        if self._mine(file):
            path = Path(os.readlink(f"/proc/self/fd/{file}"))
            if path.is_dir():
                self._safe_folder(path)
            elif path.exists():
                self._safe_file(path)

    def _open(self, path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_CREAT and self._due(path):
            self._strike()
        return int(_REAL["open"](path, flags, *rest, **named))

    def _opened(self, file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if not set(mode) & set("wax+") or not self._mine(file):
            return _REAL_OPEN(file, mode, *rest, **named)
        if not isinstance(file, int) and self._due(file):
            self._strike()
        return _File(self, _REAL_OPEN(file, mode, *rest, **named))

    # The journal.

    def _safe_file(self, path: Path) -> None:
        number = os.stat(path).st_ino
        link = self.shadow / f"{number}.link"
        if not link.exists():
            _REAL["link"](path, link)  # so that its inode number is not reused
        with _REAL_OPEN(path, "rb") as file:
            self._store(f"{number}.data", file.read())

    def _safe_folder(self, path: Path) -> None:
        names = {entry.name: entry.inode() for entry in os.scandir(path)}
        self._store(f"{os.stat(path).st_ino}.dir", json.dumps(names).encode())

    def _store(self, name: str, content: bytes) -> None:
        with _REAL_OPEN(self.shadow / "writing", "wb") as file:
            file.write(content)
        _REAL["replace"](self.shadow / "writing", self.shadow / name)

    # After the process is dead.

    def lose_power(self, chance: random.Random) -> None:
        """Leave of `root` what a power failure may leave."""
        folders, files = {}, {}
        for folder, _, names in os.walk(self.root):
            folders[os.stat(folder).st_ino] = Path(folder)
            files.update({os.stat(Path(folder) / name).st_ino: Path(folder) / name for name in names})
        rebuilt = self.root.with_name(f"{self.root.name}.rebuilt")
        self._rebuild(os.stat(self.root).st_ino, rebuilt, folders, files, chance)
        shutil.rmtree(self.root)
        rebuilt.rename(self.root)
        self.start()

    def _rebuild(
        self, number: int, target: Path, folders: dict[int, Path], files: dict[int, Path], chance: random.Random
    ) -> None:
        target.mkdir()
        record = self.shadow / f"{number}.dir"
        safe = json.loads(record.read_text()) if record.exists() else {}
        names = safe
        if number in folders:
            target.chmod(folders[number].stat().st_mode & 0o777)
            now = {entry.name: entry.inode() for entry in os.scandir(folders[number])}
            names = chance.choice((safe, now))
        for name, child in names.items():
            if child in folders or (self.shadow / f"{child}.dir").exists():
                self._rebuild(child, target / name, folders, files, chance)
            else:
                self._rebuild_file(child, target / name, files, chance)

    def _rebuild_file(self, number: int, target: Path, files: dict[int, Path], chance: random.Random) -> None:
        record, link = self.shadow / f"{number}.data", self.shadow / f"{number}.link"
        now = files.get(number, link)
        safe = record.read_bytes() if record.exists() else b""
        written = now.read_bytes() if now.exists() else safe
        left = [safe, written]
        if written.startswith(safe):
            left += [
                written[: chance.randint(len(safe), len(written))],
                safe + bytes(len(written) - len(safe)),
            ]
        target.write_bytes(chance.choice(left))
        target.chmod(now.stat().st_mode & 0o777 if now.exists() else 0o600)


class _File:
    """A file object whose writes are counted, a full buffer as one."""

    def __init__(self, disk: Disk, file: Any) -> None:
        self._disk, self._file = disk, file
        self._waiting = 0

    def write(self, content: Any) -> Any:
        self._waiting += len(content)
        if self._waiting >= io.DEFAULT_BUFFER_SIZE:
            self._waiting = 0
            if self._disk._due(self._file.fileno()):
                self._file.write(content[: len(content) // 2])
                self._file.flush()
                self._disk._strike()
        return self._file.write(content)

    def flush(self) -> None:
        if self._waiting and self._disk._due(self._file.fileno()):
            self._disk._strike()
        self._waiting = 0
        self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
