"""Places where SQLite's locks and logs don't work: file systems that several machines share, and a file that is mounted
by itself, without the files kept beside it."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NAMES = (
    "9p afs beegfs blobfuse blobfuse2 ceph cifs coda curlftpfs davfs davfs2 fhgfs gcsfuse gfs2 glusterfs goofys gpfs "
    "juicefs lustre mfs moosefs ncpfs nfs nfs4 ocfs2 orangefs panfs pvfs2 quobyte rclone s3fs smb smb2 smb3 smbfs "
    "sshfs virtiofs weka wekafs"
)
NETWORK = frozenset(_NAMES.split())
MOUNTS = Path("/proc/self/mountinfo")


def find_network_type(path: Path) -> str | None:
    """Returns the type of the file system if it is a network's, also through FUSE; None if it is not, or if this can't
    be known (systems without `/proc`)."""
    kind, _ = find_mount(path, _read_mounts())
    return kind if kind.removeprefix("fuse.") in NETWORK else None


def is_mount(path: Path) -> bool:
    """Returns True if the file itself is a mount (`mount --bind`, a container's volume of one file): elsewhere it has
    another name and other files beside it. False if this can't be known."""
    return find_mount(path, _read_mounts())[1] == os.path.realpath(path)


def _read_mounts() -> str:
    try:
        return MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def find_mount(path: Path, mounts: str) -> tuple[str, str]:
    """Returns the type of the file system that a path is on and where that is mounted, from the text of
    `/proc/self/mountinfo`; empty strings if none fits."""
    place = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = mount == "/" or place == mount or place.startswith(f"{mount.rstrip('/')}/")
        if inside and len(mount) >= len(best):  # of two at one place, the later one hides the other
            best, kind = mount, after.split(" ")[0]
    return kind, best
