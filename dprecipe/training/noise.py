"""Noise from a secret stream, added to a sum in place, onto a lattice that knows nothing of the sum.

**Why a lattice.** A double is not a real number. What a sampler can return has gaps, and doubles lie closer together
near 0 than far from it; so of two sums, one may be able to give a noisy result that the other can't, and the lowest
bits of a result tell them apart (Mironov 2012). Here a result is a multiple of g, a power of two between 2^-21 and
2^-20 of the noise's scale, and each multiple of g, as far as noise reaches, can be the result of any sum:

1. *Whatever the sum, the result is one function of x + z*, of the exact sum x of the units and the noise z as it was
   drawn: IEEE 754 addition returns the double that is nearest to the exact sum, and `onto_lattice` maps that double to
   a multiple of g. The function is public and rises with its argument. To release it costs no more than to release
   x + z (post-processing): nothing is added to the sensitivity, for any bounds and any family of noise. There is no
   other rounding after x and z have met, so nothing else that depends on x. A zero has no sign. (z is the product of
   the draw and the scale, rounded or, where a processor multiplies and adds at once, as a GPU does, exact. No compiler
   may see what adds and subtracts the same number: `onto_lattice`.)
2. *So all that is left of floating point is the distribution of z*, and of that the probabilities of intervals of
length g, each
   of which gives one result. (For |x + z| up to 2^30 scales; farther out doubles are coarser than that, and 1 holds
   all the same.) A normal z is sqrt(-2 log u) cos θ, or sin θ, of a u of 63 bits, finest near 0, and a θ of 32. With
   θ = 0 or π alone, neighbouring u give z that are 2^-63 / (u |z|) apart: less than g up to |z| = 7.8, so that each
   interval up to there holds a draw. Given any θ, z rises or falls with u, so that an interval has its probability
   to 2^-62, one u at each end, and to what double precision moves its ends; of what the normal distribution gives it
   this is a part of 2^-27 up to |z| = 4 and of 2^-13 up to 6. The mean over 2^32 angles is that over all of them, but
   next to 0, where few angles give the sine or the cosine that it takes: an interval with an end within 2^-27 of 0 may
   have 2^-32 more or less, a part of 2^-10. Beyond 7.8, which a draw passes with probability 6e-15, an interval has
   about 2^74 φ(z) of the 2^95 pairs (u, θ), φ being the normal density: 2^26 at 8, and 2^14 at 9. The last draw is at
   9.4.

For the other families, which `dprecipe.noise.draws` makes from a u of as many bits, and `training.device_draws` on a
GPU, each interval holds a draw up to 29 scales for laplace, sech and variance_gamma, passed with probability 2^-42
(variance_gamma: λ times as much); up to 2^20 for cauchy, passed with probability 2^-20; for student_t, by its radius
alone, up to where it is passed with probability 2^-38 for df = 9 and 2^-21 for df = 1.

Not covered: how long a draw takes, and the sums before this one (a unit's bound holds with the margins of
`engine.clipped_sum`).

Source: Box and Muller 1958; I. Mironov, "On significance of the least significant bits for differential privacy",
CCS 2012.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import final

import numpy as np
import torch
from torch import Tensor

from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import draw_noise
from dprecipe.noise.entropy import Stream
from dprecipe.noise.lattice import FINE, lattice_spacing
from dprecipe.training.chacha import BLOCK, Keystream
from dprecipe.training.device_draws import draw_from

CHUNK = (1 << 16) - 32
"""Numbers at a time: on a CPU, so many that all there is of them stays in the cache, and that torch leaves an operation
on half of them to one thread; their pairs take whole blocks of the keystream."""
MIN_CHUNKS = 4
"""No thread is asked for less than so many chunks."""
MIN_ON_DEVICE = 1 << 18
"""A GPU makes the noise of no fewer numbers: the kernels of a chunk take some milliseconds to start, however short the
chunk is, and a CPU draws so many numbers in two. An estimate; `benchmarks/gpu.py` measures it."""
_PAIR = 12
"""Bytes of the keystream for two normal draws."""
NoiseAdder = Callable[[Tensor, float | Tensor], None]
"""Adds noise of a scale, one for all numbers or one for each, to a vector."""


def add_noise(value_P: Tensor, distribution: Distribution, scale: float | Tensor, stream: Stream) -> Tensor:
    """Add noise of this distribution and scale (one for each number, where it is a tensor) to a float64 sum, in place.

    `value_P`: (P,) float64. `scale`: in the units of the sum; of Gaussian noise, its standard deviation. No number at
    all: nothing is drawn. A scale of zero is a fault, and no sum comes back without noise.

    Guarantees: each number of the result is on the lattice of its own scale. For a sum on a CUDA device noise is made
    there, from a keystream that is made there as well; but for fewer than `MIN_ON_DEVICE` numbers it is drawn on the
    CPU and copied. Which of them is decided by their count alone, so it is the same in each step. For a sum on a CPU
    Gaussian noise is drawn by as many threads as torch has, which changes no number; that of other families by one.

    Raises:
        ValueError: a scale is not positive, or too small or too large for doubles to have such a lattice.
    """
    original, value_P = value_P, value_P.detach()
    device, size = value_P.device, value_P.numel()
    if isinstance(scale, Tensor) and size:
        lattice_spacing(float(scale.min())), lattice_spacing(float(scale.max()))  # raises where one has no lattice
    with _LOCK:
        if device.type != "cpu":
            _in_chunks(value_P, scale, CHUNK << 6, _device_adder(distribution, stream, device, size))
        elif distribution.family != "gaussian":
            _in_chunks(
                value_P,
                scale,
                CHUNK,
                _adder_of(lambda count: torch.from_numpy(draw_noise(distribution, stream, count))),
            )
        else:
            chunks = math.ceil(size / CHUNK)
            threads = max(1, min(torch.get_num_threads(), chunks // MIN_CHUNKS))
            if threads == 1:
                _in_chunks(value_P, scale, CHUNK, _cpu_adder(stream, _buffer(device, min(CHUNK, size))))
            else:
                _add_in_threads(value_P, scale, stream, [chunks * number // threads for number in range(threads + 1)])
    return original


def _add_in_threads(value_P: Tensor, scale: float | Tensor, stream: Stream, ends: Sequence[int]) -> None:
    """A thread for the chunks from each end to the next."""
    _buffers.extend(_DrawBuffer(value_P.device, CHUNK) for _ in range(len(ends) - 1 - len(_buffers)))
    streams = stream.shared([CHUNK // 2 * _PAIR // BLOCK * first for first in ends[:-1]])

    def add(first: int, last: int, stream: Stream, buffer: _DrawBuffer) -> None:
        part = slice(CHUNK * first, CHUNK * last)
        with torch.no_grad():  # modes are each thread's own
            _in_chunks(value_P[part], _scale_of(scale, part), CHUNK, _cpu_adder(stream, buffer))

    with ThreadPoolExecutor(len(streams)) as threads:
        list(threads.map(add, ends[:-1], ends[1:], streams, _buffers))  # as a list: it raises what a thread raised


def _in_chunks(value_P: Tensor, scale: float | Tensor, chunk: int, add: NoiseAdder) -> None:
    size = value_P.numel()
    for start in range(0, size, chunk):
        part = slice(start, start + chunk)
        add(value_P if size <= chunk else value_P[part], _scale_of(scale, part))
        for half in (slice(at, at + chunk // 2) for at in range(start, min(size, start + chunk), chunk // 2)):
            onto_lattice(value_P[half], _scale_of(scale, half))


def _scale_of(scale: float | Tensor, part: slice) -> float | Tensor:
    """The scale of a part of the numbers."""
    return scale[part] if isinstance(scale, Tensor) else scale


def onto_lattice(value: Tensor, scale: float | Tensor) -> None:
    """Replace each double by the multiple of `spacing(scale)` that is nearest to it; in place, and zero is +0.

    From 2^52 spacings up to 2^53 doubles are exactly one apart: there, addition rounds to the lattice.
    """
    if isinstance(scale, Tensor):
        power = scale.view(torch.int64).bitwise_and(_EXPONENT).view(torch.float64)  # of two, the largest not above it
        shift = power.mul_(1.5 * 2.0 ** (52 - FINE))
        value.add_(shift).sub_(shift)
    else:
        far = 1.5 * 2.0**52 * lattice_spacing(scale)
        value.add_(far).sub_(far)


_EXPONENT = 0x7FF << 52
"""Where a double has its exponent."""


def _device_adder(distribution: Distribution, stream: Stream, device: torch.device, size: int) -> NoiseAdder:
    """To `size` numbers on another device, at most `CHUNK` << 6 at a time."""
    if size < MIN_ON_DEVICE:
        return _adder_of(lambda count: _copied(distribution, stream, count, device))
    if distribution.family == "gaussian":
        return _keystream_adder(stream, device, min(CHUNK << 6, size))
    stream.shared(())  # nobody else draws from it
    blocks = Keystream(stream.key, device)
    return _adder_of(lambda count: draw_from(distribution, blocks, count))


def _adder_of(draws: Callable[[int], Tensor]) -> NoiseAdder:
    """Adds scale × draws of scale 1, of which there are as many as asked for."""

    def add(value: Tensor, scale: float | Tensor) -> None:
        noise = draws(value.numel())
        if isinstance(scale, Tensor):
            value.addcmul_(noise, scale)
        else:
            value.add_(noise, alpha=scale)

    return add


def _copied(distribution: Distribution, stream: Stream, count: int, device: torch.device) -> Tensor:
    """Draws of scale 1, from the CPU, as they are: onto the lattice goes nothing but their sum with a value. The device
    is not waited for; what it still copies, torch does not use again."""
    draws = torch.zeros(count, dtype=torch.float64, pin_memory=device.type == "cuda")
    if distribution.family == "gaussian":
        add = _cpu_adder(stream, _buffer(draws.device, min(CHUNK, count)))
        for part in torch.split(draws, CHUNK):
            add(part, 1.0)
    else:
        draws.copy_(torch.from_numpy(draw_noise(distribution, stream, count)))
    return draws.to(device, non_blocking=True)


def _cpu_adder(stream: Stream, buffer: _DrawBuffer) -> NoiseAdder:
    """Adds scale × standard normal draws to a vector for which there is room."""

    def add(value: Tensor, scale: float | Tensor) -> None:
        buffer.cut(value.numel())
        stream.fill(buffer.bytes_B)
        buffer.add(value, scale)

    return add


def _keystream_adder(stream: Stream, device: torch.device, max_count: int) -> NoiseAdder:
    """As `_cpu_adder`, from a keystream that is made on the device, to a vector of at most `max_count` numbers."""
    stream.shared(())  # nobody else draws from it
    buffer, blocks = _buffer(device, max_count), Keystream(stream.key, device)

    def add(value: Tensor, scale: float | Tensor) -> None:
        buffer.cut(value.numel(), blocks.next(math.ceil(_PAIR * ((value.numel() + 1) // 2) / BLOCK)))
        buffer.add(value, scale)

    return add


@final
class _DrawBuffer:
    """Memory for the draws of a chunk. It is kept: fresh pages cost as much as what is written to them, and a view of
    it takes as long as a thousand draws."""

    def __init__(self, device: torch.device, max_count: int) -> None:
        pairs = (max_count + 1) // 2
        self._whole_B = np.empty(_PAIR * pairs if device.type == "cpu" else 0, dtype=np.uint8)
        with torch.inference_mode(False):  # it is of use in any mode
            self._memory = torch.empty(3, pairs, dtype=torch.float64, device=device)
            self._offset = torch.tensor(2.0**-64, dtype=torch.float64, device=device)
        self._pairs = -1

    def cut(self, count: int, words: Tensor | None = None) -> None:
        """For `count` draws: of these words of 32 bits, three for each pair, or of what is written to `bytes_B`."""
        pairs = (count + 1) // 2
        if pairs == self._pairs and words is None:
            return
        pairs_cut = pairs if words is None else -1
        self.bytes_B = self._whole_B[: _PAIR * pairs]
        if words is None:
            words = torch.from_numpy(self.bytes_B.view(np.int32))
        self._uniform, self._angle = words[: 2 * pairs].view(torch.int64), words[2 * pairs : 3 * pairs]
        self._radius, self._cosine, self._sine = self._memory[:, :pairs].unbind()
        self._pairs = pairs_cut  # last: an interruption leaves no views of another size

    def add(self, value: Tensor, scale: float | Tensor) -> None:
        """Add scale × normal draws to as many numbers, by Box and Muller's transformation."""
        radius, cosine, sine = self._radius, self._cosine, self._sine
        # ± u = (k + 1/2) 2^-63 for a k of 64 bits with its sign, and sqrt(-log u²).
        radius.copy_(self._uniform)
        torch.add(self._offset, radius, alpha=2.0**-63, out=radius)
        radius.mul_(radius).log_().neg_().sqrt_()
        sine.copy_(self._angle).mul_(2 * math.pi * 2.0**-32)
        torch.cos(sine, out=cosine)
        sine.sin_()
        half, remaining = radius.numel(), value.numel() - radius.numel()
        _add(value[:half], cosine, radius, _scale_of(scale, slice(half)))
        if remaining:
            _add(value[half:], sine[:remaining], radius[:remaining], _scale_of(scale, slice(half, None)))


def _add(value: Tensor, angle: Tensor, radius: Tensor, scale: float | Tensor) -> None:
    if isinstance(scale, Tensor):
        value.addcmul_(angle.mul_(radius), scale)
    else:
        value.addcmul_(angle, radius, value=scale)


_buffer = lru_cache(maxsize=2)(_DrawBuffer)
_buffers: list[_DrawBuffer] = []
"""One for each thread."""
_LOCK = threading.Lock()
"""Held while the memory is in use."""
