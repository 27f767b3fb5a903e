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
2. *So only the distribution of z depends on floating point*: the probabilities of intervals of length g, where each
   gives one result. (This is for |x + z| up to 2^30 scales; farther out doubles are coarser than g, and 1 still
   applies.) A normal z is sqrt(-2 log u) cos θ, or sin θ, with a u of 63 bits, finest near 0, and a θ of 32 bits. For
   θ = 0 or π, neighbouring u give z that are 2^-63 / (u |z|) apart: less than g up to |z| = 7.8, so every interval up
   to there contains a draw. For a fixed θ, z is monotone in u, so an interval's probability is exact up to 2^-62, one u
   at each end, and up to the rounding of its ends; relative to the normal distribution this is an error of 2^-27 up to
   |z| = 4 and of 2^-13 up to 6. The mean over 2^32 angles is that over all angles, except next to 0, where few angles
   have such a sine or cosine: the probability of an interval with an end within 2^-27 of 0 may be off by 2^-32, a
   relative error of 2^-10. Beyond 7.8, which a draw exceeds with probability 6e-15, an interval has about 2^74 φ(z) of
   the 2^95 pairs (u, θ), φ being the normal density: 2^26 at 8, and 2^14 at 9. The largest draw is at 9.4.
   Sine and cosine come from tan θ/2 where that is faster (`dprecipe.noise.draws.turn`), in double precision too: the
   error of a draw, below 2^-48, moves the ends of an interval by less than 2^-27 of its length.

For the other families, `dprecipe.noise.draws` uses a u of as many bits, and so does
`dprecipe.training.steps.device_draws` on a GPU. Every interval contains a draw up to the limit in this table:

| family | limit | probability of a draw beyond it |
|---|---|---|
| laplace, sech | 29 scales | 2^-42 |
| variance_gamma | 29 scales | λ 2^-42 |
| cauchy | 2^20 scales | 2^-20 |
| student_t, by its radius | | 2^-38 for df = 9, 2^-21 for df = 1 |

Correlated noise z is the draw of a step plus weighted draws, or weighted noise, of earlier steps. All of z is added up
before x comes in, so 1 holds as it is. Given what came before, z is a draw that is moved, so 2 holds for intervals that
are moved.

Not covered: how long a draw takes, and how the sum was computed (`engine.clipped_sum` has the margins of a unit's
bound).

Source: Box and Muller 1958; I. Mironov, "On significance of the least significant bits for differential privacy",
CCS 2012.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import VECTORISED, draw_noise, turn
from dprecipe.noise.entropy import Stream
from dprecipe.noise.lattice import FINE, lattice_spacing
from dprecipe.training.engine.sizes import free_bytes
from dprecipe.training.steps.chacha import BLOCK, WORDS, Keystream
from dprecipe.training.steps.device_draws import draw_from

CHUNK = (1 << 16) - 32
"""Numbers processed at a time on a CPU: few enough that all buffers stay in the cache; their pairs use whole blocks of
the keystream."""
DEVICE_CHUNK = CHUNK << 6
"""Numbers of a chunk on a GPU, whose words follow those of the chunk before."""
MAX_TOGETHER = 32
"""The largest number of chunks that are made at once on a GPU, where memory allows."""
_SHARE = 16
"""The chunks made at once take at most one part in this many of the free memory."""
_BYTES = 24
"""Bytes of memory for each number, while its words are made."""
MIN_CHUNKS = 4
"""The smallest number of chunks for one thread."""
MIN_ON_DEVICE = 1 << 18
"""A GPU generates noise only from this count on: the kernels of a chunk take some milliseconds to start, whatever its
length, and a CPU draws this many numbers in two. An estimate; `benchmarks/gpu.py` measures it."""
_PAIR = 12
"""Bytes of the keystream for two normal draws."""
Doubles = NDArray[np.float64]
Scale = float | Doubles
Kept = Doubles | None
Vector = TypeVar("Vector", Tensor, Doubles)
NoiseAdder = Callable[[Tensor, float | Tensor], None]
"""Adds noise of a scale, one for all numbers or one for each, to a vector."""
Term = tuple[float, Stream]
"""A weight, and the stream of the standard normal draws that it multiplies."""


def add_noise(
    value_P: Tensor,
    distribution: Distribution,
    scale: float | Tensor,
    stream: Stream,
    *earlier: Term | Tensor,
) -> Tensor:
    """Adds noise of this distribution and scale (one for each number, where it is a tensor) to a float64 sum, in place.

    `value_P`: (P,) float64. `scale`: in the units of the sum; for Gaussian noise, its standard deviation. `earlier`:
    for Gaussian noise, what to add to the draws of `stream`: the draws of earlier sums of the same size, on the same
    kind of device, each drawn again; or instead one (P,) float64 on the sum's device, in scales, which all of this
    sum's noise, in scales, replaces.

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
    terms = [each for each in earlier if not isinstance(each, Tensor)]
    kept_P = next((each for each in earlier if isinstance(each, Tensor)), None)
    if isinstance(scale, Tensor) and size:
        for extreme in torch.stack(torch.aminmax(scale)).tolist():  # fetched together
            lattice_spacing(extreme)  # raises if it has no lattice
    with _LOCK:
        if device.type != "cpu":
            _add_on_device(value_P, distribution, scale, stream, device, terms, kept_P)
        else:
            scales = scale.numpy() if isinstance(scale, Tensor) else scale
            kept = None if kept_P is None else kept_P.numpy()
            _add_on_cpu(value_P.numpy(), distribution, scales, ((1.0, stream), *terms), kept)
    return original


def _add_on_cpu(
    value_P: Doubles, distribution: Distribution, scale: Scale, terms: Sequence[Term], kept_P: Kept
) -> None:
    size = len(value_P)
    chunks = math.ceil(size / CHUNK)
    threads = max(1, min(torch.get_num_threads(), chunks // MIN_CHUNKS))
    if distribution.family != "gaussian":
        ((_, stream),) = terms
        for part in _parts(size, CHUNK):
            value = value_P[part]
            _place(value, draw_noise(distribution, stream, len(value)), _scale_of(scale, part))
    elif threads == 1:
        _add_normal(value_P, scale, terms, kept_P, _cpu_buffer(min(CHUNK, size)))
    else:
        _add_in_threads(value_P, scale, terms, kept_P, [chunks * number // threads for number in range(threads + 1)])


def _add_in_threads(value_P: Doubles, scale: Scale, terms: Sequence[Term], kept_P: Kept, ends: Sequence[int]) -> None:
    """Adds noise with one thread for the chunks between two consecutive ends."""
    _buffers.extend(_CpuBuffer(CHUNK) for _ in range(len(ends) - 1 - len(_buffers)))
    blocks = [CHUNK // 2 * _PAIR // BLOCK * first for first in ends[:-1]]
    shared = [[(weight, part) for part in stream.share(blocks)] for weight, stream in terms]
    parts = [slice(CHUNK * first, CHUNK * last) for first, last in pairwise(ends)]
    values, scales = [value_P[part] for part in parts], [_scale_of(scale, part) for part in parts]
    kept = [None if kept_P is None else kept_P[part] for part in parts]
    with ThreadPoolExecutor(len(parts)) as threads:
        # as a list: it raises what a thread raised
        list(threads.map(_add_normal, values, scales, zip(*shared, strict=True), kept, _buffers))


def _add_normal(value_P: Doubles, scale: Scale, terms: Sequence[Term], kept_P: Kept, buffer: _CpuBuffer) -> None:
    ((_, stream), *earlier) = terms
    for part in _parts(len(value_P), CHUNK):
        value, scales = value_P[part], _scale_of(scale, part)
        # first: the next draws overwrite the buffer
        moved = _add_up(earlier, len(value), buffer) if kept_P is None else kept_P[part]
        cosine, sine = buffer.draw(stream, len(value))
        half = len(cosine)
        if moved is not None:
            cosine += moved[:half]
            sine += moved[half:]
            if kept_P is not None:
                moved[:half], moved[half:] = cosine, sine
        _place(value[:half], cosine, _scale_of(scales, slice(half)))
        _place(value[half:], sine, _scale_of(scales, slice(half, None)))


def _add_up(earlier: Sequence[Term], count: int, buffer: _CpuBuffer) -> Doubles | None:
    """Returns the weighted sum of the next draws of earlier steps; None where there are none."""
    if not earlier:
        return None
    moved = np.zeros(count)
    for weight, stream in earlier:
        moved += weight * np.concatenate(buffer.draw(stream, count))
    return moved


def _place(value: Doubles, draws: Doubles, scale: float | Doubles) -> None:
    """Replaces the value by value + scale × draws, rounded as by `onto_lattice`. The draws are overwritten: they stay
    in the cache, where the value need not be."""
    np.multiply(draws, scale, out=draws)
    np.add(value, draws, out=draws)
    shift = _shift(scale)
    np.add(draws, shift, out=draws)
    np.subtract(draws, shift, out=value)


def onto_lattice(value: Vector, scale: float | Vector) -> None:
    """Rounds each double to the nearest multiple of `lattice_spacing(scale)`, in place; zero becomes +0."""
    shift = _shift(scale)
    value += shift
    value -= shift


def _shift(scale: float | Vector) -> float | Vector:
    """Returns the number to add and subtract to round to the lattice: 1.5 × 2^52 spacings. Between 2^52 and 2^53
    spacings, doubles are exactly one spacing apart."""
    if isinstance(scale, (float, int)):
        return 1.5 * 2.0**52 * lattice_spacing(scale)
    bits = scale.view(torch.int64) if isinstance(scale, Tensor) else scale.view(np.int64)
    return (bits & _EXPONENT).view(scale.dtype) * (1.5 * 2.0 ** (52 - FINE))  # from the largest powers of two <= scale


_EXPONENT = 0x7FF << 52
"""The bits of a double's exponent."""


def _parts(size: int, chunk: int) -> Iterator[slice]:
    return (slice(start, start + chunk) for start in range(0, size, chunk))


def _scale_of(scale: float | Vector, part: slice) -> float | Vector:
    """Returns the scale of a part of the numbers."""
    return scale if isinstance(scale, (float, int)) else scale[part]


def _add_on_device(
    value_P: Tensor,
    distribution: Distribution,
    scale: float | Tensor,
    stream: Stream,
    device: torch.device,
    earlier: Sequence[Term] = (),
    kept_P: Tensor | None = None,
) -> None:
    size = value_P.numel()
    add = _device_adder(distribution, stream, device, size)
    again = [(weight, _device_adder(distribution, source, device, size)) for weight, source in earlier]
    together = _count_together(device) if distribution.family == "gaussian" and size > DEVICE_CHUNK else 1
    for part in _parts(size, together * DEVICE_CHUNK):
        value, scales = value_P[part], _scale_of(scale, part)
        if again or kept_P is not None:
            draws = torch.zeros_like(value) if kept_P is None else kept_P[part]
            for weight, add_again in (*again, (1.0, add)):
                add_again(draws, weight)
            _add(value, draws, scales)
        else:
            add(value, scales)
        onto_lattice(value, scales)


def _count_together(device: torch.device) -> int:
    """Returns the number of chunks of normal draws to make at once, to start fewer kernels. It changes no draw."""
    return max(1, min(MAX_TOGETHER, free_bytes(device) // _SHARE // (_BYTES * DEVICE_CHUNK)))


def _device_adder(distribution: Distribution, stream: Stream, device: torch.device, size: int) -> NoiseAdder:
    """Adds noise to `size` numbers on another device, at most `DEVICE_CHUNK` at a time, or several chunks of normal
    draws."""
    if size < MIN_ON_DEVICE:
        return _adder_of(lambda count: _copied(distribution, stream, count, device))
    if distribution.family == "gaussian":
        return _keystream_adder(stream, device)
    stream.share(())  # nothing else draws from it
    blocks = Keystream(stream.key, device)
    return _adder_of(lambda count: draw_from(distribution, blocks, count))


def _adder_of(draws: Callable[[int], Tensor]) -> NoiseAdder:
    """Adds scale × draws of scale 1; `draws` returns as many as requested."""

    def add(value: Tensor, scale: float | Tensor) -> None:
        _add(value, draws(value.numel()), scale)

    return add


def _add(value: Tensor, draws: Tensor, scale: float | Tensor) -> None:
    if isinstance(scale, Tensor):
        value.addcmul_(draws, scale)
    else:
        value.add_(draws, alpha=scale)


def _copied(distribution: Distribution, stream: Stream, count: int, device: torch.device) -> Tensor:
    """Draws of scale 1 from the CPU, not rounded: only their sum with a value is rounded to the lattice. Nothing waits
    for the device; torch does not reuse memory that is still being copied."""
    draws = torch.empty(count, dtype=torch.float64, pin_memory=device.type == "cuda")
    values = draws.numpy()
    for part in _parts(count, CHUNK):  # as on a CPU: families that reject draws take other words for other counts
        if distribution.family == "gaussian":
            np.concatenate(_cpu_buffer(min(CHUNK, count)).draw(stream, len(values[part])), out=values[part])
        else:
            values[part] = draw_noise(distribution, stream, len(values[part]))
    return draws.to(device, non_blocking=True)


@final
class _CpuBuffer:
    """Memory for the draws of a chunk. It is reused: fresh pages cost as much as writing to them."""

    def __init__(self, max_count: int) -> None:
        pairs = (max_count + 1) // 2
        self._bytes_B = np.empty(_PAIR * pairs, dtype=np.uint8)
        self._memory = np.empty((3, pairs))

    def draw(self, stream: Stream, count: int) -> tuple[Doubles, Doubles]:
        """Makes standard normal draws, first the cosines and then the sines: together `count`, valid until the next
        call."""
        pairs = (count + 1) // 2
        bytes_B = self._bytes_B[: _PAIR * pairs]
        stream.fill(bytes_B)
        radius, angle, spare = self._memory[:, :pairs]
        # ± u = (k + 1/2) 2^-63 for a k of 64 bits with its sign, and sqrt(-log u²).
        np.copyto(radius, bytes_B[: 8 * pairs].view("<i8"))
        np.multiply(radius, 2.0**-63, out=radius)
        np.add(radius, 2.0**-64, out=radius)
        np.multiply(radius, radius, out=radius)
        np.copyto(angle, bytes_B[8 * pairs :].view("<i4"))
        if VECTORISED:
            np.log(radius, out=radius)
            np.negative(radius, out=radius)
            np.sqrt(radius, out=radius)
            np.multiply(angle, math.pi * 2.0**-32, out=angle)
            turn(radius, angle, spare)
        else:
            _by_torch(*(torch.from_numpy(part) for part in (radius, angle, spare)))
        return radius, angle[: count // 2]


def _by_torch(square: Tensor, angle: Tensor, spare: Tensor) -> None:
    """Replaces u², and the θ that 32 bits select, by sqrt(-log u²) cos θ and sqrt(-log u²) sin θ."""
    square.log_().neg_().sqrt_()
    angle.mul_(2 * math.pi * 2.0**-32)
    torch.cos(angle, out=spare)
    angle.sin_().mul_(square)
    square.mul_(spare)


def _keystream_adder(stream: Stream, device: torch.device) -> NoiseAdder:
    """Adds scale × standard normal draws, from a keystream generated on the device, to a vector of some chunks; the
    last may be shorter. Each has the draws that it would have alone; all words are made together."""
    stream.share(())  # nothing else draws from it
    blocks = Keystream(stream.key, device)

    def add(value: Tensor, scale: float | Tensor) -> None:
        whole = value.numel() - value.numel() % DEVICE_CHUNK
        parts = [part for part in (slice(whole), slice(whole, None)) if value[part].numel()]
        shapes = [(max(1, value[part].numel() // DEVICE_CHUNK), -1) for part in parts]
        values = [value[part].view(shape) for part, shape in zip(parts, shapes, strict=True)]
        counts = [len(value_RV) * math.ceil(_PAIR * _count_pairs(value_RV) / BLOCK) for value_RV in values]
        words = torch.split(blocks.next(sum(counts)), [count * WORDS for count in counts])
        for value_RV, words_W, part in zip(values, words, parts, strict=True):
            scales = scale[part].view_as(value_RV) if isinstance(scale, Tensor) else scale
            _add_draws(value_RV, words_W.view(len(value_RV), -1), scales)

    return add


def _count_pairs(value_RV: Tensor) -> int:
    return (value_RV.shape[1] + 1) // 2


def _add_draws(value_RV: Tensor, words_RW: Tensor, scale: float | Tensor) -> None:
    pairs = _count_pairs(value_RV)
    radius, angle = words_RW[:, : 2 * pairs].view(torch.int64).double(), words_RW[:, 2 * pairs : 3 * pairs].double()
    # u = (k + 1/2) 2^-63. Its terms are numbers, not tensors: nothing is copied to the device, nor waited for.
    radius.add_(0.5).mul_(2.0**-63)
    radius.mul_(radius)
    _by_torch(radius, angle, torch.empty_like(radius))
    for part, draws in ((slice(pairs), radius), (slice(pairs, None), angle[:, : value_RV.shape[1] - pairs])):
        _add(value_RV[:, part], draws, scale[:, part] if isinstance(scale, Tensor) else scale)


_cpu_buffer = lru_cache(maxsize=2)(_CpuBuffer)
_buffers: list[_CpuBuffer] = []
"""One for each thread."""
_LOCK = threading.Lock()
"""Held while the memory is in use."""
