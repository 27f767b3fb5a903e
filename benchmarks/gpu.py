"""What a private step costs on a GPU against plain SGD's, where its time goes, and what it takes of memory.

Cases: an MNIST CNN, WRN-16-4 (batches of 4096 in parts of 1024), a small vision transformer, a transformer of 100
million parameters over 512 tokens. Ways: `sgd` (forward, backward, an SGD step), `engine` (clipped sum, noise and
step, eager), `compiled`, `bf16`, and `vmap` (from gradients of single records, where these have room). Records are made
up and on the device; the sizes of batches are drawn from a fixed seed, so that they vary as in runs. After 3 steps that
warm up, 10 are timed, by events of CUDA and by a clock that waits: the difference is what it takes to start the
kernels. One step more is profiled: kernels that were started, bytes over the bus, and the parts of a step by their
ranges. In single precision nothing is rounded to TF32, for plain SGD neither.

Run: python benchmarks/gpu.py [--short] [--only NAME] [--against FILE] [--json FILE]
`--short`: the first two cases and fewer steps. `--against`: fail where a ratio to `sgd` is 20 % above the one in FILE.
Ends with 2 where there is no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn

from dprecipe.models.schema import WideResNet
from dprecipe.models.zoo.cnn import PRESETS
from dprecipe.models.zoo.wide_resnet import build_wide_resnet
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from dprecipe.training import noise
from dprecipe.training.chacha import Keystream
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum, clipped_sum_of_rows
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.compiled import Passes
from dprecipe.training.engine.full_precision import in_full_precision
from dprecipe.training.engine.reduced import Reduced
from dprecipe.training.engine.sizes import free_bytes
from dprecipe.training.losses import cross_entropy
from dprecipe.training.noise import add_noise

CLIP, RATE, TOLERATED = 0.1, 1e-3, 1.2
TOKENS = 32_000


class Encoder(nn.Module):
    """Classifies sequences, of tokens or of patches."""

    def __init__(self, embed: nn.Module, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = embed
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        hidden = hidden + self.positions(torch.arange(hidden.shape[1], device=hidden.device))
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(self.norm(hidden).mean(1))
        return logits


class Patches(nn.Module):
    """Images (N, 3, 32, 32) as 64 patches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, 4, stride=4)

    def forward(self, x: Tensor) -> Tensor:
        patches: Tensor = self.project(x)
        return patches.flatten(2).transpose(1, 2)


class Case(NamedTuple):
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    part: int
    words: bool = False


CASES = {
    "MNIST CNN": Case(lambda: PRESETS["tempered-mnist"]((1, 28, 28), 10), (1, 28, 28), 1024, 512),
    "WRN-16-4": Case(
        lambda: build_wide_resnet(WideResNet(kind="wide_resnet", depth=16, width=4), 3, 10), (3, 32, 32), 4096, 1024
    ),
    "ViT-small": Case(lambda: Encoder(Patches(384), 64, 384, 12), (3, 32, 32), 1024, 512),
    "transformer 100M": Case(lambda: Encoder(nn.Embedding(TOKENS, 768), 512, 768, 11), (512,), 256, 64, words=True),
}
SHORT = ("MNIST CNN", "WRN-16-4")
WAYS = ("sgd", "engine", "compiled", "bf16", "vmap")
Step = Callable[[int], int]
"""The number of a step to how many records it took."""


@contextmanager
def named(part: str) -> Iterator[None]:
    """A part of a step, for the profile and for NVTX."""
    with torch.profiler.record_function(f"part: {part}"):
        if not torch.cuda.is_available():
            yield
            return
        torch.cuda.nvtx.range_push(part)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()


def sizes_of(case: Case, steps: int) -> list[int]:
    """Of Poisson batches, about."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(steps, generator=generator) * math.sqrt(case.batch) + case.batch
    return [max(1, min(round(float(size)), case.batch + 4 * round(math.sqrt(case.batch)))) for size in drawn]


def step_of(case: Case, way: str, device: torch.device, steps: int) -> Step:
    torch.manual_seed(0)
    net = case.build().to(device).train()
    most = case.batch + 4 * round(math.sqrt(case.batch))
    shape = (most, *case.shape)
    features = torch.randint(TOKENS, shape, device=device) if case.words else torch.randn(shape, device=device)
    labels = torch.randint(10, (most,), device=device)
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    sizes, secrets = sizes_of(case, steps), Secrets()
    clipping, model = Clipping.flat(CLIP), Reduced(net) if way == "bf16" else net
    passes = Passes(model, cross_entropy, way == "compiled", float(case.batch), 10_000)

    def plain(number: int) -> int:
        size = sizes[number]
        optimizer.zero_grad()
        with named("pass"):
            for start in range(0, size, case.part):
                part = slice(start, min(start + case.part, size))
                torch.autograd.backward(cross_entropy(net(features[part]), labels[part]).sum() / size)
        with named("optimiser"):
            optimizer.step()
        return size

    def private(number: int) -> int:
        size = sizes[number]
        with named("data"):
            batch = BatchPart(features[:size], labels[:size])
        with named("sum"):
            if way == "vmap":
                total = clipped_sum_of_rows(model, cross_entropy, batch, clipping, few(net, device, case.part)).value
            else:
                total = clipped_sum(model, cross_entropy, batch, clipping, case.part, passes).value
        with named("noise"):
            add_noise(total, Distribution("gaussian"), CLIP, secrets.stream("noise", number))
        with named("optimiser"):
            total.div_(case.batch)
            start = 0
            for parameter in net.parameters():
                stop = start + parameter.numel()
                parameter.grad = total[start:stop].view_as(parameter).to(parameter)
                start = stop
            optimizer.step()
        return size

    return plain if way == "sgd" else private


def few(net: nn.Module, device: torch.device, part: int) -> int:
    """Records whose gradients, twice, take at most a quarter of the memory."""
    numbers = sum(parameter.numel() for parameter in net.parameters())
    return max(1, min(part, free_bytes(device) // (32 * numbers)))


def measured(case: Case, way: str, device: torch.device, timed: int) -> dict[str, Any]:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    step = step_of(case, way, device, 3 + timed + 1)
    for number in range(3):
        step(number)
    torch.cuda.synchronize(device)
    by_event, by_clock, records = [], [], 0
    for number in range(3, 3 + timed):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        first.record()
        records += step(number)
        last.record()
        torch.cuda.synchronize(device)
        by_clock.append(1000 * (time.perf_counter() - start))
        by_event.append(first.elapsed_time(last))
    return {
        "ms": statistics.median(by_clock),
        "ms by events": statistics.median(by_event),
        "ms of all": by_clock,
        "records a second": 1000 * records / sum(by_clock),
        "peak GiB": torch.cuda.max_memory_allocated(device) / 2**30,
        **profiled(lambda: step(3 + timed), device),
    }


def profiled(step: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Of one step: kernels started, waits, bytes over the bus, milliseconds of the device by part of the step."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    names = [str(event.get("name", "")) for event in events]
    crossing = [e for e in events if "Memcpy" in e.get("name", "") and ("HtoD" in e["name"] or "DtoH" in e["name"])]
    parts = {
        str(event["name"])[6:]: event["dur"] / 1000
        for event in events
        if event.get("cat") == "gpu_user_annotation" and str(event.get("name", "")).startswith("part: ")
    }
    return {
        "launches": sum(
            name in ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx") for name in names
        ),
        "waits": sum(name in ("cudaStreamSynchronize", "cudaDeviceSynchronize") for name in names) - 1,
        "bytes over the bus": sum(int(event["args"].get("bytes", 0)) for event in crossing),
        "ms by part": parts,
    }


def timed(work: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """Milliseconds, the least of some."""
    work()
    least = math.inf
    for _ in range(repeats):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        work()
        torch.cuda.synchronize(device)
        least = min(least, time.perf_counter() - start)
    return 1000 * least


def noise_of(count: int, device: torch.device) -> dict[str, float]:
    """Nanoseconds a number. From where on noise that is made there takes less than noise that is copied,
    `noise.MIN_ON_DEVICE` should be."""
    zeros, distribution = torch.zeros(count, dtype=torch.float64, device=device), Distribution("gaussian")
    blocks, key = min(math.ceil(12 * (count // 2) / 64), 1 << 20), bytes(range(32))

    def added(distribution: Distribution, least: int) -> None:
        with mock.patch.object(noise, "MIN_ON_DEVICE", least):
            add_noise(zeros, distribution, 1.0, Secrets().stream("noise", 1))

    works: dict[str, tuple[Callable[[], object], float]] = {
        "made there": (lambda: added(distribution, 0), count),
        "copied": (lambda: added(distribution, count + 1), count),
        "laplace, made there": (lambda: added(Distribution("laplace"), 0), count),
        "laplace, copied": (lambda: added(Distribution("laplace"), count + 1), count),
        "keystream": (lambda: Keystream(key, device).next(blocks), blocks * 64 / 6),
        "randn": (lambda: torch.randn(count, dtype=torch.float64, device=device), count),
    }
    return {name: 1e6 / numbers * timed(work, device) for name, (work, numbers) in works.items()}


def micro(device: torch.device, most: int) -> dict[str, Any]:
    """Noise against torch's own, the keystream alone, float64 against single products, channels last or not."""
    result: dict[str, Any] = {
        f"noise of 1e{power}: ns a number": noise_of(10**power, device) for power in range(4, most + 1)
    }
    single = torch.randn(64, 512, 768, device=device)
    double = single.double()
    result["ghost: ms"] = {
        "float64": timed(lambda: double @ double.mT, device),
        "single": timed(lambda: single @ single.mT, device),
        "rows": timed(lambda: torch.bmm(single.mT, single), device),
    }
    images, layer = torch.randn(256, 64, 32, 32, device=device), nn.Conv2d(64, 64, 3, padding=1).to(device)
    last = images.to(memory_format=torch.channels_last)
    result["convolution: ms"] = {
        "channels first": timed(lambda: layer(images).sum().backward(), device),
        "channels last": timed(lambda: layer(last).sum().backward(), device),
    }
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="a private step against plain SGD's on a GPU")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("benchmarks/gpu.py: there is no CUDA device\n")
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    chosen = [given.only] if given.only else list(SHORT if given.short else CASES)
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(device), "cases": {}}
    with in_full_precision():
        for name in chosen:
            result["cases"][name] = rows = {}
            for way in WAYS:
                if given.short and way == "vmap":
                    continue
                try:
                    rows[way] = measured(CASES[name], way, device, 5 if given.short else 10)
                except Exception as error:  # the other ways are worth knowing
                    rows[way] = {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"}
                print(line(name, way, rows), flush=True)
        result["micro"] = micro(device, 6 if given.short else 8)
    for what, figures in result["micro"].items():
        print(f"{what}: " + ", ".join(f"{name} {figure:.3g}" for name, figure in figures.items()))
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    failed = [
        f"{name}, {way}" for name, rows in result["cases"].items() for way, row in rows.items() if "failed" in row
    ]
    slower = [] if given.against is None else above(result, json.loads(given.against.read_text(encoding="utf-8")))
    for what in failed:
        sys.stderr.write(f"failed: {what}\n")
    for what in slower:
        sys.stderr.write(f"slower than before: {what}\n")
    return 1 if failed or slower else 0


def ratio(rows: dict[str, Any], way: str) -> float:
    """How many times as long as plain SGD."""
    return float(rows[way].get("ms", math.nan)) / float(rows["sgd"].get("ms", math.nan))


def line(name: str, way: str, rows: dict[str, Any]) -> str:
    """A row of the table of docs/gpu.md."""
    row = rows[way]
    if "failed" in row:
        return f"| {name} | {way} | {row['failed']} |"
    figures = (row["ms"], row["ms by events"], ratio(rows, way), row["records a second"], row["peak GiB"])
    figures_text = "{:.1f} | {:.1f} | {:.2f} | {:.0f} | {:.2f}".format(*figures)
    return f"| {name} | {way} | {figures_text} | {row['launches']} | {row['waits']} | {row['bytes over the bus']} |"


def above(result: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Ratios that have grown by more than is tolerated."""
    return [
        f"{name}, {way}: {ratio(rows, way):.2f}, was {ratio(earlier, way):.2f}"
        for name, rows in result["cases"].items()
        for way in rows
        if way in (earlier := before.get("cases", {}).get(name, {}))
        if ratio(rows, way) > TOLERATED * ratio(earlier, way)
    ]


if __name__ == "__main__":
    sys.exit(main())
