"""What a batch of 256 costs with gradient encoding against DP-SGD, and where the time goes.

Rounds alternate A B A B …, so that a machine whose speed drifts gives honest ratios; memory is the peak of a fresh
process. Records are made up, the codebook has 1,000 codewords.

Run: python benchmarks/encoder.py [--rounds N] [--quick] [--json FILE]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from figures import Spread, alternate, parser_of, peak_of, ratio, seconds_of, write_json

from dprecipe.mechanisms.encoded.codebook import draw_gaussian_codebook
from dprecipe.mechanisms.encoded.train.encoded_sum import Encoder, encoded_sum
from dprecipe.mechanisms.encoded.train.run import kolmogorov_smirnov
from dprecipe.models.zoo.cnn import PRESETS
from dprecipe.noise.distributions import Distribution
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum, per_record_gradients
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.gradient_rows import gradient_rows
from dprecipe.training.program.losses import cross_entropy

BATCH = 256
MODELS = {"tempered-mnist": ((1, 28, 28), 256, 11), "tempered-cifar": ((3, 32, 32), 64, 5)}
"""Shape of a record, records of a physical batch, rounds."""
WORDS = 1000


def steps(name: str) -> dict[str, Callable[[], object]]:
    """What is timed: two whole sums, and the pieces of the second."""
    shape, physical, _ = MODELS[name]
    torch.manual_seed(0)
    net = PRESETS[name](shape, 10)
    batch = BatchPart(torch.randn(BATCH, *shape), torch.randint(10, (BATCH,)))
    parameters = sum(p.numel() for p in net.parameters())
    encoder = Encoder(draw_gaussian_codebook((parameters,), WORDS, 1e-5, 0), 1.0, torch.device("cpu"))
    noisy, distribution = torch.randn(parameters, dtype=torch.float64), Distribution("student_t", 9.0)

    def kept() -> torch.Tensor:
        if not stored:
            part = next(batch.parts(physical))
            stored.append(per_record_gradients(net, cross_entropy, part.features, part.labels))
        return stored[0]

    stored: list[torch.Tensor] = []
    return {
        "dpsgd": lambda: clipped_sum(net, cross_entropy, batch, Clipping.flat(0.1), physical),
        "encoded": lambda: encoded_sum(net, cross_entropy, batch, encoder, physical),
        "  gradients": lambda: list(gradient_rows(net, cross_entropy, batch, physical, encoder.at_once)),
        "  encoding": lambda: encoder.sum(kept() for _ in range(BATCH // physical)),
        "  denoising": lambda: kolmogorov_smirnov(noisy, distribution, 1.0),
    }


def compare(name: str, rounds: int) -> dict[str, Spread]:
    """Of one thread the processor's time, of several the clock's."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    ways = {piece: lambda step=step: seconds_of(step, clock=clock) for piece, step in steps(name).items()}
    times = alternate(ways, rounds)
    title = f"{name}, {torch.get_num_threads()} thread(s), ms"
    print(f"{title:32} {'min':>7} {'median':>7}")
    for piece, taken in times.items():
        print(f"{piece:32} {1000 * min(taken):7.1f} {1000 * Spread.of(taken).median:7.1f}")
    compared = ratio(times["encoded"], times["dpsgd"])
    print(f"encoded / dpsgd: {compared}\n", flush=True)
    return {f"{name}, {torch.get_num_threads()} thread(s): encoded / dpsgd": compared}


def main() -> None:
    if sys.argv[1:2] == ["peak"]:
        step = steps(sys.argv[2])[sys.argv[3]]
        step(), step()
        return
    given = parser_of(__doc__).parse_args()
    if not given.quick:  # Before anything is held here: a child starts with its parent's peak.
        for name in MODELS:
            peaks = ", ".join(f"{piece} {peak_of(__file__, name, piece):.0f} MB" for piece in ("dpsgd", "encoded"))
            print(f"{name}: peak memory {peaks}")
        print()
    ratios: dict[str, Spread] = {}
    for threads in (1,) if given.quick else (1, 2):
        torch.set_num_threads(threads)
        for name in list(MODELS)[:1] if given.quick else MODELS:
            ratios |= compare(name, given.rounds or (5 if given.quick else MODELS[name][2]))
    write_json(given.json, "encoder", ratios, quick=given.quick)


if __name__ == "__main__":
    main()
