"""Weights in shards: passes of several processes, each with a part of the weights and of the sum, are those of one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dprecipe.faults import RunFailed
from dprecipe.language.training import Sgd
from dprecipe.models.schema import Transformer
from dprecipe.models.zoo.transformer import TextTransformer
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.sharded_sum import plan_passes, sharded_clipped_sum
from dprecipe.training.processes import shards
from dprecipe.training.processes.processes import ProcessGroup
from dprecipe.training.processes.sharded_weights import ShardedWeights, blocks_of, check_in_blocks
from dprecipe.training.processes.shards import FrozenGather, ShardSum, collect, fill, owners
from dprecipe.training.program.losses import cross_entropy
from dprecipe.training.steps.optimise import optimizer_of

T = TypeVar("T")
CPU = torch.device("cpu")
DRIVER = Path(__file__).with_name("shards_driver.py")
WAIT = 20.0
"""Seconds until a process that nobody answers gives up: none of these tests takes one."""


class Meeting:
    """What the processes of a group, as threads, send each other: the calls that they make have to be the same."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=WAIT)
        self.slots: list[Any] = [None] * count
        self.mail: dict[int, list[Tensor]] = {}
        self.local = threading.local()

    def exchange(self, value: Any) -> list[Any]:
        self.slots[self.local.rank] = value
        self.barrier.wait()
        values = list(self.slots)
        self.barrier.wait()
        return values

    def broadcast(self, values: Tensor, src: int) -> None:
        sent = self.exchange(("broadcast", src, values.clone()))
        assert {one[:2] for one in sent} == {("broadcast", src)}
        values.copy_(sent[src][2])

    def reduce(self, values: Tensor, dst: int) -> None:
        sent = self.exchange(("reduce", dst, values.clone()))
        assert {one[:2] for one in sent} == {("reduce", dst)}
        if self.local.rank == dst:
            values.copy_(torch.stack([one[2] for one in sent]).sum(0))

    def send(self, values: Tensor, dst: int) -> None:
        self.mail.setdefault(self.local.rank, []).append(values.clone())

    def recv(self, values: Tensor, src: int) -> None:
        while not self.mail.get(src):
            pass
        values.copy_(self.mail[src].pop(0))


class Ranks:
    """A process of a group whose processes are threads."""

    def __init__(self, rank: int, count: int, meeting: Meeting | None = None) -> None:
        self.rank, self.count, self.meeting = rank, count, meeting

    def least(self, value: int) -> int:
        assert self.meeting is not None
        return int(min(self.meeting.exchange(value)))

    shard = ProcessGroup.shard
    shard_of = ProcessGroup.shard_of


def in_threads(monkeypatch: pytest.MonkeyPatch, count: int, work: Callable[[Any], T]) -> list[T]:
    """What each of `count` processes has."""
    meeting, results, errors = Meeting(count), [None] * count, list[BaseException]()
    for name in ("broadcast", "reduce", "send", "recv"):
        monkeypatch.setattr(distributed, name, getattr(meeting, name))

    def one(rank: int) -> None:
        meeting.local.rank = rank
        try:
            results[rank] = work(Ranks(rank, count, meeting))  # type: ignore[call-overload]
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, RunFailed)), errors[0])
    return results  # type: ignore[return-value]


def make(*, frozen: bool = False, layers: int = 3) -> TextTransformer:
    torch.manual_seed(0)
    model = TextTransformer(Transformer(kind="transformer", width=8, layers=layers, heads=2), 6, 20, 3)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not (frozen and ("mix" in name or "tokens" in name)))
    return model


def records(count: int, seed: int = 1) -> BatchPart:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randint(20, (count, 6), generator=generator).float()
    return BatchPart(features, torch.randint(3, (count,), generator=generator))


def part_of(batch: BatchPart, rank: int, sizes: list[int]) -> BatchPart:
    start = sum(sizes[:rank])
    return BatchPart(batch.features[start : start + sizes[rank]], batch.labels[start : start + sizes[rank]])


@pytest.mark.parametrize("sizes", [[5, 6], [0, 0], [3, 0, 8]])
def test_sums_in_shards_are_those_of_one_process(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    """Parts have 4 records, so that processes have different numbers of them. Sums are taken in double precision after
    each part: they differ by the rounding of single records alone, here far below a part in 10^5 of the largest."""
    batch, clipping = records(sum(sizes)), Clipping.flat(0.5)
    expected = clipped_sum(make(), cross_entropy, batch, clipping, 4)
    models = [make() for _ in sizes]

    def work(processes: Any) -> tuple[slice, Tensor, float]:
        model = models[processes.rank]
        shards = ShardedWeights(processes, model, CPU)
        own = part_of(batch, processes.rank, sizes)
        passes = plan_passes(model, cross_entropy, records(1), 4, 4, shards)
        result = sharded_clipped_sum(model, cross_entropy, own, clipping, passes, shards)
        assert all(parameter.untyped_storage().size() == 0 for parameter in model.parameters())
        assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())
        return shards.place, result.value, float(result.bound)

    results = in_threads(monkeypatch, len(sizes), work)
    whole = torch.cat([value for _, value, _ in results])
    assert len(whole) == len(expected.value)
    assert float((whole - expected.value).abs().max()) <= 1e-5 * float(expected.value.abs().max())
    assert all(bound == expected.bound for *_, bound in results)


@pytest.mark.parametrize("count", [2, 3])
def test_a_moved_shard_is_gathered_saved_and_taken_again(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    whole, moved = move(make())
    models = [make() for _ in range(2 * count)]
    results = in_threads(monkeypatch, count, lambda ranks: save(ranks, *models[2 * ranks.rank :][:2], whole, moved))
    hold_saved(results, whole, moved)


def move(model: nn.Module) -> tuple[nn.Module, Tensor]:
    """The model with other trained weights, and these."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    moved = torch.nn.utils.parameters_to_vector(trained).detach()
    moved += torch.arange(len(moved)) * 1e-4
    torch.nn.utils.vector_to_parameters(moved, trained)
    return model, moved.clone()


def save(processes: Any, model: nn.Module, other: nn.Module, whole: nn.Module, moved: Tensor) -> dict[str, Any]:
    """Each process moves its own numbers; a pass, a checkpoint and a process that continues have all of them."""
    batch, fresh = records(7), optimizer_of(Sgd(kind="sgd", lr=0.1, momentum=0.9), model).state_dict()
    shards = ShardedWeights(processes, model, CPU)
    with torch.no_grad():
        shards.weights.copy_(moved[shards.place])
    with shards.gathering(), torch.no_grad():
        assert torch.equal(model(batch.features), whole(batch.features))
    own = {"state": {0: {"momentum_buffer": shards.weights.detach() * 2}}}
    result = shards.collect(own, fresh, {"average": shards.weights.detach() * 3})
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    again = ShardedWeights(processes, other, CPU)
    again.load(other, whole.state_dict())
    assert torch.equal(again.weights, shards.weights)
    with again.gathering(), torch.no_grad():
        assert torch.equal(other(batch.features), whole(batch.features))
    return result


def hold_saved(results: list[dict[str, Any]], whole: nn.Module, moved: Tensor) -> None:
    """The leader has all of it."""
    leader, *others = results
    state = whole.state_dict()
    assert others == [{}] * len(others), "others collect nothing"
    assert leader["model"].keys() == state.keys()
    assert all(torch.equal(leader["model"][name], value) for name, value in state.items())
    buffers = torch.cat([part["momentum_buffer"].flatten() for part in leader["optimizer"]["state"].values()])
    assert torch.equal(buffers, moved * 2)
    assert torch.equal(leader["vectors"]["average"], moved * 3)


FROZEN_SIZES = [3, 0, 8]


@pytest.mark.slow
def test_what_is_not_trained_is_gathered_by_torch(tmp_path: Path) -> None:
    """Of real processes, which torch's collectives need: sums, memory, and what is saved."""
    multiprocessing.spawn(take_part, (tmp_path,), len(FROZEN_SIZES))
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(len(FROZEN_SIZES))]
    hold_saved(results, *move(make(frozen=True)))


def take_part(rank: int, folder: Path) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=len(FROZEN_SIZES))
    processes, model, batch, clipping = ProcessGroup(CPU), make(frozen=True), records(11), Clipping.flat(0.5)
    expected = clipped_sum(make(frozen=True), cross_entropy, batch, clipping, 4)
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    numbers = sum(parameter.numel() for parameter in frozen)
    shards = ShardedWeights(processes, model, CPU)
    assert all(parameter.untyped_storage().nbytes() <= 4 for parameter in frozen), "a copy of the model has no memory"
    passes = plan_passes(model, cross_entropy, records(1), 4, 4, shards)
    for _ in range(2):
        part = part_of(batch, rank, FROZEN_SIZES)
        result = sharded_clipped_sum(model, cross_entropy, part, clipping, passes, shards)
        error = float((result.value - expected.value[shards.place]).abs().max())
        assert error <= 1e-5 * float(expected.value.abs().max())
        own = [parameter.to_local() for parameter in model.parameters() if isinstance(parameter, DTensor)]
        assert sum(part.numel() for part in own) <= numbers / 3 * 1.1, "rows are divided, whose number may not be even"
        assert all(p.requires_grad != isinstance(p, DTensor) for p in model.parameters())
        assert all(p.untyped_storage().size() == 0 for p in model.parameters() if p.requires_grad)
    saved = save(processes, make(frozen=True), make(frozen=True), *move(make(frozen=True)))
    torch.save(saved, folder / f"{rank}.pt")
    distributed.destroy_process_group()


def test_a_process_that_is_lost_while_torch_gathers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object) -> None:
        raise RuntimeError("connection closed by peer")

    monkeypatch.setattr(shards, "ALL_GATHER", lose)
    gather = FrozenGather()
    with pytest.raises(RunFailed, match="can't be reached: connection closed by peer"):
        gather(gather.allocate([4], dtype=torch.float32, device=CPU), torch.zeros(2), None)  # type: ignore[arg-type]


def test_numbers_go_to_their_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places that lie across shards, and more numbers than are sent at once."""
    size = 1000
    monkeypatch.setattr(shards, "BUCKET", 1500)

    def work(processes: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        total = ShardSum(processes, size, CPU)
        for number, place in enumerate((slice(0, size), slice(3, size - 1), slice(size - 2, size))):
            total.add(place, torch.full((place.stop - place.start,), 10.0**number * (processes.rank + 1)).double())
        total.flush()
        whole = torch.zeros(7)
        own = torch.arange(size, dtype=torch.float32)[processes.shard(size)]
        fill(processes, whole, slice(size // 3 - 3, size // 3 + 4), own, size)
        return total.own, whole, collect(processes, own, size)

    results = in_threads(monkeypatch, 3, work)
    total = torch.cat([own for own, *_ in results])
    expected = torch.full((size,), 66.0).double()
    expected[:3], expected[-2], expected[-1] = 6.0, 666.0, 606.0
    assert torch.equal(total, expected)
    assert all(torch.equal(whole, torch.arange(size // 3 - 3.0, size // 3 + 4)) for _, whole, *_ in results)
    assert results[1][2] is None
    assert results[0][2] is not None
    assert torch.equal(results[0][2], torch.arange(size, dtype=torch.float32))


@pytest.mark.parametrize("count", [1, 2, 3, 30])
def test_owners_partition_every_place(count: int) -> None:
    for place in (slice(0, 21), slice(4, 9), slice(20, 21), slice(7, 7)):
        parts = [part for _, part in owners(Ranks(0, count), place, 21)]  # type: ignore[arg-type]
        numbers = [number for part in parts for number in range(part.start, part.stop)]
        assert numbers == list(range(place.start, place.stop))


class Normalised(nn.Module):
    """A layer that the engine has no terms for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.exp()


def test_models_that_need_their_weights_whole_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (nn.Linear(3, 3), make(layers=1)):
        with pytest.raises(RunFailed, match="needs a model of several blocks"):
            check_in_blocks(model, CPU)
    with pytest.raises(RunFailed, match="which mps is not"):
        check_in_blocks(make(), torch.device("mps"))
    with pytest.raises(RunFailed, match="this one came from Python"):
        check_in_blocks(make(), CPU, from_python=True)
    mixed = make()
    mixed.head.to(torch.float64)
    with pytest.raises(RunFailed, match="several types of numbers"):
        check_in_blocks(mixed, CPU)
    strange = [make(), make()]
    for block in [block for model in strange for block in blocks_of(model)]:
        block.norm_1 = Normalised()

    def work(processes: Any) -> None:
        model = strange[processes.rank]
        plan_passes(model, cross_entropy, records(1), 4, 4, ShardedWeights(processes, model, CPU))

    with pytest.raises(RunFailed, match=r"clipped sums from one backward pass: .*its weights are in shards"):
        in_threads(monkeypatch, 2, work)
