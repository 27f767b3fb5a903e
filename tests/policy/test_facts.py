"""Every name that leads to a file is found, whatever links do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dprecipe.policy import facts
from dprecipe.policy.facts import DataName, Spelling, place_data


def list_paths(root: Path, file: str, *policies: Path) -> set[str]:
    name = DataName("data.train.path", (Spelling(file, file),), file)
    (placed,) = place_data([name], root, [os.fspath(policy / "dprecipe.policy.yaml") for policy in policies])
    assert placed.spellings[0] == name.spellings[0]
    return {os.path.relpath(spelling.glob, root) for spelling in placed.spellings[1:]}


def test_a_file_has_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    assert list_paths(tmp_path, "a.csv") == {"a.csv"}
    assert list_paths(tmp_path, "missing.csv") == {"missing.csv"}
    assert list_paths(tmp_path, "x\0.csv") == {"x\0.csv"}


def test_each_link_of_a_chain_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "blob").touch()
    (tmp_path / "b.csv").symlink_to("store/../store/./blob")
    (tmp_path / "a.csv").symlink_to(tmp_path / "b.csv")
    assert list_paths(tmp_path, "a.csv") == {"a.csv", "b.csv", "store/blob"}
    assert list_paths(tmp_path, "store/blob") == {"store/blob", "a.csv", "b.csv"}  # links to it are found as well


def test_a_detour_through_a_linked_folder_is_followed_and_not_shortened(tmp_path: Path) -> None:
    (tmp_path / "wards" / "deep").mkdir(parents=True)
    (tmp_path / "wards" / "visits.csv").touch()
    (tmp_path / "x").symlink_to("wards/deep")
    assert "wards/visits.csv" in list_paths(tmp_path, "x/../visits.csv")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to("b.csv")
    (tmp_path / "b.csv").symlink_to("a.csv")
    assert list_paths(tmp_path, "a.csv") == {"a.csv", "b.csv"}
    assert list_paths(tmp_path, "d/" * 3000 + "x.csv")


def test_another_name_of_a_file_is_found_below_the_root_and_the_policy(tmp_path: Path) -> None:
    for folder in ("data", "hospital/wards", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "data" / "a.csv").touch()
    os.link(tmp_path / "data" / "a.csv", tmp_path / "hospital" / "wards" / "visits.csv")
    os.link(tmp_path / "data" / "a.csv", tmp_path / "elsewhere" / "b.csv")
    found = list_paths(tmp_path / "data", "a.csv", tmp_path / "hospital")
    assert found == {"a.csv", "../hospital/wards/visits.csv"}


MOUNTED = """\
import sys
from pathlib import Path
from tests.policy.test_facts import list_paths
print(sorted(list_paths(Path(sys.argv[1]) / "data", sys.argv[2], Path(sys.argv[1]) / "hospital")))
"""


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0,
    reason="needs mounts of one's own",
)
@pytest.mark.parametrize(
    ("file", "mount", "found"),
    [
        ("a.csv", "wards/visits.csv data/a.csv", "../hospital/wards/visits.csv"),
        ("mine/visits.csv", "wards data/mine", "../hospital/wards/visits.csv"),
    ],
)
def test_a_mounted_file_is_found_by_its_own_name(file: str, mount: str, found: str, tmp_path: Path) -> None:
    for folder in ("data/mine", "hospital/wards"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "data" / "a.csv").touch()
    (tmp_path / "hospital" / "wards" / "visits.csv").touch()
    script = 'mount --bind "$1" "$2" && exec "$3" -c "$4" "$5" "$6"'
    source, target = mount.split()
    mounted = [os.fspath(tmp_path / "hospital" / source), os.fspath(tmp_path / target)]
    command = ["unshare", "-rm", "sh", "-c", script, "sh", *mounted, sys.executable, MOUNTED, os.fspath(tmp_path), file]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert repr(found) in said


def test_the_search_for_other_names_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / f"{number}.csv").touch()
    os.link(tmp_path / "7.csv", tmp_path / "other.csv")
    assert "other.csv" in list_paths(tmp_path, "7.csv")
    monkeypatch.setattr(facts, "MAX_ENTRIES", 0)
    assert "other.csv" not in list_paths(tmp_path, "7.csv")


def test_names_that_a_pattern_finds_are_those_of_links_alone(tmp_path: Path) -> None:
    (tmp_path / "a1.csv").touch()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "blob").touch()
    (tmp_path / "a2.csv").symlink_to("store/blob")
    assert list_paths(tmp_path, "a?.csv") == {"a?.csv", "a2.csv", "store/blob"}
