"""Encoded sums against a loop that does what the paper says, and against every gradient that could leave the box."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from torch import Tensor, nn

from dprecipe.mechanisms.encoded import codebook
from dprecipe.mechanisms.encoded.train import encoded_sum as engine
from dprecipe.mechanisms.encoded.train import ranks
from dprecipe.mechanisms.encoded.train.encoded_sum import Encoder, encoded_sum
from dprecipe.mechanisms.encoded.train.ranks import CELLS, MAX_SORTED, SHIFT, spread_ranks
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.training.engine.clipped_sum import BatchPart, per_record_gradients
from dprecipe.training.program.losses import cross_entropy

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "encoding.json").read_text(encoding="utf-8"))["A_encode"]
CPU = torch.device("cpu")


@dataclass
class Steps:
    """A group whose codewords have one level for each rank."""

    start: int
    size: int
    levels: NDArray[np.float64]

    @property
    def ranks(self) -> NDArray[np.int64]:
        return np.arange(self.size)


@dataclass
class Book:
    groups: Sequence[engine.RankGroup]


def book_of(codewords: list[list[float]]) -> Book:
    """One group; magnitudes, sorted, of norm 1."""
    levels = np.sort(np.abs(np.array(codewords, dtype=np.float64)), axis=1)
    return Book([Steps(0, levels.shape[1], levels / np.linalg.norm(levels, axis=1, keepdims=True))])


def encoder_of(book: engine.CodebookLike, norm: float = 1.0, *, counted: bool = False) -> Encoder:
    """`counted`: rank by counting, as large groups do."""
    with mock.patch.object(engine, "MAX_SORTED", 0 if counted else 1 << 60):
        return Encoder(book, norm, CPU)


def by_rank(group: engine.RankGroup) -> NDArray[np.float64]:
    """(n, D): the bound at each rank."""
    return np.repeat(group.levels, np.diff(np.append(group.ranks, group.size)), axis=1)


def by_loop(book: engine.CodebookLike, norm: float, gradients: Tensor) -> NDArray[np.float64]:
    """Gradient by gradient: sort, choose by cosine similarity, clip by rank."""
    encoded = np.zeros(gradients.shape)
    for index, gradient in enumerate(gradients.double().numpy()):
        parts = [(group, gradient[group.start : group.start + group.size], by_rank(group)) for group in book.groups]
        chosen = int(np.argmax(sum(levels @ np.sort(np.abs(part)) for _, part, levels in parts)))
        for group, part, levels in parts:
            order = np.argsort(np.abs(part), kind="stable")
            bounds = norm * levels[chosen]
            clipped = np.sign(part[order]) * np.minimum(np.abs(part[order]), bounds)
            encoded[index, group.start + order] = clipped
    return encoded


def assert_boxed(book: engine.CodebookLike, norm: float, gradients: Tensor, encoded: Tensor) -> None:
    """Every gradient is clipped, and lies in the box of one codeword in all groups, without any tolerance."""
    rows = encoded.numpy()
    assert np.isfinite(rows).all()
    finite = torch.isfinite(gradients).all(1).numpy()
    assert (rows[~finite] == 0).all()
    originals = gradients.double().numpy()[finite]
    assert (np.abs(rows[finite]) <= np.abs(originals)).all()
    assert (rows[finite] * np.sign(originals) >= 0).all()
    inside = np.ones((len(rows), len(book.groups[0].levels)), dtype=bool)
    for group in book.groups:
        ranked = np.sort(np.abs(rows[:, group.start : group.start + group.size]), axis=1)
        for word, bounds in enumerate(by_rank(group)):
            inside[:, word] &= (ranked <= norm * bounds).all(axis=1)
    assert inside.any(axis=1).all()
    for row in rows:
        assert math.sqrt(math.fsum(value * value for value in row.tolist())) <= norm


def similarity(encoded: Tensor, gradients: Tensor) -> Tensor:
    return (encoded * gradients.double()).sum(1)


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: str(row["gradient"]))
def test_golden(row: dict[str, list[float]]) -> None:
    words = row["codebook"] if "codebook" in row else [row["codeword"]]
    norm = float(np.linalg.norm(words[int(row.get("chosen", 0))]))  # type: ignore[call-overload]
    encoded = encoder_of(book_of(words), norm).encode(torch.tensor([row["gradient"]], dtype=torch.float32))[0]
    # Bounds are float32, rounded down; the gradient is float32.
    np.testing.assert_allclose(encoded.numpy(), row["encoded"], rtol=1.3e-7, atol=0)
    assert (encoded.abs().sort().values.numpy() <= np.sort(np.abs(words[int(row.get("chosen", 0))]))).all()  # type: ignore[call-overload]


SIZES = [(1,), (7,), (300,), (5, 300, 1, 40)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("words", [1, 20])
@pytest.mark.parametrize("norm", [1e-3, 1.0, 50.0])
def test_equals_a_loop_over_gradients(sizes: tuple[int, ...], words: int, norm: float) -> None:
    book = codebook.draw_gaussian_codebook(sizes, words, 1e-5, 3)
    gradients = torch.randn(40, sum(sizes), generator=torch.Generator().manual_seed(0)) ** 3
    gradients[::3] = torch.round(gradients[::3])  # ties and zeros
    encoded = encoder_of(book, norm).encode(gradients)
    np.testing.assert_allclose(encoded.numpy(), by_loop(book, norm, gradients), rtol=1.3e-7)
    assert_boxed(book, norm, gradients, encoded)


def test_chooses_one_codeword_over_all_groups() -> None:
    """The first group alone would choose the first codeword, the second, which weighs more, the second."""
    book = Book([Steps(0, 2, np.array([[0.6, 0.6], [0.0, 0.6]])), Steps(2, 2, np.array([[0.0, 0.52], [0.5, 0.6]]))])
    gradients = torch.tensor([[1.0, 1.0, 9.0, 9.0], [1.0, 1.0, 0.0, 0.1]])
    for counted in (False, True):
        encoded = encoder_of(book, counted=counted).encode(gradients)
        assert encoded[1].tolist() == pytest.approx([0.6, 0.6, 0.0, 0.1], abs=1e-7)
        # Counting may rank equal magnitudes either way.
        assert encoded[0, :2].sort().values.tolist() == pytest.approx([0.0, 0.6], abs=1e-7)
        assert encoded[0, 2:].sort().values.tolist() == pytest.approx([0.5, 0.6], abs=1e-7)


SHAPES = {"flat": np.ones(5000), "steep": np.arange(5000.0) ** 12, "gaussian": np.sort(np.abs(np.sin(np.arange(5000))))}


@pytest.mark.parametrize("scale", [1e-30, 1.0, 3.4028234663852886e38])
@pytest.mark.parametrize("counted", [False, True])
def test_chooses_the_nearest_codeword_at_every_scale(scale: float, counted: bool) -> None:
    """Far outside the boxes, a code is its whole codeword."""
    book = codebook.fit_codebook(np.stack(list(SHAPES.values())), (5000,))
    shuffled = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
    gradients = torch.stack([torch.from_numpy(shape / shape.max()).float()[shuffled] for shape in SHAPES.values()])
    norm = 1e-3 * scale
    encoded = encoder_of(book, norm, counted=counted).encode(gradients * scale).abs().sort().values.numpy() / norm
    words = by_rank(book.groups[0])
    for word, code in enumerate(encoded):
        assert float(np.linalg.norm(code - words[word])) < 0.15
        assert np.argmin(np.linalg.norm(code - words, axis=1)) == word


def random_gradients(count: int, size: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(7)
    normal = torch.randn(count, size, generator=random)
    signs = torch.sign(torch.randn(count, size, generator=random))
    features = torch.round(torch.rand(count, size // 10, generator=random))
    classes = torch.softmax(torch.randn(10, generator=random), 0)
    return {
        "gaussian": normal,
        "heavy tails": normal**3,
        "equal": 0.3 * signs,
        "0/1 features": (torch.rand(count, size, generator=random) < 0.4).float(),
        "few values": torch.round(normal),
        "ten classes of 0/1 features": (features[:, :, None] * classes).flatten(1),
    }


@pytest.mark.parametrize("kind", random_gradients(1, 10))
@pytest.mark.parametrize("share", [0.3, 1.0, 10.0])
def test_counting_keeps_nearly_what_sorting_keeps(kind: str, share: float) -> None:
    """Also of magnitudes that tie: without their spread, equal ones would all get the lowest bound, zero."""
    size = 20_000
    gradients = random_gradients(6, size)[kind]
    book = codebook.draw_gaussian_codebook((size,), 5, 1e-5, 0)
    norm = float(gradients.double().norm(dim=1).mean()) / share
    counted = encoder_of(book, norm, counted=True).encode(gradients)
    kept = similarity(counted, gradients) / similarity(encoder_of(book, norm).encode(gradients), gradients)
    assert float(kept.min()) > (0.985 if kind in ("gaussian", "heavy tails") else 0.96)
    assert float(kept.max()) < 1.0 + 1e-6
    assert_boxed(book, norm, gradients, counted)


@pytest.mark.parametrize("size", [5000, 20_000])
def test_counting_is_near_sorting_coordinate_by_coordinate(size: int) -> None:
    gradients = random_gradients(4, size)["gaussian"]
    book = codebook.draw_gaussian_codebook((size,), 1, 1e-5, 0)
    exact, counted = (
        encoder_of(book, math.sqrt(size) / 2, counted=counted).encode(gradients) for counted in (False, True)
    )
    assert float((exact - counted).norm() / exact.norm()) < 0.03


def test_one_huge_coordinate_costs_the_others_next_to_nothing() -> None:
    size = 20_000
    gradients = random_gradients(3, size)["gaussian"]
    book = codebook.draw_gaussian_codebook((size,), 1, 1e-5, 0)
    encoder = encoder_of(book, math.sqrt(size), counted=True)
    without = similarity(encoder.encode(gradients), gradients)
    huge = gradients.clone()
    huge[:, 5] = 1e6
    assert float((similarity(encoder.encode(huge)[:, 6:], gradients[:, 6:]) / without).min()) > 0.99


FLOATS = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True),
    st.sampled_from(
        [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1.2e-38, 3.4028234663852886e38, -3.4028234663852886e38, 1e-30]
    ),
    st.floats(0.5, 2, width=32),
)
BOXES = [
    codebook.draw_gaussian_codebook(sizes, words, 0.3, 1)
    for sizes, words in itertools.product([(9,), (4, 1, 4)], (1, 4))
]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 4), st.just(9)), elements=FLOATS),
    st.sampled_from(BOXES),
    st.sampled_from([1e-40, 1e-6, 0.37, 1.0, 1e20]),
    st.booleans(),
)
@example(np.zeros((2, 9), np.float32), BOXES[3], 1.0, True)
@example(np.full((1, 9), 1e-45, np.float32), BOXES[1], 1.0, True)
@example(np.full((1, 9), np.finfo(np.float32).max, np.float32), BOXES[1], 1e20, True)
def test_no_gradient_leaves_the_box(
    gradients: NDArray[np.float32], book: codebook.Codebook, norm: float, counted: bool
) -> None:
    tensor = torch.from_numpy(gradients)
    assert_boxed(book, norm, tensor, encoder_of(book, norm, counted=counted).encode(tensor))


def adversaries(size: int) -> Tensor:
    """Gradients made to confuse the counting of cells; each row is bits of float32 below the largest one's."""
    random = np.random.default_rng(3)
    spread_D = spread_ranks(size, CPU).numpy().astype(np.int64)
    base = 0x3F800000
    rows = [base - spread_D, base - 2 * spread_D, base - spread_D[::-1], base - (spread_D >> SHIFT << SHIFT)]
    for width in (1, 1 << SHIFT, 1 << (SHIFT + 4), 1 << 23, 1 << 28, CELLS << SHIFT, 1 << 30):
        rows.append(base - random.integers(0, min(width, base), size))
    rows.append(np.where(random.random(size) < 0.5, base, 1))
    rows.append(np.where(np.arange(size) == 0, 0x7F7FFFFF, random.integers(0, 1 << 23, size)))
    signs = random.integers(0, 2, (len(rows), size)) << 31
    return torch.from_numpy((np.stack(rows) | signs).astype(np.uint32).view(np.float32))


@pytest.mark.parametrize("words", [1, 7])
def test_no_adversary_leaves_the_box(words: int) -> None:
    sizes = (MAX_SORTED + 1, 3, 6000)
    book = codebook.draw_gaussian_codebook(sizes, words, 1e-5, 0)
    gradients = adversaries(sum(sizes))
    for norm in (1e-3, 1.0, 100.0):
        assert_boxed(book, norm, gradients, Encoder(book, norm, CPU).encode(gradients))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("counted", [False, True])
def test_gradients_of_another_precision(dtype: torch.dtype, counted: bool) -> None:
    book = codebook.draw_gaussian_codebook((400,), 3, 1e-5, 0)
    gradients = (torch.randn(5, 400, generator=torch.Generator().manual_seed(0)) ** 3).to(dtype)
    if dtype == torch.float64:
        gradients[0, 0], gradients[1] = 1e300, gradients[1] * 1e-300
    encoded = encoder_of(book, 3.0, counted=counted).encode(gradients)
    assert_boxed(book, 3.0, gradients, encoded)
    if not counted:
        np.testing.assert_allclose(encoded[2:].numpy(), by_loop(book, 3.0, gradients[2:]), rtol=1.3e-7)


@pytest.mark.parametrize("counted", [False, True])
def test_a_code_depends_on_its_gradient_alone(counted: bool) -> None:
    """To the last bit, in any company, whatever the blocks, and again."""
    book = codebook.draw_gaussian_codebook((500, 20), 8, 1e-5, 0)
    gradients = torch.randn(30, 520, generator=torch.Generator().manual_seed(0))
    encoder = encoder_of(book, counted=counted)
    before = gradients.clone()
    encoded = encoder.encode(gradients)
    assert torch.equal(gradients, before)
    assert torch.equal(encoded, encoder.encode(gradients))
    assert torch.equal(encoded[4:5], encoder.encode(gradients[4:5]))
    broken = gradients.clone()
    broken[::2] = torch.nan
    assert torch.equal(encoded[1::2], encoder.encode(broken)[1::2])
    with mock.patch.object(engine, "BLOCK", 1):
        assert torch.equal(encoded, encoder_of(book, counted=counted).encode(gradients))


@pytest.mark.parametrize("size", [MAX_SORTED - 1, MAX_SORTED + 1])
def test_equal_magnitudes_spread_over_all_their_bounds(size: int) -> None:
    """No coordinate's rank is lost: the golden ratio deals equal shares of a tie to every cell."""
    levels = np.arange(1.0, size + 1)
    encoded = Encoder(book_of([levels.tolist()]), 1.0, CPU).encode(torch.ones(1, size))[0]
    bounds = np.unique(encoded.numpy())
    assert len(bounds) >= 64
    assert np.diff(bounds).max() < 2 * (bounds[-1] - bounds[0]) / 64


class Direct(nn.Module):
    """A model whose gradient, under `itself`, is the record."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight)[:, None]


def itself(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs[:, 0]


def direct(records: Tensor, units: Tensor | None = None) -> BatchPart:
    return BatchPart(records, torch.zeros(len(records), dtype=torch.int64), units)


def test_the_model_for_these_tests_is_what_it_says() -> None:
    records = torch.randn(3, 6)
    assert torch.equal(per_record_gradients(Direct(6), itself, records, torch.zeros(3)), records)


SIZE = MAX_SORTED + 100
SMALL = codebook.draw_gaussian_codebook((40,), 6, 1e-5, 0)
LARGE = codebook.draw_gaussian_codebook((SIZE,), 6, 1e-5, 0)


@pytest.mark.parametrize("book", [SMALL, LARGE], ids=["sorted", "counted"])
@pytest.mark.parametrize("physical_batch", [1, 4, 100])
@pytest.mark.parametrize("units", [None, torch.tensor([0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 4])])
def test_the_sum_is_that_of_the_codes_of_each_unit(
    book: codebook.Codebook, physical_batch: int, units: Tensor | None
) -> None:
    records = torch.randn(11, book.dimension, generator=torch.Generator().manual_seed(2))
    means = records
    if units is not None:
        means = torch.stack([records[units == unit].sum(0) / (units == unit).sum() for unit in range(5)])
    encoder = Encoder(book, 2.0, CPU)
    total = encoded_sum(Direct(book.dimension), itself, direct(records, units), encoder, physical_batch)
    assert total.value.dtype == torch.float64
    torch.testing.assert_close(total.value, encoder.encode(means).sum(0), rtol=1e-12, atol=1e-14)


def test_t15_the_sum_carries_its_sensitivity() -> None:
    for exchanged, bound in ((False, 0.7), (True, 1.4)):
        encoder = Encoder(SMALL, 0.7, CPU, exchanged=exchanged)
        total = encoded_sum(Direct(40), itself, direct(torch.ones(2, 40)), encoder, 8)
        assert total.sensitivity(Neighbouring.ADD_OR_REMOVE_ONE) == total.bound == encoder.bound == bound


@pytest.mark.parametrize("book", [SMALL, LARGE], ids=["sorted", "counted"])
def test_t11_adding_one_record_moves_the_sum_within_the_box(book: codebook.Codebook) -> None:
    """Whatever the record, and however many there are: 3,000 equal ones add up in float64."""
    size, norm = book.dimension, 0.5
    random = torch.Generator().manual_seed(0)
    many = torch.randn(1, size, generator=random).expand(3000 if size == 40 else 40, -1)
    encoder, model = Encoder(book, norm, CPU), Direct(size)
    before = encoded_sum(model, itself, direct(many), encoder, 500).value
    for scale in (0.0, 1e-40, 1e-3, 1.0, 1e6, 1e30, math.inf, math.nan):
        record = torch.randn(1, size, generator=random) * scale
        after = encoded_sum(model, itself, direct(torch.cat([many, record])), encoder, 500).value
        moved = (after - before)[None]
        # A sum of thousands is rounded by some 1e-13.
        inside = np.sort(moved.abs().numpy()) <= norm * by_rank(book.groups[0]) + 1e-12
        assert inside.all(axis=1).any()
        assert float(moved.norm()) <= norm
        if 1 <= scale < math.inf:
            assert float(moved.norm()) >= 0.9 * norm


def test_the_bound_holds_in_exact_arithmetic() -> None:
    """3 times the float64 next to 1/3 rounds to 1, which is above it and a float32."""
    level = 1 / 3
    code = encoder_of(Book([Steps(0, 1, np.array([[level]]))]), 3.0).encode(torch.tensor([[5.0]]))
    assert 1 - 1e-6 < Fraction(float(code)) <= Fraction(level) * 3


def test_an_exchanged_record_moves_the_sum_by_no_more_than_twice_the_norm() -> None:
    encoder, model = Encoder(SMALL, 1.0, CPU, exchanged=True), Direct(40)
    units = torch.tensor([0, 0, 1, 1])
    records = 100 * torch.randn(4, 40, generator=torch.Generator().manual_seed(0))
    records[1] = records[0]
    before = encoded_sum(model, itself, direct(records, units), encoder, 4).value
    records[1] = -3 * records[0]
    after = encoded_sum(model, itself, direct(records, units), encoder, 4).value
    assert 1.999 < float((after - before).norm()) <= encoder.bound


def test_t10_an_empty_batch_is_exactly_zero_and_never_calls_the_model() -> None:
    class Untouchable(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            raise AssertionError("called")

    encoder = Encoder(codebook.draw_gaussian_codebook((8,), 2, 1e-5, 0), 1.0, CPU)
    for units in (None, torch.zeros(0, dtype=torch.int64)):
        empty = BatchPart(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), units)
        assert encoded_sum(Untouchable(3, 2), cross_entropy, empty, encoder, 4).value.tolist() == [0.0] * 8


def test_a_network_trains_on_it() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 36, 4))
    net[0].bias.requires_grad_(False)
    data = BatchPart(torch.randn(11, 1, 8, 8), torch.randint(4, (11,)))
    book = codebook.draw_gaussian_codebook((27, 436), 5, 1e-5, 0)
    gradients = per_record_gradients(net, cross_entropy, data.features, data.labels)
    total = encoded_sum(net, cross_entropy, data, Encoder(book, 0.5, CPU), 100).value
    np.testing.assert_allclose(total.numpy(), by_loop(book, 0.5, gradients).sum(0), rtol=1e-5, atol=1e-7)
    assert all(p.grad is None for p in net.parameters())


def test_a_codebook_for_another_model_is_refused() -> None:
    encoder = Encoder(SMALL, 1.0, CPU)
    for records in (torch.zeros(0, 39), torch.zeros(2, 41)):
        with pytest.raises(ValueError, match="a codebook for 40 parameters"):
            encoded_sum(Direct(records.shape[1]), itself, direct(records), encoder, 4)
    with pytest.raises(ValueError, match="gradients of 41"):
        encoder.encode(torch.zeros(2, 41))


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (Steps(1, 2, np.array([[0.5, 0.5]])), "gaps"),
        (Steps(0, 2, np.array([[0.5, 0.4]])), "ascend"),
        (Steps(0, 2, np.array([[-0.1, 0.4]])), "ascend"),
        (Steps(0, 2, np.array([[math.nan, 0.4]])), "ascend"),
        (Steps(0, 2, np.array([[0.6, 0.9]])), "norm"),
    ],
)
def test_a_codebook_that_bounds_nothing_is_refused(group: Steps, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Encoder(Book([group]), 1.0, CPU)


@pytest.mark.parametrize("size", [1, 40, CELLS])
def test_cells_are_counted_on_a_device_as_they_are_here(size: int) -> None:
    """Without the largest being asked for: a GPU would be waited for twice a block."""
    cells = torch.randint(size, (5000,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    actual = ranks.count_by_scatter(cells, size + 3)
    assert actual.dtype == torch.int64
    assert torch.equal(actual, torch.bincount(cells, minlength=size + 3))
    assert torch.equal(actual, ranks.count_numbers(cells, size + 3))
    assert ranks.count_numbers(cells.to("meta"), size).shape == (size,)  # bincount can't say how many it answers


def test_cells_are_found_and_levels_repeated_here_as_on_a_device() -> None:
    ends_RC = torch.tensor([[0, 0, 3, 3, 5, 9, 9], [2, 4, 4, 7, 7, 7, 9]])
    ranks_K = torch.tensor([1, 3, 4, 5, 9])
    assert torch.equal(
        ranks.find_cells(ends_RC, ranks_K), torch.searchsorted(ends_RC, ranks_K.expand(2, -1).contiguous())
    )
    numbers, times = torch.tensor([0.5, 2.0, 7.0]), torch.tensor([2, 0, 3])
    expected = torch.tensor([0.5, 0.5, 7.0, 7.0, 7.0])
    assert torch.equal(ranks.repeat_numbers(numbers, times, 5), expected)
    assert torch.equal(numbers.repeat_interleave(times, output_size=5), expected)


@pytest.mark.parametrize("counted", [False, True])
def test_on_a_device_that_is_not_asked_codes_are_the_same(counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """There all gradients go through what replaces those that are not finite, and cells are counted otherwise."""
    book = codebook.draw_gaussian_codebook((300, 5), 6, 1e-5, 3)
    gradients = torch.randn(40, 305, generator=torch.Generator().manual_seed(0))
    for spoilt in (gradients, torch.where(torch.arange(40)[:, None] == 7, math.nan, gradients)):
        expected = encoder_of(book, counted=counted).encode(spoilt)
        with monkeypatch.context() as patched:
            patched.setattr(engine, "one_size", lambda device: True)
            patched.setattr(ranks, "count_numbers", ranks.count_by_scatter)
            encoder = encoder_of(book, counted=counted)
            assert torch.equal(encoder.encode(spoilt), expected)
            assert torch.equal(encoder.sum([spoilt]), encoder_of(book, counted=counted).sum([spoilt]))


def test_a_block_has_room_in_the_memory_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU it is what the cache holds, whatever is free."""
    cuda = torch.device("cuda")
    for free, expected in ((0, engine.BLOCK << 4), (64 << 30, 1 << 26), (1 << 50, engine.MAX_BLOCK)):
        monkeypatch.setattr(engine, "free_bytes", lambda device, free=free: free)
        assert engine.block_size(cuda) == expected
        assert engine.block_size(CPU) == engine.BLOCK
    # The number of a cell, and that of a coordinate, fit into 32 bits, with one gradient more.
    assert engine.MAX_BLOCK <= 2**31 // 8
