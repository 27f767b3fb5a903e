"""What a clipped sum costs against plain SGD's gradient of the same model and batch, in time and memory.

Rounds alternate A B C A B C …, so that a machine whose speed drifts gives honest ratios; memory is the peak of a fresh
process. `sgd` is forward, backward and an SGD step, `sgd, compiled` the same by `torch.compile`, `sgd, channels last`
that of images with channels last in memory, which the engine sees to by itself; `engine` is the clipped sum as it is
trained with, `noise` that with the gate's noise, `auto` that with passes compiled where that is faster, and `vmap` the
sum from gradients of single records, which `engine` falls back to; each with the same step. Opacus's modes are with its
own noise, which is not secure, where it is installed. Records are made up.

Run: python benchmarks/engine.py [model ...] [--threads N] [--compiled] [--rounds N] [--quick] [--json FILE]
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from figures import Spread, alternate, parser_of, peak_of, ratio, seconds_of, write_json
from torch import Tensor, nn

from dprecipe.models.schema import WideResNet
from dprecipe.models.zoo.cnn import PRESETS, build_wide_resnet
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from dprecipe.training.engine.backward import channels_last
from dprecipe.training.engine.bookkeeping import describe_plan
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum, clipped_sum_of_rows
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.compiled import Passes
from dprecipe.training.program.losses import cross_entropy
from dprecipe.training.steps.noise import add_noise

TOKENS = 1000


class Transformer(nn.Module):
    """Classifies sequences of tokens: d 256, 4 layers, 4 heads, learned positions."""

    def __init__(self, classes: int, length: int, width: int = 256, layers: int = 4) -> None:
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
    vmap: bool = True
    """It is not hopeless to compute gradients of single records."""


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))


def wrn() -> nn.Module:
    return build_wide_resnet(WideResNet(kind="wide_resnet", depth=16, width=4, weight_standardisation=False), 3, 10)


CASES = {
    "logistic 123": Case(lambda: nn.Linear(123, 10), (123,), 1024, 31, 10),
    "MLP 784-1000-10": Case(mlp, (784,), 256, 15, vmap=False),
    "MNIST CNN": Case(lambda: PRESETS["tempered-mnist"]((1, 28, 28), 10), (1, 28, 28), 256, 11),
    "CIFAR CNN": Case(lambda: PRESETS["tempered-cifar"]((3, 32, 32), 10), (3, 32, 32), 256, 5, vmap=False),
    "WRN-16-4": Case(wrn, (3, 32, 32), 32, 5, vmap=False),
    "transformer": Case(lambda: Transformer(10, 128), (128,), 16, 5, vmap=False),
}
CLIP = 0.1
RATE = 1e-3
MEASURED = ("sgd", "engine")
"""Whose memory is told."""
OURS = ("engine", "noise", "auto")
"""Whose ratios `--json` keeps."""
QUICK = ("logistic 123", "MLP 784-1000-10", "MNIST CNN")


def made_up(name: str) -> BatchPart:
    shape = (CASES[name].batch, *CASES[name].shape)
    features = torch.randint(TOKENS, shape) if name == "transformer" else torch.randn(shape)
    return BatchPart(features, torch.randint(10, shape[:1]))


def steps(name: str, compiled: bool = False) -> dict[str, Callable[[], None]]:
    case = CASES[name]
    torch.manual_seed(0)
    net = case.build()
    batch = made_up(name)
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    secrets = Secrets()
    drawn = iter(range(1 << 40))

    def plain(model: Callable[[Tensor], Tensor], features: Tensor = batch.features) -> Callable[[], None]:
        def step() -> None:
            optimizer.zero_grad()
            cross_entropy(model(features), batch.labels).mean().backward()
            optimizer.step()

        return step

    def private(total: Callable[[], Tensor], noise: bool = False) -> Callable[[], None]:
        def step() -> None:
            summed = total()
            if noise:
                summed = add_noise(summed, Distribution("gaussian"), CLIP, secrets.stream("noise", next(drawn)))
            summed.div_(case.batch)
            start = 0
            for parameter in net.parameters():
                size = math.prod(parameter.shape)
                parameter.grad = torch.empty_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad.copy_(summed[start : start + size].view_as(parameter))
                start += size
            optimizer.step()

        return step

    def engine(passes: Passes | None = None) -> Callable[[], Tensor]:
        # Room for twice the records, so that a batch as large as expected is not split where it is compiled.
        return lambda: clipped_sum(net, cross_entropy, batch, Clipping.flat(CLIP), 2 * case.batch, passes).value

    result = {"sgd": plain(net), "engine": private(engine()), "noise": private(engine(), noise=True)}
    if len(case.shape) == 3:
        result["sgd, channels last"] = plain(net, channels_last(batch.features))
    if case.vmap:
        rows = clipped_sum_of_rows
        result["vmap"] = private(lambda: rows(net, cross_entropy, batch, Clipping.flat(CLIP), case.batch).value)
    if compiled:
        result["sgd, compiled"] = plain(torch.compile(net))
        passes = Passes(net, cross_entropy, "auto", case.batch, 1 << 30)
        result["auto"] = private(engine(passes), noise=True)
    return result


def opacus(name: str) -> dict[str, Callable[[], None]]:
    """A step of each of Opacus's modes that can do this model, and is not hopeless."""
    try:
        from opacus.grad_sample import GradSampleModule
        from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizer
        from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    except ImportError:
        return {}
    warnings.filterwarnings("ignore", "Full backward hook is firing")
    case = CASES[name]
    batch = made_up(name)
    settings = {"noise_multiplier": 1.0, "max_grad_norm": CLIP, "expected_batch_size": case.batch}

    def by_rows(functorch: bool) -> Callable[[], None]:
        net = GradSampleModule(case.build(), force_functorch=functorch)
        optimizer = DPOptimizer(torch.optim.SGD(net.parameters(), RATE), **settings)

        def step() -> None:
            optimizer.zero_grad()
            cross_entropy(net(batch.features), batch.labels).mean().backward()
            optimizer.step()

        return step

    def ghost() -> Callable[[], None]:
        net = GradSampleModuleFastGradientClipping(case.build(), max_grad_norm=CLIP, use_ghost_clipping=True)
        optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(net.parameters(), RATE), **settings)
        criterion = DPLossFastGradientClipping(net, optimizer, nn.CrossEntropyLoss())

        def step() -> None:
            optimizer.zero_grad()
            criterion(net(batch.features), batch.labels).backward()
            optimizer.step()

        return step

    modes = {"opacus ghost": ghost}
    if case.vmap or len(case.shape) == 3:
        modes |= {"opacus hooks": lambda: by_rows(False), "opacus functorch": lambda: by_rows(True)}
    result = {}
    for mode, build in modes.items():
        try:
            step = build()
            step()
        except Exception as error:  # it refuses many models, each in its own way
            print(f"{mode} can't: {type(error).__name__}: {str(error).splitlines()[0][:80]}", file=sys.stderr)
        else:
            result[mode] = step
    return result


def compare(name: str, rounds: int, timed: dict[str, Callable[[], None]]) -> dict[str, Spread]:
    """Of one thread its processor time, which other programs lengthen less; of several, of the clock."""
    case = CASES[name]
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    ways = {piece: lambda step=step: seconds_of(step, case.repeats, clock) for piece, step in timed.items()}
    times = alternate(ways, rounds, warm_up=2)
    print(f"\n{name}, batch {case.batch}: {1000 * Spread.of(times['sgd']).median:.2f} ms", flush=True)
    ratios = {piece: ratio(taken, times["sgd"]) for piece, taken in times.items() if piece != "sgd"}
    for piece, spread in ratios.items():
        print(f"  {piece:18} {spread}", flush=True)
    return {f"{name}: {piece} / sgd": spread for piece, spread in ratios.items() if piece in OURS}


def main() -> None:
    if sys.argv[1:2] == ["peak"]:
        step = steps(sys.argv[2])[sys.argv[3]]
        step(), step(), step()
        return
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(CASES)}; all if none is given")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="compiled passes as well")
    given = parser.parse_args()
    if unknown := set(given.models) - set(CASES):
        parser.error(f"no model {', '.join(unknown)}")
    asked = given.models or (QUICK if given.quick else list(CASES))
    torch.set_num_threads(given.threads)
    if not given.quick:  # Before anything is held here: a child starts with its parent's peak.
        print("peak memory, MB   " + "".join(f"{piece:>10}" for piece in MEASURED))
        for name in asked:
            print(f"{name:18}" + "".join(f"{peak_of(__file__, name, piece):10.0f}" for piece in MEASURED), flush=True)
    print(f"\n{torch.get_num_threads()} thread(s), ratios to sgd in the same round: median, and range")
    ratios: dict[str, Spread] = {}
    for name in asked:
        timed = steps(name, given.compiled)
        if not given.quick:
            timed |= opacus(name)
        ratios |= compare(name, given.rounds or (7 if given.quick else CASES[name].rounds), timed)
    write_json(given.json, "engine", ratios, quick=given.quick or bool(given.models) or not given.compiled)
    if given.quick:
        return
    for name in asked:
        case = CASES[name]
        print(f"\n{name}")
        features = torch.zeros(case.batch, *case.shape, dtype=torch.int64 if name == "transformer" else torch.float32)
        labels = torch.zeros(case.batch, dtype=torch.int64)
        for parameter, strategy in describe_plan(case.build(), cross_entropy, features, labels).items():
            print(f"  {parameter:40} {strategy}")


if __name__ == "__main__":
    main()
