"""Noise that is added to sums: its distribution, its streams, its lattice. Keys are fixed; each bound is passed by
chance with the probability given."""

from __future__ import annotations

import math
import struct
import threading
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy.special import ndtr
from scipy.stats import binom
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dprecipe.noise import draws as draws_module
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import draw_noise
from dprecipe.noise.entropy import Stream
from dprecipe.noise.lattice import lattice_spacing
from dprecipe.training.steps import noise
from dprecipe.training.steps.noise import CHUNK, MIN_ON_DEVICE, add_noise, onto_lattice

GAUSSIAN = Distribution("gaussian")
DISTRIBUTIONS = [
    GAUSSIAN,
    Distribution("laplace"),
    Distribution("student_t", 9.0),
    Distribution("cauchy"),
    Distribution("variance_gamma", 2.0),
    Distribution("sech"),
]
COUNT = 1_000_001
SCALE = 0.37


def stream(name: str) -> Stream:
    return Stream(name.encode().ljust(32, b"."))


def added(
    value: Tensor, distribution: Distribution = GAUSSIAN, scale: float | Tensor = SCALE, name: str = "noise"
) -> Tensor:
    return add_noise(value.double().clone(), distribution, scale, stream(name))


@pytest.fixture(scope="module")
def draws() -> np.ndarray:
    return added(torch.zeros(COUNT)).numpy() / SCALE


def distance(draws: np.ndarray, distribution: Distribution) -> float:
    ordered, n = np.sort(draws), len(draws)
    below = distribution.cdf(ordered)
    return float(max(np.max(np.arange(1, n + 1) / n - below), np.max(below - np.arange(n) / n)))


def test_the_distribution_is_the_normal_one(draws: np.ndarray) -> None:
    """Kolmogorov–Smirnov over a million draws: 1e-9."""
    assert distance(draws, GAUSSIAN) < math.sqrt(math.log(2 / 1e-9) / 2 / COUNT)


def test_mean_variance_and_fourth_moment(draws: np.ndarray) -> None:
    """Six standard errors each: 2e-9."""
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((draws**power).mean() - moment) < 6 * math.sqrt(spread / COUNT), power


@pytest.mark.parametrize("level", [1.0, 2.0, 3.0, 4.0, 4.5, 5.0])
def test_both_tails(draws: np.ndarray, level: float) -> None:
    """Counts are binomial: out of bounds with probability 1e-9 each. Beyond 4 there are about 32, beyond 5 0.3."""
    low, high = binom.ppf([5e-10, 1 - 5e-10], COUNT, ndtr(-level))
    for side in (draws, -draws):
        assert low <= np.count_nonzero(side > level) <= high


def test_the_two_halves_of_a_pair_are_independent() -> None:
    """Of radius and angle: correlations of the draws, their squares and their sizes; and P(both > 1), which one radius
    would make larger. Six standard errors each, 2e-9."""
    both = added(torch.zeros(COUNT - COUNT % CHUNK)).view(-1, 2, CHUNK // 2) / SCALE
    one, other = both[:, 0].reshape(-1), both[:, 1].reshape(-1)
    n = len(one)
    assert abs(float((one * other).mean())) < 6 / math.sqrt(n)
    assert abs(float(((one**2 - 1) * (other**2 - 1)).mean())) < 6 * 2 / math.sqrt(n)
    assert abs(float(((one**2 - 1) * other).mean())) < 6 * math.sqrt(2 / n)
    mean = math.sqrt(2 / math.pi)
    assert abs(float(((one.abs() - mean) * (other.abs() - mean)).mean())) < 6 * (1 - mean**2) / math.sqrt(n)
    tail = (2 * ndtr(-1.0)) ** 2
    assert abs(float(((one.abs() > 1) & (other.abs() > 1)).double().mean()) - tail) < 6 * math.sqrt(tail / n)


def test_no_draw_tells_of_another(draws: np.ndarray) -> None:
    """Neighbours, the other half, and the next chunk, whose buffers are the same: six standard errors, 2e-9."""
    for lag in (1, 2, CHUNK // 2, CHUNK):
        assert abs(np.mean(draws[:-lag] * draws[lag:])) < 6 / math.sqrt(COUNT - lag)
        assert abs(np.mean((draws[:-lag] ** 2 - 1) * (draws[lag:] ** 2 - 1))) < 6 * 2 / math.sqrt(COUNT - lag)


class FromWords:
    """In place of a stream: given words of 32 bits."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = words

    def fill(self, out_B: np.ndarray) -> None:
        out_B[:] = self.words.view(np.uint8)


def drawn_of(words: np.ndarray, count: int) -> np.ndarray:
    return np.concatenate(noise._CpuBuffer(count).draw(FromWords(words), count))  # type: ignore[arg-type]


@pytest.fixture(params=[True, False])
def by_tangent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to draw, whichever of them this machine uses."""
    monkeypatch.setattr(noise, "VECTORISED", request.param)
    monkeypatch.setattr(draws_module, "VECTORISED", request.param)


def test_every_word_of_the_stream_is_used_for_one_pair_and_no_other() -> None:
    """So that pairs are as independent as the words are."""
    count = 23
    pairs = (count + 1) // 2
    words = stream("words").words(3 * pairs // 2).view(np.int32).copy()
    before = drawn_of(words, count)
    moved: list[set[int]] = []
    for number in range(3 * pairs):
        changed = words.copy()
        changed[number] ^= 0x155555  # no bit that only is a sign
        moved.append(set(np.flatnonzero(drawn_of(changed, count) != before).tolist()))
    of_pair = [{pair, pairs + pair} & set(range(count)) for pair in range(pairs)]
    assert moved == [of_pair[number // 2] for number in range(2 * pairs)] + of_pair


def exact(k: int, angle: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The pair of normal draws of two words, in 60 digits."""
    with mpmath.workdps(60):
        u = abs(mpmath.mpf(k) + 0.5) / 2**63
        radius, theta = mpmath.sqrt(-2 * mpmath.log(u)), 2 * mpmath.pi * angle / 2**32
        return radius * mpmath.cos(theta), radius * mpmath.sin(theta)


@pytest.mark.usefixtures("by_tangent")
def test_draws_are_those_of_the_formula() -> None:
    """At random words and at the ends of both, in 60 digits. The error is below 2^-48, and where u is so near 1 that
    doubles round it, the radius R has the error of R²: at most 2^-51 / R."""
    random = stream("formula").words(400)
    ends = [0, 1, -1, 2, 2**62, 2**63 - 1, -(2**63), 2**63 - 2**10, 2**63 - 2**40, 1 - 2**63]
    turns = [0, 1, -1, 2**30, 2**30 - 1, -(2**30), 2**31 - 1, -(2**31), 1 - 2**31, 3 << 29]
    large = np.array([*ends, *(k for k in ends for _ in turns), *random[:200].view(np.int64)], dtype=np.int64)
    small = np.array([*turns, *(turns * len(ends)), *random[200:].view(np.int64) >> 32], dtype=np.int32)
    pairs = len(large)
    found = drawn_of(np.concatenate([large.view(np.int32), small]), 2 * pairs)
    for place, words in enumerate(zip(large.tolist(), small.tolist(), strict=True)):
        cosine, sine = exact(*words)
        error = 2.0**-48 + 2.0**-51 / mpmath.hypot(cosine, sine)
        assert abs(found[place] - cosine) < error, words
        assert abs(found[pairs + place] - sine) < error, words


@pytest.mark.usefixtures("by_tangent")
def test_known_answers() -> None:
    """Each number is the multiple of the spacing next to the sum plus the noise of the key's ChaCha20 keystream, which
    another implementation computes here; where two multiples are as near as 1e-9 spacings, either."""
    count, key, spacing = 41, b"key of the known answers: 32 B..", lattice_spacing(SCALE)
    start = torch.linspace(-3, 1 / 3, count, dtype=torch.float64)
    found = add_noise(start.clone(), GAUSSIAN, SCALE, Stream(key))
    stream_B = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(12 * 21))
    pairs = zip(struct.unpack("<21q", stream_B[:168]), struct.unpack("<21i", stream_B[168:]), strict=True)
    cosines, sines = zip(*(exact(*pair) for pair in pairs), strict=True)
    for value, given, draw in zip(found.tolist(), start.tolist(), (*cosines, *sines)[:count], strict=True):
        steps = (given + SCALE * draw) / spacing
        assert abs(value / spacing - steps) < 0.5 + 1e-9
        assert value / spacing == round(value / spacing)


@pytest.mark.parametrize("count", [0, 1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
@pytest.mark.parametrize(
    "distribution", [GAUSSIAN, Distribution("laplace")], ids=lambda distribution: distribution.family
)
def test_any_count(distribution: Distribution, count: int) -> None:
    """Every number is moved, also the last one of an odd count; a draw is 0 on the lattice with probability 4e-7."""
    value = torch.full((count,), 5.0, dtype=torch.float64)
    result = add_noise(value, distribution, SCALE, stream(f"{count}"))
    assert result is value
    assert result.shape == (count,)
    assert bool(torch.isfinite(result).all())
    assert not bool((result[-3:] == 5.0).any())


@pytest.mark.parametrize("threads", [2, 3, 64])
@pytest.mark.parametrize("count", [8 * CHUNK, 13 * CHUNK + 5, 12 * CHUNK - 1])
@pytest.mark.parametrize("each", [False, True])
def test_threads_change_no_number(threads: int, count: int, each: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And they do share the work."""
    scale = torch.linspace(0.5, 2.0, count, dtype=torch.float64) if each else SCALE
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    expected = add_noise(torch.zeros(count, dtype=torch.float64), GAUSSIAN, scale, stream("threads"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    workers: set[int] = set()
    real = noise._add_normal
    monkeypatch.setattr(noise, "_add_normal", lambda *given: (workers.add(threading.get_ident()), real(*given)))
    result = add_noise(torch.zeros(count, dtype=torch.float64), GAUSSIAN, scale, stream("threads"))
    assert torch.equal(result, expected)
    assert threading.get_ident() not in workers


def test_what_a_thread_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(noise, "_place", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        add_noise(torch.zeros(8 * CHUNK, dtype=torch.float64), GAUSSIAN, SCALE, stream("none"))
    monkeypatch.undo()
    add_noise(torch.zeros(3, dtype=torch.float64), GAUSSIAN, SCALE, stream("none"))  # the lock is free again


@pytest.mark.parametrize("count", [5, 8 * CHUNK])
def test_in_any_mode(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    noise._cpu_buffer.cache_clear()
    noise._buffers.clear()
    expected = add_noise(torch.zeros(count, dtype=torch.float64), GAUSSIAN, SCALE, stream("mode"))
    with torch.no_grad():
        value = torch.zeros(count, dtype=torch.float64, requires_grad=True)
        assert torch.equal(add_noise(value, GAUSSIAN, SCALE, stream("mode")), expected)
    noise._cpu_buffer.cache_clear()
    with torch.inference_mode():
        add_noise(torch.zeros(5, dtype=torch.float64), GAUSSIAN, SCALE, stream("mode"))
    assert torch.equal(add_noise(torch.zeros(count, dtype=torch.float64), GAUSSIAN, SCALE, stream("mode")), expected)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda distribution: distribution.family)
def test_every_family_has_its_distribution_and_its_scale(distribution: Distribution) -> None:
    """Kolmogorov–Smirnov over 100,000 draws: 1e-9."""
    values = (added(torch.full((100_000,), 3.0), distribution, SCALE, distribution.family) - 3.0).numpy() / SCALE
    assert distance(values, distribution) < math.sqrt(math.log(2 / 1e-9) / 2 / len(values))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda distribution: distribution.family)
@pytest.mark.parametrize("scale", [1e-12, 0.37, 1.0, 3e5])
def test_results_of_two_sums_are_on_one_lattice(distribution: Distribution, scale: float) -> None:
    """And of no coarser one: the last three bits of their numbers are evenly spread. Six standard errors each: 2e-9."""
    step = lattice_spacing(scale)
    assert 2.0**-21 < step / scale <= 2.0**-20
    for value in (torch.zeros(40_000), torch.linspace(-3, 1 / 3, 40_000) * scale, torch.full((40_000,), 0.1 * scale)):
        steps = added(value, distribution, scale) / step
        assert torch.equal(steps, steps.round())
        near = steps[steps.abs() < 2**50].long()
        classes = np.bincount((near % 8).numpy(), minlength=8) / len(near)
        assert np.abs(classes - 1 / 8).max() < 6 * math.sqrt(7 / 64 / len(near))


def test_the_attack_of_the_lowest_bits_fails() -> None:
    """Of two sums, 0 and 2^-30 of the scale more, all that a result can be is the same: with one stream the results
    are equal, but where the difference is just what passes the middle between two points of the lattice.

    Without the lattice nearly all differ. Of 100,000, about 100 pass the middle (2^-30 over at least 2^-21, doubled):
    twice as many with probability 1e-9.
    """
    one, other = (added(torch.full((100_000,), start)) for start in (0.0, 2.0**-30 * SCALE))
    differ = one != other
    assert 0 < int(differ.sum()) < 400
    assert torch.equal((other - one)[differ], torch.full_like(one[differ], lattice_spacing(SCALE)))


def test_a_sum_moved_by_steps_of_the_lattice_moves_the_result_by_as_many() -> None:
    steps = torch.randint(-1000, 1000, (50_000,), generator=torch.Generator().manual_seed(0)).double()
    one, other = added(torch.zeros(50_000)), added(steps * lattice_spacing(SCALE))
    assert torch.equal(other, one + steps * lattice_spacing(SCALE))


def test_onto_the_lattice_is_to_the_nearest_and_zero_has_no_sign() -> None:
    step = lattice_spacing(1.0)
    value = torch.tensor([0.0, -0.0, 0.49, -0.49, 0.51, -0.51, 1.0, -7.3, 2.0**50 + 0.3], dtype=torch.float64) * step
    onto_lattice(value, 1.0)
    assert (value / step).tolist() == [0, 0, 0, 0, 1, -1, 1, -7, 2.0**50]
    assert not bool(torch.signbit(value[:4]).any())


def test_a_large_sum_keeps_its_noise() -> None:
    """A million units of 100 scales each: the variance of 100,000 draws within six standard errors, 2e-9."""
    value = torch.full((100_000,), 1e8 * SCALE, dtype=torch.float64)
    drawn = (added(value) - value) / SCALE
    assert abs(float(drawn.var()) - 1) < 6 * math.sqrt(2 / 100_000)
    steps = added(value) / lattice_spacing(SCALE)
    assert torch.equal(steps, steps.round())


def test_each_coordinate_has_its_own_scale() -> None:
    """Two layers, and one number after them, over several chunks: the distribution of each, at 1e-9."""
    scale = torch.cat((torch.full((150_000,), 0.2), torch.full((100_001,), 5.0), torch.full((1,), 300.0))).double()
    result = added(torch.ones(250_002), GAUSSIAN, scale)
    for part, size in ((slice(0, 150_000), 0.2), (slice(150_000, 250_001), 5.0)):
        drawn = ((result[part] - 1.0) / size).numpy()
        assert distance(drawn, GAUSSIAN) < math.sqrt(math.log(2 / 1e-9) / 2 / len(drawn))
        steps = result[part] / lattice_spacing(size)
        assert torch.equal(steps, steps.round())


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda distribution: distribution.family)
def test_each_coordinate_has_the_lattice_of_its_own_scale(distribution: Distribution) -> None:
    """A lattice of a far smaller scale has points between the draws: then two sums tell themselves apart."""
    scales = (1e-6, 2.0, 37.0, math.nextafter(64.0, 0), 64.0)
    scale = torch.tensor(scales, dtype=torch.float64).repeat_interleave(1000)
    result = added(torch.linspace(-3, 1 / 3, 5000), distribution, scale).view(5, 1000)
    for part, size in zip(result, scales, strict=True):
        steps = part / lattice_spacing(size)
        assert torch.equal(steps, steps.round())


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, 1e-300])
def test_what_is_no_scale_of_a_coordinate(wrong: float) -> None:
    with pytest.raises(ValueError, match="positive scale"):
        add_noise(torch.zeros(3).double(), GAUSSIAN, torch.tensor([1.0, wrong, 1.0]).double(), stream("none"))


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e-300])
def test_what_is_no_scale(scale: float) -> None:
    with pytest.raises(ValueError, match="positive scale"):
        add_noise(torch.zeros(3, dtype=torch.float64), GAUSSIAN, scale, stream("none"))


@pytest.mark.parametrize("count", [1, 7, 1000, CHUNK - 1, CHUNK])
def test_a_device_s_own_keystream_makes_the_same_noise(count: int) -> None:
    """What runs on CUDA, run here: the draws of a chunk are those of the CPU, number by number, up to rounding."""
    device = torch.device("cpu")
    expected = np.concatenate(noise._CpuBuffer(count).draw(stream("device"), count))
    result, given = torch.zeros(count, dtype=torch.float64), stream("device")
    noise._keystream_adder(given, device)(result, 1.0)
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=2.0**-47)
    with pytest.raises(ValueError, match="was shared"):
        given.words(1)
    with pytest.raises(ValueError, match="only before anything"):
        noise._keystream_adder(given, device)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda distribution: distribution.family)
@pytest.mark.parametrize("count", [1, 2, 7, CHUNK + 1, MIN_ON_DEVICE - 1])
def test_noise_of_few_numbers_is_the_cpu_s_copied(distribution: Distribution, count: int) -> None:
    """What a sum on CUDA gets, made here: for few numbers the draws of the CPU, to which nothing was done."""
    expected = torch.zeros(count, dtype=torch.float64)
    given = stream("few")
    for part in torch.split(expected, CHUNK):
        if distribution.family == "gaussian":
            part += torch.from_numpy(np.concatenate(noise._CpuBuffer(CHUNK).draw(given, len(part))))
        else:
            part += torch.from_numpy(draw_noise(distribution, given, len(part)))
    result, given = torch.zeros(count, dtype=torch.float64), stream("few")
    noise._device_adder(distribution, given, torch.device("cpu"), count)(result, 1.0)
    assert torch.equal(result, expected)
    with pytest.raises(ValueError, match="only before anything"):
        given.share(())  # the device draws nothing more from it
    scale = torch.linspace(0.5, 2.0, count, dtype=torch.float64)
    each = torch.zeros(count, dtype=torch.float64)
    noise._device_adder(distribution, stream("few"), torch.device("cpu"), count)(each, scale)
    torch.testing.assert_close(each, expected * scale, rtol=1e-15, atol=0)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda distribution: distribution.family)
def test_noise_of_many_numbers_is_made_on_the_device(
    distribution: Distribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a count from `MIN_ON_DEVICE` on, whatever the numbers are; its stream is nobody else's then."""
    monkeypatch.setattr(noise, "_copied", lambda *given: pytest.fail("drawn on the CPU"))
    for start in (0.0, math.nan):
        value, given = torch.full((MIN_ON_DEVICE,), start, dtype=torch.float64), stream("many")
        noise._add_on_device(value, distribution, SCALE, given, torch.device("cpu"))
        with pytest.raises(ValueError, match="was shared"):
            given.words(1)
        if start == 0.0:
            steps = value / lattice_spacing(SCALE)
            assert torch.equal(steps, steps.round())
            assert distance(value.numpy() / SCALE, distribution) < math.sqrt(math.log(2 / 1e-9) / 2 / len(value))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda distribution: distribution.family)
@pytest.mark.parametrize("count", [1, 1000, MIN_ON_DEVICE])
def test_a_sum_device_adder_is_noised_onto_the_lattice_of_the_cpu(
    distribution: Distribution, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`add_noise` as for a sum on CUDA: the numbers are those of the CPU, but for a few that round to a neighbour."""

    class Elsewhere(Tensor):
        @property
        def device(self) -> torch.device:
            return torch.device("meta")

        def detach(self) -> Tensor:
            return self

    real = noise._device_adder
    asked = []
    monkeypatch.setattr(
        noise,
        "_device_adder",
        lambda distribution, stream, device, size: (
            asked.append(device.type) or real(distribution, stream, torch.device("cpu"), size)
        ),
    )
    start = torch.linspace(-3, 1 / 3, count, dtype=torch.float64)
    value = start.clone().as_subclass(Elsewhere)
    result = add_noise(value, distribution, SCALE, stream("both")).as_subclass(Tensor)
    assert asked == ["meta"]
    steps = result / lattice_spacing(SCALE)
    assert torch.equal(steps, steps.round())
    if count < MIN_ON_DEVICE:
        apart = (result - add_noise(start, distribution, SCALE, stream("both"))).abs() / lattice_spacing(SCALE)
        assert float(apart.max()) <= 1
        assert int((apart > 0).sum()) <= 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_noise_on_cuda_is_made_there() -> None:
    """Kolmogorov–Smirnov over a million draws: 1e-9. And the lattice."""
    result = add_noise(torch.zeros(COUNT, dtype=torch.float64, device="cuda"), GAUSSIAN, SCALE, stream("noise"))
    assert result.device.type == "cuda"
    drawn = result.cpu().numpy()
    assert distance(drawn / SCALE, GAUSSIAN) < math.sqrt(math.log(2 / 1e-9) / 2 / COUNT)
    steps = drawn / lattice_spacing(SCALE)
    assert np.array_equal(steps, np.round(steps))


class Crossings(TorchDispatchMode):
    """Counts what a device would be asked to do, and what it would be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        places = {tensor.device.type for tensor in pytree.tree_leaves((args, result)) if isinstance(tensor, Tensor)}
        copies = func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_)
        if "meta" in places:
            self.operations += not func.is_view
            fetches = func is torch.ops.aten._local_scalar_dense.default or (copies and "cpu" in places)
            if fetches and not (kwargs or {}).get("non_blocking") and True not in args:
                self.waits.append(str(func))
        return result


@pytest.mark.parametrize(("count", "most"), [(MIN_ON_DEVICE, 460), (2_750_000, 460), (100_000_000, 1_500)])
def test_noise_on_a_device_starts_few_kernels_and_waits_for_none(
    count: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device of shapes alone. What crosses to it is carried as to a GPU: from pinned memory, without waiting."""
    carried: list[int] = []

    def carry(tensor: Tensor, device: torch.device) -> Tensor:
        carried.append(tensor.numel())
        return tensor.to(device, non_blocking=True)

    monkeypatch.setattr("dprecipe.training.steps.chacha.carry_to_device", carry)
    monkeypatch.setattr(noise, "free_bytes", lambda device: 40 << 30)
    value = torch.empty(count, dtype=torch.float64, device="meta")
    with Crossings() as seen:
        add_noise(value, GAUSSIAN, SCALE, stream("shapes"))
    assert not seen.waits
    assert len(carried) == 1
    assert seen.operations <= most


@pytest.mark.parametrize("distribution", [GAUSSIAN, Distribution("laplace")], ids=lambda each: each.family)
@pytest.mark.parametrize("each", [False, True])
def test_how_many_chunks_are_made_together_changes_no_number(
    distribution: Distribution, each: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "DEVICE_CHUNK", chunk := 2 * CHUNK)
    for count in (MIN_ON_DEVICE, 6 * chunk, 7 * chunk + 3):
        scale = torch.linspace(0.5, 2.0, count, dtype=torch.float64) if each else SCALE
        results = []
        for free in (0, 3 * noise._SHARE * noise._BYTES * chunk, 1 << 50):
            monkeypatch.setattr(noise, "free_bytes", lambda device, free=free: free)
            value = torch.linspace(-3, 1 / 3, count, dtype=torch.float64)
            noise._add_on_device(value, distribution, scale, stream("together"), torch.device("cpu"))
            results.append(value)
        assert all(torch.equal(results[0], other) for other in results[1:])
        expected = torch.linspace(-3, 1 / 3, count, dtype=torch.float64)
        given = stream("together")
        add = noise._device_adder(distribution, given, torch.device("cpu"), count)
        for start in range(0, count, chunk):
            part = slice(start, start + chunk)
            add(expected[part], noise._scale_of(scale, part))
        onto_lattice(expected, scale)
        assert torch.equal(results[0], expected)


@pytest.mark.parametrize("count", [7, 9 * CHUNK + 3])
@pytest.mark.parametrize("by_number", [False, True])
def test_draws_of_an_earlier_sum_are_added_to_those_of_this_one(
    count: int, by_number: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same ones that were added then, with their weight, at the scale of this sum; with one thread or several."""
    scale = torch.linspace(0.1, 3.0, count, dtype=torch.float64) if by_number else SCALE
    before, now = (added(torch.zeros(count), scale=1.0, name=name) for name in ("before", "now"))
    results = []
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        value = torch.full((count,), 5.0, dtype=torch.float64)
        results.append(add_noise(value, GAUSSIAN, scale, stream("now"), (-0.7, stream("before"))))
    assert torch.equal(*results)
    assert torch.allclose((results[0] - 5.0) / scale, now - 0.7 * before, rtol=0, atol=3e-6)


@pytest.mark.parametrize("count", [7, MIN_ON_DEVICE + 5])
def test_a_device_adds_draws_of_an_earlier_sum_to_those_of_this_one(count: int) -> None:
    cpu, zeros = torch.device("cpu"), torch.zeros(count, dtype=torch.float64)
    before, now, both = zeros.clone(), zeros.clone(), zeros.clone()
    noise._add_on_device(before, GAUSSIAN, 1.0, stream("before"), cpu)
    noise._add_on_device(now, GAUSSIAN, 1.0, stream("now"), cpu)
    noise._add_on_device(both, GAUSSIAN, SCALE, stream("now"), cpu, [(-0.7, stream("before"))])
    assert torch.allclose(both / SCALE, now - 0.7 * before, rtol=0, atol=3e-6)
    assert (both / lattice_spacing(SCALE) % 1 == 0).all()


@pytest.mark.parametrize("count", [7, CHUNK * 2 * noise.MIN_CHUNKS + 11])
@pytest.mark.parametrize("by_number", [False, True])
def test_noise_that_was_kept_is_added_and_replaced_by_all_of_the_noise(
    count: int, by_number: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with one thread or several: the sum plus the scale times kept noise and draws; what is kept is exact."""
    scale = torch.linspace(0.1, 3.0, count, dtype=torch.float64) if by_number else SCALE
    before, now = torch.linspace(-2, 2, count, dtype=torch.float64), added(torch.zeros(count), scale=1.0, name="now")
    results = []
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        value, kept = torch.full((count,), 5.0, dtype=torch.float64), before.clone()
        results += [add_noise(value, GAUSSIAN, scale, stream("now"), kept), kept]
        assert torch.allclose(kept, before + now, rtol=0, atol=1e-6)
        assert torch.allclose(value, 5.0 + scale * kept, rtol=0, atol=3e-6)
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])


@pytest.mark.parametrize("count", [7, MIN_ON_DEVICE + 5])
def test_a_device_keeps_all_of_the_noise(count: int) -> None:
    cpu, zeros = torch.device("cpu"), torch.zeros(count, dtype=torch.float64)
    now, both, kept = zeros.clone(), zeros.clone(), torch.linspace(-2, 2, count, dtype=torch.float64)
    before = kept.clone()
    noise._add_on_device(now, GAUSSIAN, 1.0, stream("now"), cpu)
    noise._add_on_device(both, GAUSSIAN, SCALE, stream("now"), cpu, (), kept)
    assert torch.allclose(kept, before + now, rtol=0, atol=3e-6)
    assert torch.allclose(both, SCALE * kept, rtol=0, atol=3e-6)
    assert (both / lattice_spacing(SCALE) % 1 == 0).all()
