"""Noise from a secret stream, added to a sum in place and rounded to a lattice that does not depend on the sum.

**Why a lattice.** A double is not a real number. The values a sampler can return have gaps, and doubles are denser near
0 than far from it. So one of two neighbouring sums may be able to produce a noisy result that the other can't, and the
lowest bits of a result distinguish them (Mironov 2012). Here a result is a multiple of g, a power of two between 2^-21
and 2^-20 of the noise's scale, and every multiple of g within the range of the noise can result from any sum:

1. *The result is one fixed function of x + z*, where x is the exact sum of the units and z the noise as drawn. IEEE 754
   addition returns the double nearest to the exact sum, and `onto_lattice` maps that double to a multiple of g. The
   function is public and monotone. Releasing it costs no more than releasing x + z (post-processing): the sensitivity
   does not grow, for any bounds and any noise family. After x and z are added there is no other rounding, so nothing
   else depends on x. Zero has no sign. (z is the product of the draw and the scale. The product is rounded, or exact
   where a processor has a fused multiply-add, as GPUs do. `onto_lattice` adds and subtracts the same number: no
   compiler may see it.)
2. *So only the distribution of z depends on floating point*: the probabilities of intervals of length g, each of which
   gives one result. (This is for |x + z| up to 2^30 scales; farther out doubles are coarser than g, and 1 still
   applies.) A normal z is sqrt(-2 log u) cos θ, or sin θ, with a u of 63 bits, finest near 0, and a θ of 32 bits. For
   θ = 0 or π, neighbouring u give z that are 2^-63 / (u |z|) apart: less than g up to |z| = 7.8, so every interval up
   to there contains a draw. For a fixed θ, z is monotone in u, so an interval's probability is exact up to 2^-62, one u
   at each end, and up to the rounding of its ends; relative to the normal distribution this is an error of 2^-27 up to
   |z| = 4 and of 2^-13 up to 6. The mean over 2^32 angles is that over all angles, except next to 0, where few angles
   have such a sine or cosine: the probability of an interval with an end within 2^-27 of 0 may be off by 2^-32, a
   relative error of 2^-10. Beyond 7.8, which a draw exceeds with probability 6e-15, an interval has about 2^74 φ(z) of
   the 2^95 pairs (u, θ), φ being the normal density: 2^26 at 8, and 2^14 at 9. The largest draw is at 9.4.

For the other families, `dprecipe.noise.draws` uses a u of as many bits, and so does `training.device_draws` on a GPU.
Every interval contains a draw up to the limit in this table:

| family | limit | probability of a draw beyond it |
|---|---|---|
| laplace, sech | 29 scales | 2^-42 |
| variance_gamma | 29 scales | λ 2^-42 |
| cauchy | 2^20 scales | 2^-20 |
| student_t, by its radius | | 2^-38 for df = 9, 2^-21 for df = 1 |

Not covered: how long a draw takes, and how the sum was computed (`engine.clipped_sum` has the margins of a unit's
bound).

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
"""Numbers processed at a time on a CPU: few enough that all buffers stay in the cache and that torch runs an operation
on half of them in one thread; their pairs use whole blocks of the keystream."""
MIN_CHUNKS = 4
"""The smallest number of chunks for one thread."""
MIN_ON_DEVICE = 1 << 18
"""A GPU generates noise only from this count on: the kernels of a chunk take some milliseconds to start, whatever its
length, and a CPU draws this many numbers in two. An estimate; `benchmarks/gpu.py` measures it."""
_PAIR = 12
"""Bytes of the keystream for two normal draws."""
NoiseAdder = Callable[[Tensor, float | Tensor], None]
"""Adds noise of a scale, one for all numbers or one for each, to a vector."""


def add_noise(value_P: Tensor, distribution: Distribution, scale: float | Tensor, stream: Stream) -> Tensor:
    """Add noise of this distribution and scale (one for each number, where it is a tensor) to a float64 sum, in place.

    `value_P`: (P,) float64. `scale`: in the units of the sum; for Gaussian noise, its standard deviation.

    Guarantees: each number of the result is on the lattice of its own scale. For a sum on a CUDA device, the keystream
    and the noise are generated there; fewer than `MIN_ON_DEVICE` numbers are drawn on the CPU and copied. Only the
    count decides, so it is the same in each step. For a sum on a CPU, Gaussian noise is drawn by as many threads as
    torch uses, which changes no number; noise of other families by one.

    | case | result |
    |---|---|
    | an empty sum, (0,) | returned as it is; nothing is drawn |
    | a sum of zeros (an empty batch) | noise only |
    | a scale of 0, also for one number only | ValueError: no sum is returned without noise |
    | a non-finite scale | ValueError |
    | a non-finite number in the sum | it stays non-finite; `ClippedSum` excludes it |

    Raises:
        ValueError: a scale is not positive, or too small or too large for doubles to have such a lattice.
    """
    original, value_P = value_P, value_P.detach()
    device, size = value_P.device, value_P.numel()
    if isinstance(scale, Tensor) and size:
        lattice_spacing(float(scale.min())), lattice_spacing(float(scale.max()))  # raises if one has no lattice
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
    """One thread for the chunks between two consecutive ends."""
    _buffers.extend(_DrawBuffer(value_P.device, CHUNK) for _ in range(len(ends) - 1 - len(_buffers)))
    streams = stream.share([CHUNK // 2 * _PAIR // BLOCK * first for first in ends[:-1]])

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
    """Round each double to the nearest multiple of `lattice_spacing(scale)`, in place; zero becomes +0.

    Between 2^52 and 2^53 spacings, doubles are exactly one spacing apart: there, addition rounds to the lattice.
    """
    if isinstance(scale, Tensor):
        power = scale.view(torch.int64).bitwise_and(_EXPONENT).view(torch.float64)  # the largest power of two <= scale
        shift = power.mul_(1.5 * 2.0 ** (52 - FINE))
        value.add_(shift).sub_(shift)
    else:
        far = 1.5 * 2.0**52 * lattice_spacing(scale)
        value.add_(far).sub_(far)


_EXPONENT = 0x7FF << 52
"""The bits of a double's exponent."""


def _device_adder(distribution: Distribution, stream: Stream, device: torch.device, size: int) -> NoiseAdder:
    """Adds noise to `size` numbers on another device, at most `CHUNK` << 6 at a time."""
    if size < MIN_ON_DEVICE:
        return _adder_of(lambda count: _copied(distribution, stream, count, device))
    if distribution.family == "gaussian":
        return _keystream_adder(stream, device, min(CHUNK << 6, size))
    stream.share(())  # nobody else draws from it
    blocks = Keystream(stream.key, device)
    return _adder_of(lambda count: draw_from(distribution, blocks, count))


def _adder_of(draws: Callable[[int], Tensor]) -> NoiseAdder:
    """Adds scale × draws of scale 1; `draws` returns as many as requested."""

    def add(value: Tensor, scale: float | Tensor) -> None:
        noise = draws(value.numel())
        if isinstance(scale, Tensor):
            value.addcmul_(noise, scale)
        else:
            value.add_(noise, alpha=scale)

    return add


def _copied(distribution: Distribution, stream: Stream, count: int, device: torch.device) -> Tensor:
    """Draws of scale 1 from the CPU, not rounded: only their sum with a value is rounded to the lattice. Nothing waits
    for the device; torch does not reuse memory that is still being copied."""
    draws = torch.zeros(count, dtype=torch.float64, pin_memory=device.type == "cuda")
    if distribution.family == "gaussian":
        add = _cpu_adder(stream, _buffer(draws.device, min(CHUNK, count)))
        for part in torch.split(draws, CHUNK):
            add(part, 1.0)
    else:
        draws.copy_(torch.from_numpy(draw_noise(distribution, stream, count)))
    return draws.to(device, non_blocking=True)


def _cpu_adder(stream: Stream, buffer: _DrawBuffer) -> NoiseAdder:
    """Adds scale × standard normal draws to a vector that fits into the buffer."""

    def add(value: Tensor, scale: float | Tensor) -> None:
        buffer.cut(value.numel())
        stream.fill(buffer.bytes_B)
        buffer.add(value, scale)

    return add


def _keystream_adder(stream: Stream, device: torch.device, max_count: int) -> NoiseAdder:
    """As `_cpu_adder`, from a keystream generated on the device, to a vector of at most `max_count` numbers."""
    stream.share(())  # nobody else draws from it
    buffer, blocks = _buffer(device, max_count), Keystream(stream.key, device)

    def add(value: Tensor, scale: float | Tensor) -> None:
        buffer.cut(value.numel(), blocks.next(math.ceil(_PAIR * ((value.numel() + 1) // 2) / BLOCK)))
        buffer.add(value, scale)

    return add


@final
class _DrawBuffer:
    """Memory for the draws of a chunk. It is reused: fresh pages cost as much as writing to them, and making a view
    takes as long as a thousand draws."""

    def __init__(self, device: torch.device, max_count: int) -> None:
        pairs = (max_count + 1) // 2
        self._whole_B = np.empty(_PAIR * pairs if device.type == "cpu" else 0, dtype=np.uint8)
        with torch.inference_mode(False):  # so that it can be used in any mode
            self._memory = torch.empty(3, pairs, dtype=torch.float64, device=device)
            self._offset = torch.tensor(2.0**-64, dtype=torch.float64, device=device)
        self._pairs = -1

    def cut(self, count: int, words: Tensor | None = None) -> None:
        """Prepare for `count` draws: from these words of 32 bits, three for each pair, or from `bytes_B`."""
        pairs = (count + 1) // 2
        if pairs == self._pairs and words is None:
            return
        pairs_cut = pairs if words is None else -1
        self.bytes_B = self._whole_B[: _PAIR * pairs]
        if words is None:
            words = torch.from_numpy(self.bytes_B.view(np.int32))
        self._uniform, self._angle = words[: 2 * pairs].view(torch.int64), words[2 * pairs : 3 * pairs]
        self._radius, self._cosine, self._sine = self._memory[:, :pairs].unbind()
        self._pairs = pairs_cut  # set last: after an interruption no view has a wrong size

    def add(self, value: Tensor, scale: float | Tensor) -> None:
        """Add scale × normal draws to as many numbers, by the Box-Muller transformation."""
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
