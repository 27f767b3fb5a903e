"""Teachers in shards: they vote as in one run, and what a run is given of them is whole and its own."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dprecipe
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.faults import DataFault, Interrupted, RunFailed, UsageFault
from dprecipe.mechanisms.pate.train import merge, shard_folder, teachers
from dprecipe.mechanisms.pate.train import shard as shard_module
from dprecipe.mechanisms.pate.train.merge import find_key
from dprecipe.mechanisms.pate.train.shard import prepare_folder, train_shard
from dprecipe.mechanisms.pate.train.shards import TeacherShard
from dprecipe.privacy.ledger import read

Planned = Callable[..., Plan]
SMALL = ("mechanism.teachers.count=66", "mechanism.teachers.training.steps=3", "mechanism.queries.max=20")
"""More teachers than learn together, so that shards cut groups."""
FITTED = ("mechanism.teachers.training=null", "mechanism.teachers.count=16", "mechanism.queries.max=20")
FOREST = (*FITTED, "mechanism.teachers.model={kind: random_forest, trees: 3}")
INSECURE = "runtime.insecure={seed: 3}"


def train_all(plan: Plan, folder: Path, count: int, *leave: int) -> Path:
    for number in range(1, count + 1):
        if number not in leave:
            train_shard(plan, TeacherShard(number, count), folder, folder)
    return folder


def votes_of(out: Path, count: int) -> Any:
    return np.stack([np.load(out / "private" / "teachers" / f"{teacher}.npy") for teacher in range(count)])


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [SMALL, FOREST, FITTED], ids=["together", "forest", "fitted"])
def test_eight_shards_vote_as_one_run(digits: Planned, tmp_path: Path, overrides: tuple[str, ...]) -> None:
    """Vote for vote, and with the same noise every answer, too."""
    plan = digits(*overrides, INSECURE, "release.labels=true")
    count = plan.mechanism_plan.ensemble.count
    alone = run(plan, tmp_path / "alone")
    folder = train_all(plan, tmp_path / "shards", 8)
    merged = run(plan, tmp_path / "merged", teachers=[folder])
    assert np.array_equal(votes_of(alone.folder, count), votes_of(merged.folder, count))
    assert len(np.unique(votes_of(alone.folder, count))) > 3
    assert (alone.release / "labels.csv").read_bytes() == (merged.release / "labels.csv").read_bytes()
    charges = [read(done.folder / "private" / "ledger.jsonl").charges for done in (alone, merged)]
    assert charges[0] == charges[1]


def test_shards_that_cut_a_group_elsewhere_vote_the_same(digits: Planned, tmp_path: Path) -> None:
    """However many shards there are: a teacher learns in the row that its number says."""
    plan, stacks = digits(*SMALL, INSECURE), []
    for count in (1, 2):
        folder = train_all(plan, tmp_path / str(count), count)
        stacks.append(np.concatenate([_votes_in(folder, TeacherShard(i, count)) for i in range(1, count + 1)]))
    assert np.array_equal(*stacks)


def _votes_in(folder: Path, shard: TeacherShard) -> Any:
    path = folder / shard.file
    terms = merge.read_terms(path, shard)
    return merge.read_votes(path, shard, terms, shard_folder.read_key(folder))


FEW = (
    "mechanism.teachers.training=null",
    "mechanism.teachers.count=6",
    "mechanism.queries.max=10",
    # Six votes pass it: a run without a single answer is one in 10^5.
    "mechanism.aggregator.selection={threshold: 1, noise: {family: gaussian, multiplier: 2}}",
)


@pytest.fixture
def few(digits: Planned) -> Planned:
    """A plan of six teachers."""
    return lambda *overrides: digits(*FEW, *overrides)


@pytest.mark.slow
def test_a_merged_run_verifies_and_goes_on_without_its_shards(few: Planned, tmp_path: Path) -> None:
    plan, out = few(), tmp_path / "run"
    folder = train_all(plan, tmp_path / "shards", 3)
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    (folder / "shard-2-of-3.votes").unlink()
    for number in (1, 3):
        (other / f"shard-{number}-of-3.votes").unlink()
    done = run(plan, out, teachers=[folder, other])
    dprecipe.verify(done.release)
    assert (out / "private" / "partition.key").read_bytes() == (folder / "partition.key").read_bytes()
    assert not {path.name for path in done.release.rglob("*")} & {"partition.key", "teachers.json"}


@pytest.mark.slow
def test_a_run_that_broke_off_goes_on_without_the_folders(
    few: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = few(), tmp_path / "run"
    folder = train_all(plan, tmp_path / "shards", 2)
    with monkeypatch.context() as patch:
        patch.setattr("dprecipe.mechanisms.pate.train.run._put", lambda *rest: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted):
            run(plan, out, teachers=[folder])
    others = train_all(plan, tmp_path / "others", 2)
    with pytest.raises(UsageFault, match="dealt its records with another key"):
        run(plan, out, teachers=[others], resume=True)
    shutil.rmtree(folder)
    monkeypatch.setattr(teachers, "collect_votes", lambda *rest: pytest.fail("a teacher was trained again"))
    dprecipe.verify(run(plan, out, resume=True).release)


def test_what_is_written_is_its_owners_alone(few: Planned, tmp_path: Path) -> None:
    folder = train_all(few(), tmp_path / "shards", 2)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    names = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in folder.iterdir()}
    assert names == dict.fromkeys(
        ["README.txt", "partition.key", "shard-1-of-2.votes", "shard-2-of-2.votes", "teachers.json"], 0o600
    )
    assert "Never publish" in (folder / "README.txt").read_text("utf-8")


def test_a_shard_that_is_there_is_not_trained_again_and_a_stopped_one_goes_on(
    few: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, folder, seen = few(), tmp_path / "shards", []
    real = teachers.collect_votes

    def watched(task: Any, group: Any, *rest: Any) -> Any:
        seen.extend(group)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGTERM)  # as Slurm before it takes a machine away
        return real(task, group, *rest)

    monkeypatch.setattr(teachers, "collect_votes", watched)
    with pytest.raises(Interrupted, match="stopped within shard 2/2") as caught:
        train_shard(plan, TeacherShard(2, 2), folder, tmp_path)
    assert caught.value.remedy == "the same command continues it"
    assert seen == [3, 4]
    assert not train_shard(plan, TeacherShard(2, 2), folder, tmp_path).was_there
    assert seen == [3, 4, 5]
    assert train_shard(plan, TeacherShard(2, 2), folder, tmp_path).was_there
    assert seen == [3, 4, 5]
    assert not list(folder.glob("partial*"))


def test_two_processes_on_one_shard_are_refused(few: Planned, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    prepare_folder(few(), folder)
    (folder / "partial-1-of-2").mkdir()
    busy = os.open(folder / "partial-1-of-2", os.O_RDONLY)
    fcntl.flock(busy, fcntl.LOCK_EX)
    try:
        with pytest.raises(UsageFault, match="another process trains shard 1/2"):
            train_shard(few(), TeacherShard(1, 2), folder, tmp_path)
    finally:
        os.close(busy)
    train_shard(few(), TeacherShard(1, 2), folder, tmp_path)


@pytest.mark.slow
def test_a_folder_is_of_one_plan_and_of_one_kind_of_machine(
    few: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train_all(few(), tmp_path / "shards", 2, 2)
    monkeypatch.setattr(teachers, "collect_votes", lambda *rest: pytest.fail("a teacher was trained"))
    for plan, words in (
        (few("release.labels=true"), "another plan"),
        (few("runtime.seed=1"), r"another runtime\.seed"),
    ):
        with pytest.raises(UsageFault, match=f"teachers.json: votes of .*{words}|{words}"):
            train_shard(plan, TeacherShard(2, 2), folder, tmp_path)
    monkeypatch.setattr(merge, "describe_machine", lambda device: "another processor")
    with pytest.raises(UsageFault, match="kind of machine, which rounds differently: Linux") as caught:
        train_shard(few(), TeacherShard(2, 2), folder, tmp_path)
    assert "--constraint" in caught.value.remedy


def test_a_folder_of_something_else_is_left_alone(few: Planned, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear", "utf-8")
    with pytest.raises(UsageFault, match="a folder of something else"):
        train_shard(few(), TeacherShard(1, 2), tmp_path / "mine", tmp_path)
    with pytest.raises(UsageFault, match="not a folder"):
        train_shard(few(), TeacherShard(1, 2), tmp_path / "mine" / "letter.txt", tmp_path)


def test_paid_steps_come_before_the_teachers(digits: Planned, tmp_path: Path) -> None:
    paid = digits(
        *FEW[:3],
        "data.preprocess=[{flatten: {}}, {dp_standardize: {bounds: [0, 16], share: 0.1}}]",
        "mechanism.aggregator={kind: gnmax, noise: {family: gaussian, multiplier: auto}}",
        "budget.epsilon=9",
    )
    with pytest.raises(UsageFault, match="behind paid steps") as caught:
        train_shard(paid, TeacherShard(1, 2), tmp_path / "shards", tmp_path)
    assert "--ray" in caught.value.remedy


Damage = Callable[[Path, Path], object]


def _rename(folder: Path, name: str, to: str) -> None:
    (folder / name).rename(folder / to)


@pytest.mark.parametrize(
    ("damage", "fault", "words"),
    [
        (lambda a, b: (a / "shard-2-of-3.votes").unlink(), UsageFault, r"1 of 3 shards are missing: 2"),
        (lambda a, b: [f.unlink() for f in a.glob("*.votes")], UsageFault, "no shard is complete"),
        (lambda a, b: shutil.copy(a / "shard-1-of-3.votes", b), UsageFault, "shard 1/3 is there twice: .* and .*"),
        (lambda a, b: shutil.copy(a / "shard-1-of-3.votes", b / "shard-1-of-2.votes"), UsageFault, "of 2 and of 3"),
        (lambda a, b: _rename(a, "shard-3-of-3.votes", "shard-4-of-4.votes"), UsageFault, "shards of 3 and of 4"),
        (lambda a, b: shutil.copy(a / "shard-1-of-3.votes", a / "shard-2-of-3.votes"), DataFault, "of another file"),
        (lambda a, b: (a / "shard-2-of-3.votes").write_bytes(b"votes"), DataFault, r"shard-2-of-3\.votes: no votes"),
        (lambda a, b: _flip(a / "shard-3-of-3.votes"), DataFault, r"shard-3-of-3\.votes: .*its digest differs"),
        (lambda a, b: _link(a / "shard-3-of-3.votes"), DataFault, r"shard-3-of-3\.votes: not a file"),
        (lambda a, b: (b / "partition.key").write_bytes(bytes(32)), UsageFault, "dealt with another key"),
        (lambda a, b: (b / "partition.key").write_bytes(bytes(1 << 20)), UsageFault, "no folder of"),
        (lambda a, b: (b / "partition.key").unlink(), UsageFault, "no folder of `dprecipe teachers`"),
    ],
)  # fmt: skip
def test_shards_that_are_not_whole_are_refused_before_anything_is_spent(
    few: Planned, tmp_path: Path, sealed: Path, damage: Damage, fault: type[Exception], words: str
) -> None:
    folder, empty = tmp_path / "shards", tmp_path / "empty"
    shutil.copytree(sealed, folder)
    empty.mkdir()
    shutil.copy(folder / "partition.key", empty)
    damage(folder, empty)
    with pytest.raises(fault, match=words) as caught:
        run(few(), tmp_path / "run", teachers=[folder, empty])
    assert caught.value.remedy  # type: ignore[attr-defined]
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of `few`, trained once."""
    from dprecipe.planning.make import plan
    from dprecipe.recipe.read import read as read_recipe
    from tests.mechanisms.pate.conftest import DIGITS

    place = tmp_path_factory.mktemp("sealed")
    (place / "digits.yaml").write_text(DIGITS, encoding="utf-8")
    return train_all(plan(read_recipe(place / "digits.yaml", FEW)), place / "shards", 3)


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-40] ^= 1
    file.write_bytes(content)


def _link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to(file.with_name("elsewhere"))


@pytest.mark.slow
def test_votes_of_another_plan_data_or_version_are_refused(
    few: Planned, tmp_path: Path, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    for plan, words in (
        (few("data.train.records=[0, 990]", "data.size=990"), "votes of another plan"),
        (few("runtime.seed=1"), "another runtime.seed"),
        (few(INSECURE), "runtime.insecure"),
    ):
        with pytest.raises(UsageFault, match=rf"shard-1-of-3\.votes: .*{words}"):
            run(plan, out, teachers=[sealed])
    generator = np.random.default_rng(0)
    records = dprecipe.Records(generator.random((1000, 1, 8, 8), dtype=np.float32), generator.integers(10, size=1000))
    public = dprecipe.Records(generator.random((50, 1, 8, 8), dtype=np.float32), np.zeros(50, np.int64))
    with pytest.raises(UsageFault, match="votes of teachers of other training records"):
        run(few(), out, train=records, teachers=[sealed])
    with pytest.raises(UsageFault, match="votes on other public records"):
        run(few(), out, public=public, teachers=[sealed])
    with pytest.raises(UsageFault, match="named twice"):
        find_key([sealed, sealed / ".." / sealed.name])
    monkeypatch.setattr(merge, "__version__", "9.9")
    with pytest.raises(UsageFault, match=r"another version of dprecipe: 0\.\d+.*, not 9\.9"):
        run(few(), out, teachers=[sealed])
    assert not out.exists()


def test_one_shard_of_another_kind_of_machine_is_refused(
    few: Planned, tmp_path: Path, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = tmp_path / "shards", tmp_path / "other"
    shutil.copytree(sealed, folder)
    (folder / "shard-3-of-3.votes").unlink()
    other.mkdir()
    shutil.copy(sealed / "partition.key", other)
    with monkeypatch.context() as patch:
        patch.setattr(merge, "describe_machine", lambda device: "another processor")
        train_shard(few(), TeacherShard(3, 3), other, tmp_path)
    with pytest.raises(UsageFault, match=r"shard-3-of-3\.votes: .*kind of machine.*: another processor, not Linux"):
        run(few(), tmp_path / "run", teachers=[folder, other])


def test_votes_from_a_file_have_no_teachers_to_train(votes_plan: Planned, tmp_path: Path) -> None:
    for given in ({"teachers": [tmp_path]}, {"cluster": "local"}):
        with pytest.raises(UsageFault, match="no teachers to train"):
            run(votes_plan("gnmax", 10), tmp_path / "run", **given)  # type: ignore[arg-type]


def test_the_modules_of_a_shard_put_no_query() -> None:
    """Training a shard can't spend: no ledger, no ballot and no noise is within its reach."""
    for module in (shard_module, shard_folder):
        text = Path(str(module.__file__)).read_text("utf-8")
        assert not any(word in text for word in ("ledger", "Ballot", "Secrets", "open_attempt"))


def test_a_folder_that_can_not_be_listed_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(RunFailed, match="can't be read: Permission denied"):
        shard_folder.ShardFolder(tmp_path)
    with pytest.raises(DataFault, match="can't be read: Permission denied"):
        shard_folder.list_files(tmp_path)
