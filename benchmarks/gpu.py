"""What a private step costs on a GPU against plain SGD's, where its time goes, and what it takes of memory.

Cases: an MNIST CNN, WRN-16-4 (batches of 4096 in parts of 1024), WRN-40-4, a small vision transformer, a transformer of
100 million parameters over 512 tokens, and adapters (LoRA) of a decoder of 1.2 billion parameters, built from its
configuration. Ways: `sgd` (forward, backward, an SGD step in single precision), `sgd tf32` (products rounded to TF32),
`sgd bf16` (autocast), `engine` (clipped sum, noise and step, eager), `bf16` (the engine on a forward pass in bfloat16),
`recompute` (of a decoder, blocks computed twice), `opacus` (its ghost clipping, where it is installed or OPACUS_PYTHON
names an interpreter that has it), `vmap` (from gradients of single records, where these have room), and `compiled`.
Records are synthetic and on the device; the sizes of batches are drawn from a fixed seed, so that they vary as in runs.
After 3 steps that warm up, 10 are timed, by events of CUDA and by a clock that waits: the difference is what it takes
to start the kernels. One more step is profiled: kernels that were started, bytes over the bus, the parts of a step by
their ranges, and the kernels that took longest. Ratios are to `sgd`; only `sgd tf32` is rounded to TF32.

Run: python benchmarks/gpu.py [--short] [--only NAME] [--ways A,B] [--operations]
     [--against FILE] [--json FILE] [--try]
`--short`: MNIST and WRN-16-4, with fewer steps. `--ways`: these alone, in this order, and timings of single operations
only with `--operations`. `--against`: fail where a ratio to `sgd` is 20 % above the one in FILE. `--json`: written
after each row.
`--try`: tiny cases, on a CPU where there is no GPU, to see that the script works; its figures say nothing.
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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from gpu_cases import CASES, SHORT, TRIED, Case, opacus_step
from torch import nn

from dprecipe.models.zoo.causal_lm import CausalLanguageModel
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum, clipped_sum_of_rows
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.compiled import Passes
from dprecipe.training.engine.full_precision import Reduced, before_norms, in_full_precision, in_run_precision
from dprecipe.training.engine.recompute import Recompute
from dprecipe.training.engine.sizes import free_bytes
from dprecipe.training.steps import noise
from dprecipe.training.steps.chacha import Keystream
from dprecipe.training.steps.compiled_keystream import compile_keystream
from dprecipe.training.steps.noise import add_noise
from dprecipe.training.steps.optimise import FlatGradient

CLIP, RATE, TOLERATED = 0.1, 1e-3, 1.2
ON_GPU = torch.cuda.is_available()
PLAIN = ("sgd", "sgd tf32", "sgd bf16")
WAYS = (*PLAIN, "engine", "bf16", "recompute", "opacus", "vmap", "compiled")
Step = Callable[[int], int]
"""The number of a step to how many records it took."""


@contextmanager
def named(part: str) -> Iterator[None]:
    """A part of a step, for the profile and for NVTX."""
    with torch.profiler.record_function(f"part: {part}"):
        if not ON_GPU:
            yield
            return
        torch.cuda.nvtx.range_push(part)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


def sizes_of(case: Case, steps: int) -> list[int]:
    """Of Poisson batches, about."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(steps, generator=generator) * math.sqrt(case.batch) + case.batch
    return [max(1, min(round(float(size)), case.batch + 4 * round(math.sqrt(case.batch)))) for size in drawn]


def step_of(case: Case, way: str, device: torch.device, steps: int) -> Step:
    torch.manual_seed(0)
    net = case.build().to(device).train()
    features, labels = case.records(case.batch + 4 * round(math.sqrt(case.batch)), device)
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, RATE)
    gradient = FlatGradient(trained)
    sizes, secrets, loss = sizes_of(case, steps), Secrets(), case.loss
    clipping, model = Clipping.flat(CLIP), wrapped(net, way)
    passes = Passes(model, loss, way == "compiled", float(case.batch), 10_000)

    def plain(number: int) -> int:
        size = sizes[number]
        optimizer.zero_grad()
        with named("pass"):
            for start in range(0, size, case.part):
                part = slice(start, min(start + case.part, size))
                with torch.autocast(device.type, torch.bfloat16, enabled=way == "sgd bf16"):
                    mean = loss(net(features[part]), labels[part]).sum() / size
                torch.autograd.backward(mean)
        with named("optimiser"):
            optimizer.step()
        return size

    def private(number: int) -> int:
        size = sizes[number]
        with named("data"):
            batch = BatchPart(features[:size], labels[:size])
        with named("sum"):
            if way == "vmap":
                total = clipped_sum_of_rows(model, loss, batch, clipping, few(net, device, case.part)).value
            else:
                total = clipped_sum(model, loss, batch, clipping, case.part, passes).value
        with named("noise"):
            add_noise(total, Distribution("gaussian"), CLIP, secrets.stream("noise", number))
        with named("optimiser"):
            gradient.set(total.div_(case.batch))
            optimizer.step()
        return size

    if ON_GPU and way not in (*PLAIN, "opacus") and sum(p.numel() for p in trained) >= noise.MIN_ON_DEVICE:
        compile_keystream(device)  # as a run's noise check does

    if way == "opacus":
        made = opacus_step(case, net, CLIP, RATE)

        def theirs(number: int) -> int:
            made(features[: sizes[number]], labels[: sizes[number]])
            return sizes[number]

        return theirs
    return plain if way in PLAIN else private


def wrapped(net: nn.Module, way: str) -> nn.Module:
    """The model as the engine gets it."""
    if way == "recompute" and isinstance(net, CausalLanguageModel):
        return Recompute(net, net.blocks)
    return Reduced(net) if way == "bf16" else net


def few(net: nn.Module, device: torch.device, part: int) -> int:
    """Records whose gradients, twice, take at most a quarter of the memory."""
    numbers = sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)
    return max(1, min(part, free_bytes(device) // (32 * numbers)))


def measured(case: Case, way: str, device: torch.device, timed: int) -> dict[str, Any]:
    if ON_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with in_precision_of(way, device):
        return timed_steps(step_of(case, way, device, 3 + timed + 1), device, timed)


@contextmanager
def in_precision_of(way: str, device: torch.device) -> Iterator[None]:
    """Inside, within `in_full_precision`: the engine's own as in a run, and `sgd tf32` as the engine before norms."""
    if way in ("sgd", "sgd bf16", "opacus"):
        yield
        return
    with in_run_precision(), before_norms(device) if way == "sgd tf32" else nullcontext():
        yield


def timed_steps(step: Step, device: torch.device, timed: int) -> dict[str, Any]:
    for number in range(3):
        step(number)
    by_event, by_clock, records = [], [], 0
    for number in range(3, 3 + timed):
        first, last = Mark(), Mark()
        synchronise(device)
        start = time.perf_counter()
        first.record()
        records += step(number)
        last.record()
        synchronise(device)
        by_clock.append(1000 * (time.perf_counter() - start))
        by_event.append(first.elapsed_time(last))
    return {
        "ms": statistics.median(by_clock),
        "ms by events": statistics.median(by_event),
        "ms of all": by_clock,
        "records a second": 1000 * records / sum(by_clock),
        "peak GiB": torch.cuda.max_memory_allocated(device) / 2**30 if ON_GPU else math.nan,
        **profiled(lambda: step(3 + timed), device),
    }


class Mark:
    """A mark in the work of the device; of a CPU, the clock's time."""

    def __init__(self) -> None:
        self._event: Any = torch.cuda.Event(enable_timing=True) if ON_GPU else None  # type: ignore[no-untyped-call]
        self._seconds = 0.0

    def record(self) -> None:
        if self._event is None:
            self._seconds = time.perf_counter()
        else:
            self._event.record()

    def elapsed_time(self, later: Mark) -> float:
        """Milliseconds."""
        if self._event is None:
            return 1000 * (later._seconds - self._seconds)
        return float(self._event.elapsed_time(later._event))


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def profiled(step: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Of one step: kernels started, waits, bytes over the bus, milliseconds of the device by part of the step."""
    activities = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * ON_GPU
    with torch.profiler.profile(activities=activities) as profile:
        step()
        synchronise(device)
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
    kernels: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "kernel":
            kernels[str(event["name"])[:120]] += event["dur"] / 1000
    return {
        "ms of kernels": sum(kernels.values()),
        "ms by kernel": dict(kernels.most_common(20)),
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
        synchronise(device)
        start = time.perf_counter()
        work()
        synchronise(device)
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


def micro(device: torch.device, most: int, length: int) -> dict[str, Any]:
    """Noise against torch's own, the keystream alone, float64 against single products, channels last or not."""
    result: dict[str, Any] = {
        f"noise of 1e{power}: ns a number": noise_of(10**power, device) for power in range(4, most + 1)
    }
    single = torch.randn(64, length, 768, device=device)
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
    parser.add_argument("--only", choices=[*CASES, *TRIED])
    parser.add_argument("--ways", type=lambda text: tuple(text.split(",")), default=WAYS)
    parser.add_argument("--operations", action="store_true")
    parser.add_argument("--try", action="store_true", dest="tried")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not (ON_GPU or given.tried):
        sys.stderr.write("benchmarks/gpu.py: there is no CUDA device\n")
        return 2
    device = torch.device("cuda", torch.cuda.current_device()) if ON_GPU else torch.device("cpu")
    cases = TRIED if given.tried else CASES
    if given.only and given.only not in cases:
        parser.error(f"{given.only} is a case {'without --try' if given.tried else 'of --try'}")
    chosen = [given.only] if given.only else list(SHORT if given.short else cases)
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(device) if ON_GPU else "a CPU", "cases": {}}
    with in_full_precision():
        for name in chosen:
            result["cases"][name] = rows = {}
            for way in given.ways:
                if leaves_out(cases[name], way, given):
                    continue
                try:
                    rows[way] = measured(cases[name], way, device, 1 if given.tried else 5 if given.short else 10)
                except Exception as error:  # the other ways are worth knowing
                    rows[way] = {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"}
                print(line(name, way, rows), flush=True)
                write(result, given.json)
        if given.operations or given.ways is WAYS:
            result["micro"] = micro(device, 4 if given.tried else 6 if given.short else 8, 8 if given.tried else 512)
    for what, figures in result.get("micro", {}).items():
        print(f"{what}: " + ", ".join(f"{name} {figure:.3g}" for name, figure in figures.items()))
    write(result, given.json)
    failed = [
        f"{name}, {way}"
        for name, rows in result["cases"].items()
        for way, row in rows.items()
        if "failed" in row and way != "opacus"  # which takes other layers, and may not be here
    ]
    slower = [] if given.against is None else above(result, json.loads(given.against.read_text(encoding="utf-8")))
    for what in failed:
        sys.stderr.write(f"failed: {what}\n")
    for what in slower:
        sys.stderr.write(f"slower than before: {what}\n")
    return 1 if failed or slower else 0


def write(result: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def leaves_out(case: Case, way: str, given: argparse.Namespace) -> bool:
    """Return True for a way that is not measured of a case."""
    if way == "compiled" and given.tried:
        return True  # a compiler takes minutes
    return (way == "vmap" and given.short) or (way == "recompute" and not case.writes)


def ratio(rows: dict[str, Any], way: str) -> float:
    """How many times as long as plain SGD."""
    return float(rows[way].get("ms", math.nan)) / float(rows["sgd"].get("ms", math.nan))


def line(name: str, way: str, rows: dict[str, Any]) -> str:
    """A row of the table of docs/project/gpu.md."""
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
