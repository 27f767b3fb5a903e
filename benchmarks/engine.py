"""What a clipped sum costs against plain SGD's gradient of the same model and batch, in time and memory.

Rounds alternate A B C A B C …, so that a machine whose speed drifts gives honest ratios; memory is the peak of a fresh
process. `sgd` is forward, backward and an SGD step; `engine` the clipped sum as it is trained with, and `vmap` the one
from gradients of single records, which `engine` falls back to, `compiled` the engine with a compiled pass; each without
noise and with the same step. Records are made up. Run: python benchmarks/engine.py [threads]
"""

from __future__ import annotations

import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dprecipe.models.zoo.cnn import PRESETS
from dprecipe.training.engine.bookkeeping import describe
from dprecipe.training.engine.clipped_sum import Batch, clipped_sum, clipped_sum_of_rows
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.compiled import Passes
from dprecipe.training.losses import cross_entropy

TOKENS = 1000


class Transformer(nn.Module):
    """Classifies sequences of tokens: d 128, 2 layers, 4 heads, learned positions."""

    def __init__(self, classes: int, length: int, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(self.norm(hidden).mean(1))
        return logits


class Case(NamedTuple):
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    rounds: int
    repeats: int = 1


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))


CASES = {
    "logistic 123": Case(lambda: nn.Linear(123, 10), (123,), 1024, 21, 10),
    "MLP 784-1000-10": Case(mlp, (784,), 256, 7),
    "MNIST CNN": Case(lambda: PRESETS["tempered-mnist"]((1, 28, 28), 10), (1, 28, 28), 256, 11),
    "CIFAR CNN": Case(lambda: PRESETS["tempered-cifar"]((3, 32, 32), 10), (3, 32, 32), 64, 7),
    "transformer": Case(lambda: Transformer(10, 64), (64,), 32, 7),
}
CLIP = 0.1
RATE = 1e-3


def steps(name: str) -> dict[str, Callable[[], None]]:
    case = CASES[name]
    torch.manual_seed(0)
    net = case.build()
    shape = (case.batch, *case.shape)
    features = torch.randint(TOKENS, shape) if name == "transformer" else torch.randn(shape)
    batch = Batch(features, torch.randint(10, (case.batch,)))
    optimizer = torch.optim.SGD(net.parameters(), RATE)

    def sgd() -> None:
        optimizer.zero_grad()
        cross_entropy(net(batch.features), batch.labels).mean().backward()
        optimizer.step()

    def private(total: Callable[..., object]) -> Callable[[], None]:
        def step() -> None:
            summed = total(net, cross_entropy, batch, Clipping.flat(CLIP), case.batch).value  # type: ignore[attr-defined]
            start = 0
            with torch.no_grad():
                for parameter in net.parameters():
                    size = math.prod(parameter.shape)
                    parameter.grad = (summed[start : start + size] / case.batch).float().view_as(parameter)
                    start += size
            optimizer.step()

        return step

    compiled = partial(clipped_sum, passes=Passes(net, cross_entropy, True, case.batch, 1))
    return {
        "sgd": sgd,
        "engine": private(clipped_sum),
        "vmap": private(clipped_sum_of_rows),
        "compiled": private(compiled),
    }


PIECES = ("sgd", "engine", "vmap", "compiled")


def seconds(step: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


def compare(name: str) -> None:
    case, timed = CASES[name], steps(name)
    times: dict[str, list[float]] = {step: [] for step in timed}
    for round_ in range(2 + case.rounds):
        for piece, step in timed.items():
            taken = seconds(step, case.repeats)
            if round_ > 1:  # the first two warm up
                times[piece].append(taken)
    ratios = {
        piece: [mine / plain for mine, plain in zip(times[piece], times["sgd"], strict=True)] for piece in PIECES[1:]
    }
    row = "".join(f"{1000 * statistics.median(taken):10.2f}" for taken in times.values())
    row += "".join(f"  {statistics.median(r):6.2f} ({min(r):.2f} to {max(r):.2f})" for r in ratios.values())
    print(f"{name:18}{row}", flush=True)


def peak_of(name: str, piece: str) -> float:
    """Peak memory of a fresh process that takes three such steps, in MB."""
    command = [sys.executable, __file__, "peak", name, piece]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    if sys.argv[1:2] == ["peak"]:
        step = steps(sys.argv[2])[sys.argv[3]]
        step(), step(), step()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    # Before anything is held here: a child starts with its parent's peak.
    print(f"{'peak memory, MB':18}" + "".join(f"{piece:>10}" for piece in PIECES))
    for name in CASES:
        print(f"{name:18}" + "".join(f"{peak_of(name, piece):10.0f}" for piece in PIECES), flush=True)
    print(f"\n{torch.get_num_threads()} thread(s), median ms: {', '.join(PIECES)}; ratios to sgd of the others")
    for name in CASES:
        compare(name)
    for name, case in CASES.items():
        print(f"\n{name}")
        features = torch.zeros(case.batch, *case.shape, dtype=torch.int64 if name == "transformer" else torch.float32)
        labels = torch.zeros(case.batch, dtype=torch.int64)
        for parameter, way in describe(case.build(), cross_entropy, features, labels).items():
            print(f"  {parameter:40} {way}")


if __name__ == "__main__":
    main()
