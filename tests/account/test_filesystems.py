"""File systems of a network are recognised by the table of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.account import filesystems
from dprecipe.account.facts import AccountFacts
from dprecipe.account.faults import AccountUnavailable
from dprecipe.account.opening import open_account
from dprecipe.account.sqlite_store import SqliteStore

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:30 / /mnt/team rw,relatime shared:2 - nfs4 server:/team rw,vers=4.2
41 40 0:31 / /mnt/team/local\040disk rw - ext4 /dev/vdb rw
42 22 0:32 / /mnt/cloud rw - fuse.sshfs someone@host: rw
43 22 0:33 / /mnt/over rw - cifs //server/share rw
44 22 0:34 / /mnt/over rw - xfs /dev/vdc rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/a.db", "ext4"),
        ("/mnt/team/a.db", "nfs4"),
        ("/mnt/teamwork/a.db", "ext4"),
        ("/mnt/team/local disk/a.db", "ext4"),
        ("/mnt/cloud/x/a.db", "fuse.sshfs"),
        ("/mnt/over/a.db", "xfs"),
    ],
)
def test_the_innermost_mount_counts(path: str, kind: str) -> None:
    assert filesystems.find_mount(Path(path), MOUNTS)[0] == kind


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_mounted_by_itself_is_refused(
    tmp_path: Path, facts: AccountFacts, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    """A container's volume of one file: the log of the other place is not seen here."""
    account, link = tmp_path / "a.db", tmp_path / "link.db"
    SqliteStore(account).create(facts, b"k" * 32)
    link.symlink_to(account)
    mounts = tmp_path / "mounts"
    mounts.write_text(f"50 22 254:0 /data/a.db {account} rw - ext4 /dev/vda rw\n")
    monkeypatch.setattr(filesystems, "MOUNTS", mounts)
    for name in (account, link):
        with pytest.raises(AccountUnavailable, match="mounted by itself") as caught:
            open_account(name, read_only=read_only)
        assert "mount the folder" in caught.value.remedy
    mounts.write_text(f"50 22 254:0 /data {tmp_path} rw - ext4 /dev/vda rw\n")  # what the remedy does
    open_account(link, read_only=read_only).close()


@pytest.fixture
def on_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"50 22 0:40 / {tmp_path.parent} rw - nfs4 server:/x rw\n")
    monkeypatch.setattr(filesystems, "MOUNTS", mounts)


def test_local_disks_are_fine(tmp_path: Path) -> None:
    assert filesystems.find_network_type(tmp_path) is None


@pytest.mark.usefixtures("on_a_network")
def test_an_account_on_a_network_is_refused(tmp_path: Path, facts: AccountFacts) -> None:
    assert filesystems.find_network_type(tmp_path / "a.db") == "nfs4"
    with pytest.raises(AccountUnavailable, match=r"network file system \(nfs4\)") as caught:
        SqliteStore(tmp_path / "a.db").create(facts, b"k" * 32)
    assert "PostgreSQL" in caught.value.remedy
    assert list(tmp_path.glob("*a.db*")) == []


def test_an_account_that_was_moved_to_a_network_is_refused(
    tmp_path: Path, facts: AccountFacts, request: pytest.FixtureRequest
) -> None:
    SqliteStore(tmp_path / "a.db").create(facts, b"k" * 32)
    request.getfixturevalue("on_a_network")
    with pytest.raises(AccountUnavailable, match="network file system"), SqliteStore(tmp_path / "a.db").snapshot():
        pass
