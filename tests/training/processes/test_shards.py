"""Shards: one step of several processes, each with a part of the coordinates, is the step of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dprecipe.faults import RunFailed
from dprecipe.language.training import Adam, Sgd
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.noisy_sums import Gaussian
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.processes.processes import FollowerGate, ProcessGroup
from dprecipe.training.processes.shards import Shard
from dprecipe.training.run.gate import SumNoise, Ticket
from dprecipe.training.steps.optimise import optimizer_of
from tests.needs_time import needs_time

DRIVER = Path(__file__).with_name("shards_driver.py")
SHAPES = ((3, 4), (5,), (2, 2))
SIZE = 21


class Ranks:
    """The processes of a group in one process, which hand over what they have beforehand."""

    def __init__(self, rank: int, count: int, shelf: dict[str, list[Tensor]]) -> None:
        self.rank, self.count, self.shelf = rank, count, shelf

    shard = ProcessGroup.shard
    shard_of = ProcessGroup.shard_of

    def gathered(self, own: Tensor, size: int) -> Tensor:
        """The shards of all, of the state whose part this is."""
        parts = next(parts for parts in self.shelf.values() if torch.equal(parts[self.rank], own))
        return torch.cat(parts)[:size]


def parameters(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 30])
def test_shards_partition_the_coordinates(count: int) -> None:
    for size in (0, 1, 2, SIZE, 1000):
        places = [Ranks(rank, count, {}).shard(size) for rank in range(count)]  # type: ignore[arg-type]
        assert [number for place in places for number in range(place.start, place.stop)] == list(range(size))


@pytest.mark.parametrize("spec", [Sgd(kind="sgd", lr=0.1, momentum=0.9), Adam(kind="adam", lr=0.1)])
@pytest.mark.parametrize("count", [2, 3, 30])
def test_shards_move_weights_as_one_process_does_and_hand_over_its_state(spec: Any, count: int) -> None:
    whole = parameters()
    optimizer = optimizer_of(spec, nn.ParameterList(whole))
    shelf: dict[str, list[Tensor]] = {}
    shards = [Shard(Ranks(rank, count, shelf), parameters()) for rank in range(count)]  # type: ignore[arg-type]
    own = [optimizer_of(spec, nn.ParameterList([shard.weights])) for shard in shards]
    for step in range(3):
        gradient = torch.randn(SIZE, generator=torch.Generator().manual_seed(step))
        for parameter, part in zip(whole, gradient.split([p.numel() for p in whole]), strict=True):
            parameter.grad = part.view_as(parameter)
        optimizer.step()
        for shard, one in zip(shards, own, strict=True):
            shard.weights.grad = gradient[shard.place]
            one.step()
    states = [one.state_dict()["state"].get(0, {}) for one in own]
    for name in states[0]:
        shelf[name] = [state[name] for state in states]
    fresh = optimizer_of(spec, nn.ParameterList(parameters())).state_dict()
    gathered = shards[0].gather_state(own[0].state_dict(), fresh)
    expected = optimizer.state_dict()
    assert gathered["param_groups"] == expected["param_groups"]
    for number, state in expected["state"].items():
        for name, value in state.items():
            assert torch.equal(gathered["state"][number][name], value), (number, name)
    shelf["weights"] = [shard.weights.detach() for shard in shards]
    assert all(torch.equal(one, part) for one, part in zip(whole, shards[0].gather(shards[0].weights), strict=True))
    # And back, also for another number of processes.
    for other in (count, 2, 1):
        for rank in range(other):
            shard = Shard(Ranks(rank, other, {}), whole)  # type: ignore[arg-type]
            cut = shard.cut_state(gathered, optimizer_of(spec, nn.ParameterList([shard.weights])).state_dict())
            for name, value in cut["state"][0].items():
                flat = torch.cat([state[name].reshape(-1) for state in expected["state"].values()])
                assert torch.equal(value, flat[0] if name == "step" else flat[shard.place])


def test_a_state_of_other_parameters_is_refused() -> None:
    shard = Shard(Ranks(0, 2, {}), parameters())  # type: ignore[arg-type]
    fresh = optimizer_of(Sgd(kind="sgd", lr=0.1), nn.ParameterList([shard.weights])).state_dict()
    assert shard.cut_state({"state": {}}, fresh) == fresh
    with pytest.raises(ValueError, match="other parameters"):
        shard.cut_state({"state": {0: {"momentum_buffer": torch.zeros(12)}}}, fresh)
    buffers = {number: {"momentum_buffer": torch.zeros(9)} for number in range(3)}
    with pytest.raises(ValueError, match="27 numbers for 21 parameters"):
        shard.cut_state({"state": buffers}, fresh)
    mixed = [*parameters(), nn.Parameter(torch.zeros(2, dtype=torch.float64))]
    with pytest.raises(RunFailed, match="several types of numbers"):
        Shard(Ranks(0, 2, {}), mixed)  # type: ignore[arg-type]


def test_every_shard_has_noise_of_its_own_and_of_the_whole_sums_scale() -> None:
    """Of 40,000 draws the mean square is within 5% of its expectation, but for a probability below 1e-11; numbers that
    two streams share would be equal, which none of 40,000 pairs is but for a probability below 1e-6 (53 bits each)."""
    secrets, size = Secrets(), 40_000
    event = Gaussian(noise_multiplier=2.0)
    gates = [SumNoise(secrets), FollowerGate(secrets), FollowerGate(secrets)]
    noise = [
        gate.release(Ticket(event, 7), ClippedSum(torch.zeros(size, dtype=torch.float64), 3.0), rank).numpy()
        for rank, gate in enumerate(gates)
    ]
    for draws in noise:
        assert abs(float(np.mean(draws**2)) / 36 - 1) < 0.05
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(float(np.mean(noise[one] * noise[other]))) / 36 < 0.04
        assert not np.array_equal(noise[one][:100], noise[other][:100])
    again = SumNoise(secrets).release(Ticket(event, 7), ClippedSum(torch.zeros(size, dtype=torch.float64), 3.0))
    assert np.array_equal(again.numpy(), noise[0])  # the leader's shard has the stream of a run of one process


def test_a_follower_has_no_noise_but_that_of_its_shard() -> None:
    gate, ticket = FollowerGate(Secrets()), Ticket(Gaussian(noise_multiplier=1.0), 1)
    clipped = ClippedSum(torch.zeros(4, dtype=torch.float64), 1.0)
    with pytest.raises(RunFailed, match="not the leader requested noise"):
        gate.release(ticket, clipped)
    gate.release(ticket, clipped, 1)
    with pytest.raises(RunFailed, match="the ledger does not hold"):
        gate.release(ticket, clipped, 1)


RECIPE = """\
recipe: dprecipe/v1
name: shards
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
model: {kind: mlp, hidden: [8]}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: 1.0}
  sampling: {scheme: poisson, batch_size: 32}
budget: {epsilon: auto, delta: 1e-5}
training:
  steps: 40
  optimizer: {kind: adam, lr: 0.05}
  average: {kind: ema, decay: 0.9}
runtime: {device: cpu, compile: false, insecure: {seed: 5}, checkpoint_seconds: 0.001, sharding: optimizer}
release: {report: false}
"""


FILTER = "training:\n  filter: {kind: kalman, gain: 0.5}\n"
"""A filter takes sums ahead of the weights, and has vectors in shards."""


@pytest.mark.slow
def test_two_processes_with_shards_make_the_sums_and_updates_of_one(tmp_path: Path) -> None:
    """Noise is left out, so that what remains is the same in both: sums, optimiser, average, filter, the best iterate,
    and a resume."""
    recipe = RECIPE.replace("training:\n", f"{FILTER}  keep: {{by: loss, on: public}}\n")
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    hold_equal(tmp_path, 305)


def hold_equal(tmp_path: Path, numbers: int, rounding: float = 1e-5) -> None:
    """Two processes with so many trained numbers each do what one does with all of them."""
    starts = {"one": [sys.executable], "two": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]}
    for name, start in starts.items():
        command = [*start, str(DRIVER), str(tmp_path / "recipe.yaml"), str(tmp_path / name)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "DPRECIPE_DATA": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in starts)
    assert two["sizes"] == [numbers, numbers], "each process kept half of the optimiser's numbers"
    for rank in range(2):  # in each of 40 steps, each process would draw for its shard, once: for every number in all
        draws = read_own(tmp_path, f"two.own{rank}")["draws"]
        assert draws.count(numbers) == 40
        # And of two starts, each rehearsed a step on synthetic records, of the whole sum.
        assert len(draws) <= 42
        assert set(draws) <= {numbers, 2 * numbers}
    for name in ("released", "optimizer"):
        scale = float(one[name].abs().max())
        assert float((one[name] - two[name]).abs().max()) < rounding * scale, name


def read_own(folder: Path, name: str) -> dict[str, Any]:
    """What a process, or a release, says of itself."""
    content: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return content


TEXTS = """\
  train:
    source: csv
    path: texts.csv
    columns: {text: {kind: text}}
    label: {column: label, values: [ham, spam]}
  size: 400
  preprocess: [{tokenize: {column: text, buckets: 64, length: 8}}]
model: {kind: transformer, width: 8, layers: 2, heads: 2}
"""


@pytest.mark.slow
def test_two_processes_with_weights_in_shards_make_the_sums_and_updates_of_one(tmp_path: Path) -> None:
    """Momentum in the place of Adam, which makes steps of rounding where a gradient is zero: that of a key's bias."""
    rows = (f"{('ham', 'spam')[row % 2]},w{row % 7} w{row % 11} w{row % 2}" for row in range(400))
    (tmp_path / "texts.csv").write_text("\n".join(("label,text", *rows)), encoding="utf-8")
    head, rest = RECIPE.split("data:\n")[0], RECIPE[RECIPE.index("mechanism:") :]
    recipe = f"{head}data:\n{TEXTS}{rest}".replace("sharding: optimizer", "sharding: parameters, physical_batch: 7")
    recipe = recipe.replace("{kind: adam, lr: 0.05}", "{kind: sgd, lr: 0.5, momentum: 0.9}")
    recipe = recipe.replace("training:\n", FILTER)
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    hold_equal(tmp_path, 1181, 5e-5)  # ahead of the weights, rounding counts more


DECODER = """\
  train:
    source: csv
    path: texts.csv
    columns: {text: {kind: text}}
    label: next_token
  size: 400
  preprocess:
    - sequences:
        text: text
        tokenizer: {path: base/tokenizer.json, vocabulary: 90, padding: 0}
        end: 0
        max_length: 12
model: {kind: causal_lm, init: base, lora: {rank: 2}}
"""


@pytest.mark.slow
@needs_time
def test_two_processes_with_half_a_frozen_decoder_each_release_what_one_does(tmp_path: Path) -> None:
    """And certify the same. Steps are small: adapters leave zero, a saddle, in a direction that rounding decides."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    from tests.training.program.test_causal_lm import write_base

    write_base(tmp_path / "base", "llama")  # which drops nothing out
    rows = [f"see you at {'abcdefghij'[row % 10]}" for row in range(400)]
    (tmp_path / "texts.csv").write_text("\n".join(["text", *rows]) + "\n", encoding="utf-8")
    head, rest = RECIPE.split("data:\n")[0], RECIPE[RECIPE.index("mechanism:") :]
    shards = "sharding: parameters, physical_batch: 7, recompute: true"
    recipe = f"{head}data:\n{DECODER}{rest}".replace("sharding: optimizer", shards)
    recipe = recipe.replace("{kind: adam, lr: 0.05}", "{kind: sgd, lr: 0.001, momentum: 0.9}")
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    hold_equal(tmp_path, 464)
    whole, *halves = (read_own(tmp_path, name)["frozen"] for name in ("one.own0", "two.own0", "two.own1"))
    assert all(0.45 < half / whole < 0.55 for half in halves)
    one, two = (read_own(tmp_path / name / "release", "certificate.json")["predicate"] for name in ("one", "two"))
    for own in (one, two):  # what is of one run: its ledger, times, and the last digits of a probe
        del own["events"]["ledger"], own["checks"], own["provenance"]
    assert one == two
