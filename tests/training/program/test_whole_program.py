"""DP-SGD as it runs: plans are made from recipes and carried out under the real trainer and gate, and what came out is
judged from outside, by which records were asked for and how far the weights moved.

Clean sums are computed anew: record after record, in double precision, by plain backpropagation.

Error probabilities: every test of a distribution is one of at most 200 two-sided tests at `LEVEL`, so that all of them
together raise a false alarm with probability below 1e-6. Secrets are fixed: what passes once, passes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import nn

from dprecipe.contract.plan import Plan
from dprecipe.data.records import Records
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.make import plan
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.recipe.read import read_text
from dprecipe.training.program.losses import cross_entropy
from dprecipe.training.program.records import Store
from dprecipe.training.program.trainer_library import lightning
from dprecipe.training.run.gate import Gate
from dprecipe.training.steps import clipped_sums as train
from dprecipe.training.steps.contract import StepContext
from dprecipe.training.steps.fit import fit_steps
from dprecipe.training.steps.module import NoisyModule

LEVEL = 5e-9
SIZE, FEATURES, CLASSES, STEPS = 120, 12, 3, 60
RECIPE = f"""\
recipe: dprecipe/v1
name: whole
data:
  train: {{source: npz, path: absent.npz, shape: [{FEATURES}], classes: {CLASSES}}}
  size: {SIZE}
model: {{kind: mlp, hidden: [10]}}
mechanism:
  kind: dpsgd
  clip: {{norm: 0.5}}
  noise: {{family: gaussian, multiplier: 1.5}}
  sampling: {{scheme: poisson, batch_size: 12}}
budget: {{epsilon: auto, delta: 1e-4}}
training:
  steps: {STEPS}
  optimizer: {{kind: sgd, lr: 0.5}}
"""
LR = 0.5
Floats = NDArray[np.float64]


@dataclass
class Seen:
    """What can be seen of a run from outside."""

    plan: Plan
    model: nn.Module
    records: Records
    batches: list[NDArray[np.int64]] = field(default_factory=list)
    """The records each step asked for."""
    weights: list[Floats] = field(default_factory=list)
    """Before the first step, and after each."""
    clip_norms: list[float] = field(default_factory=list)

    @property
    def moves(self) -> Floats:
        """(T, P): what each step subtracted, over the learning rate."""
        return -np.diff(np.stack(self.weights), axis=0) / LR

    def gradients(self, step: int) -> Floats:
        """(N, P): of the records of a step, at the weights it found."""
        net = copy.deepcopy(self.model).double()
        torch.nn.utils.vector_to_parameters(torch.from_numpy(self.weights[step]), net.parameters())
        result = [np.zeros((0, len(self.weights[0])))]
        for index in self.batches[step]:
            features = torch.from_numpy(self.records.features[index]).double()[None]
            loss = cross_entropy(net(features), torch.tensor([int(self.records.labels[index])])).sum()
            parts = torch.autograd.grad(loss, list(net.parameters()))
            result.append(torch.cat([part.flatten() for part in parts]).numpy()[None])
        return np.concatenate(result)

    def noise(self, clip: Callable[[Floats, int], Floats], steps: int = STEPS) -> Floats:
        """(T, P): what was added to the first clipped sums. `clip` gets (N, P) gradients and the step."""
        batches = self.phased("divisor")[:steps]
        clean = np.stack([clip(self.gradients(step), step).sum(0) for step in range(len(batches))])
        return self.moves[:steps] * batches[:, None] - clean

    def phased(self, name: str) -> Floats:
        """(T,): a constant of each step's phase."""
        phases = self.plan.mechanism_plan.phases
        return np.repeat([getattr(phase, name) for phase in phases], [phase.steps for phase in phases])


class Outside(lightning.Callback):
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def on_train_batch_start(self, trainer: Any, module: NoisyModule, *_: Any) -> None:
        self._seen.batches.append(np.zeros(0, dtype=np.int64))
        if not self._seen.weights:
            self._seen.weights.append(_flat(module.steps.model))

    def on_train_batch_end(self, trainer: Any, module: NoisyModule, *_: Any) -> None:
        if len(self._seen.weights) <= module.steps.steps_done:
            self._seen.weights.append(_flat(module.steps.model))
            self._seen.clip_norms.append(module.steps.figures().get("clip_norm", math.nan))
        else:
            self._seen.batches.pop()


class Asked:
    """The records, and a note of those that a step asks for."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self.units = seen.records.units
        self.unit_count = seen.records.unit_count

    def __len__(self) -> int:
        return len(self._seen.records)

    def batch(self, indices: Any) -> Any:
        self._seen.batches[-1] = np.concatenate([self._seen.batches[-1], indices])
        return self._seen.records.batch(indices)


def _flat(model: nn.Module) -> Floats:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).double().numpy()


def ran(folder: Path, *overrides: str, seed: int = 1, records: Records | None = None) -> Seen:
    """A whole run, but for its folder."""
    result = plan(read_text(RECIPE, "whole.yaml", overrides))
    if records is None:
        generator = np.random.default_rng(0)
        features = generator.normal(size=(SIZE, FEATURES)).astype(np.float32)
        records = Records(features, generator.integers(CLASSES, size=SIZE))
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 10), nn.Tanh(), nn.Linear(10, CLASSES))
    seen = Seen(result, model, records)
    path = folder / f"ledger-{len(list(folder.iterdir()))}.jsonl"
    ledger = LedgerWriter(path, result.digest)
    secrets = Secrets(seed)
    gate = Gate(result.events, result.budget, ledger, secrets)
    store = Store(Asked(seen), torch.device("cpu"))
    module = train.build(StepContext(result, model, store, gate, secrets))
    fit_steps(module, Outside(seen), result.length.steps)
    assert gate.close() == "completed"
    assert len(seen.batches) == len(seen.moves) == result.length.steps
    return seen


# The tests of distributions: each raises a false alarm with probability LEVEL.


def assert_within(value: float, distribution: Any, what: str) -> None:
    """`value` is no more extreme than `LEVEL` allows."""
    tail = 2 * min(float(distribution.cdf(value)), float(distribution.sf(value)))
    assert tail > LEVEL, (
        f"{what}: {value:g}, beyond which are {tail:.1e} of {distribution.mean():g} ± {distribution.std():g}"
    )


def assert_white(normal_TP: Floats, what: str) -> None:
    """Independent standard normal numbers, as far as their scale, their distribution and their pairs show.

    Pairs at every distance up to half of the run: of neighbouring coordinates, of the halves that a Box–Muller
    transform gives, of steps. A sum of n products of independent normals is nearly normal; its largest is taken over
    n / 2 distances, which the union bound pays for. Of their squares too, which a common radius would show.
    """
    z = normal_TP.ravel()
    assert_within(float((z**2).sum()), stats.chi2(len(z)), f"{what}: variance")
    assert_within(float(z.sum()), stats.norm(0, math.sqrt(len(z))), f"{what}: mean")
    distance = stats.kstest(z, "norm").pvalue
    assert distance > LEVEL, f"{what}: not normal, p = {distance:.1e}"
    for values, name in ((z, "values"), ((z**2 - 1) / math.sqrt(2), "squares")):
        worst = np.abs(correlations(values)).max()
        # Squares have heavy tails: their bound is half as wide again.
        bound = stats.norm.isf(LEVEL / len(z)) * (1.0 if name == "values" else 1.5)
        assert worst < bound, f"{what}: {name} correlate, {worst:.1f} standard errors"


def correlations(z: Floats) -> Floats:
    """Of all pairs at distances 1 to n / 2, in standard errors."""
    n = len(z)
    spectrum = np.fft.rfft(z, 2 * n)
    sums = np.fft.irfft(np.abs(spectrum) ** 2)[1 : n // 2]
    return sums / np.sqrt(n - np.arange(1, n // 2))


def shrink(gradients: Floats, norm: float, order: int = 2) -> Floats:
    """Each row to at most this length."""
    lengths = np.linalg.norm(gradients, ord=order, axis=1, keepdims=True)
    return gradients * np.minimum(1, norm / np.maximum(lengths, 1e-300))


LAYERS = (slice(0, 130), slice(130, 163))


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A run of the recipe as it is."""
    return ran(tmp_path_factory.mktemp("flat"))


def test_flat_clipping_adds_noise_of_sigma_times_the_clip_norm_and_nothing_else(flat: Seen) -> None:
    noise = flat.noise(lambda gradients, step: shrink(gradients, 0.5))
    assert_white(noise / (1.5 * 0.5), "flat")
    lengths = np.concatenate([np.linalg.norm(flat.gradients(step), axis=1) for step in range(STEPS)])
    assert 0.05 < (lengths > 0.5).mean() < 0.95 or (lengths > 0.5).all()  # the clipping was put to work


def test_what_the_tests_would_say_of_other_noise(flat: Seen) -> None:
    """They can fail: on noise 5 % too small, used twice, of pairs with equal radii, and on unclipped sums."""
    noise = flat.noise(lambda gradients, step: shrink(gradients, 0.5)) / (1.5 * 0.5)
    twice, halves = noise.copy(), noise.copy()
    twice[1::2] = noise[::2]
    middle = noise.shape[1] // 2
    halves[:, middle : 2 * middle] = np.where(noise[:, middle : 2 * middle] > 0, 1, -1) * np.abs(noise[:, :middle])
    unclipped = flat.noise(lambda gradients, step: gradients) / (1.5 * 0.5)
    for wrong, what in ((0.95 * noise, "variance"), (twice, "values"), (halves, "squares"), (unclipped, "variance")):
        with pytest.raises(AssertionError, match=what):
            assert_white(wrong, "wrong")


@pytest.mark.slow
def test_automatic_clipping(tmp_path: Path) -> None:
    seen = ran(tmp_path, "mechanism.clip={mode: automatic, norm: 0.5, stability: 0.05}")

    def clip(gradients: Floats, step: int) -> Floats:
        return 0.5 * gradients / (np.linalg.norm(gradients, axis=1, keepdims=True) + 0.05)

    assert_white(seen.noise(clip) / (1.5 * 0.5), "automatic")


@pytest.mark.parametrize(
    ("clip", "norms", "scales"),
    [
        pytest.param("{mode: per_layer, norm: 0.5}", (0.5 / math.sqrt(2),) * 2, (0.5, 0.5), marks=pytest.mark.slow),
        ("{mode: per_layer, norm: null, norms: [0.2, 0.7]}", (0.2, 0.7), (0.2 * math.sqrt(2), 0.7 * math.sqrt(2))),
        ("{mode: per_layer, norm: null, norms: [0.2, 0.7], noise: [1.2, 0.4]}", (0.2, 0.7), (0.2 * 1.2, 0.7 * 0.4)),
    ],
    ids=["uniform", "given", "noise of its own"],
)
def test_each_layer_is_clipped_and_has_noise_by_its_own_norm(
    tmp_path: Path, clip: str, norms: tuple[float, float], scales: tuple[float, float]
) -> None:
    seen = ran(tmp_path, f"mechanism.clip={clip}")
    noise = seen.noise(
        lambda gradients, step: np.concatenate(
            [shrink(gradients[:, at], norm) for at, norm in zip(LAYERS, norms, strict=True)], axis=1
        )
    )
    for at, scale in zip(LAYERS, scales, strict=True):
        noise[:, at] /= 1.5 * scale
        assert_within(float((noise[:, at] ** 2).sum()), stats.chi2(noise[:, at].size), f"the scale of {at}")
    assert_white(noise, clip)


def test_laplace_noise_and_l1_clipping(tmp_path: Path) -> None:
    seen = ran(tmp_path, "mechanism.noise={family: laplace, multiplier: 1.5}", "mechanism.clip.norm=2.0")
    noise = seen.noise(lambda gradients, step: shrink(gradients, 2.0, order=1)) / (1.5 * 2.0)
    assert_within(float(np.abs(noise).sum()), stats.gamma(noise.size), "the scale")
    # Its quantiles as those of normal numbers, which every other test asks for.
    assert_white(stats.norm.isf(stats.laplace.sf(noise)), "laplace")


def test_adaptive_clipping_releases_gradients_and_count_as_one(tmp_path: Path) -> None:
    clip = "{mode: adaptive, norm: 0.5, quantile: 0.4, learning_rate: 0.3, count_noise: 3.0}"
    seen = ran(tmp_path, f"mechanism.clip={clip}", "mechanism.noise.multiplier=3.0")
    before = np.array([0.5, *seen.clip_norms[:-1]])
    after = np.array(seen.clip_norms)
    assert len(set(seen.clip_norms)) == STEPS
    # What the trajectory of the clip norm shows of the noisy counts: C' = C exp(-η (n / L + 1/2 - quantile)).
    counts = 12 * (0.4 - np.log(after / before) / 0.3 - 0.5)
    clean = []
    for step in range(STEPS):
        lengths = np.linalg.norm(seen.gradients(step), axis=1)
        clean.append(float((lengths <= before[step]).sum()) - len(lengths) / 2)
    count_noise = (counts - np.array(clean)) / 3.0
    gradient_multiplier = 1 / math.sqrt(1 / 3.0**2 - 1 / (2 * 3.0) ** 2)
    noise = seen.noise(lambda gradients, step: shrink(gradients, before[step]))
    noise /= gradient_multiplier * before[:, None]
    assert_within(float((count_noise**2).sum()), stats.chi2(STEPS), "the noise of the counts")
    assert_white(np.concatenate([noise, count_noise[:, None]], axis=1), "adaptive")


def test_phases_of_noise_clip_norm_and_batch_size(tmp_path: Path) -> None:
    seen = ran(
        tmp_path,
        "mechanism.clip.norm={schedule: linear, from: 0.8, to: 0.2}",
        "mechanism.noise.multiplier={schedule: cosine, from: 2.0, to: 1.0}",
        "mechanism.sampling.batch_size={schedule: linear, from: 6, to: 30}",
    )
    norms, sigmas, batches = (seen.phased(name) for name in ("clip_norm", "noise_multiplier", "divisor"))
    for values in (norms, sigmas, batches):
        assert len(set(values)) > 3
    charged = [charge.event for charge in seen.plan.events for _ in range(charge.count)]
    np.testing.assert_allclose([event.noise_multiplier for event in charged], sigmas)
    np.testing.assert_allclose([event.sampling_rate * SIZE for event in charged], batches)
    noise = seen.noise(lambda gradients, step: shrink(gradients, norms[step]))
    assert_white(noise / (sigmas * norms)[:, None], "phases")
    sizes = np.array([len(batch) for batch in seen.batches])
    spread = (batches * (1 - batches / SIZE)).sum()
    assert_within(float(sizes.sum()), stats.norm(batches.sum(), math.sqrt(spread)), "the number of records")
    early, late = sizes[: STEPS // 3].sum(), sizes[-STEPS // 3 :].sum()
    assert late > 2 * early


def included(seen: Seen) -> Floats:
    """(T, N): which records took part."""
    return np.stack([np.bincount(batch, minlength=SIZE) for batch in seen.batches]).astype(float)


LONG = ("training.steps=300", "mechanism.noise.multiplier=4.0")


def test_poisson_every_record_joins_every_batch_on_its_own(tmp_path: Path) -> None:
    seen = ran(tmp_path, *LONG)
    joined_TN, q = included(seen), 0.1
    assert set(joined_TN.ravel()) == {0.0, 1.0}
    assert_within(joined_TN.sum(), stats.binom(joined_TN.size, q), "inclusions")
    spread = (joined_TN - q) / math.sqrt(q * (1 - q))
    # Pairs of a batch, and of a record with itself: sums along rows and columns have the variance of independent ones.
    assert_within(float((spread.sum(1) ** 2).sum() / SIZE), stats.chi2(300), "sizes of batches")
    assert_within(float((spread.sum(0) ** 2).sum() / 300), stats.chi2(SIZE), "records' numbers of batches")
    worst = np.abs(correlations(spread.ravel())).max()
    assert worst < stats.norm.isf(LEVEL / spread.size) * 1.2  # products of rare events are skewed
    assert all((np.diff(batch) > 0).all() for batch in seen.batches)


@pytest.mark.slow
def test_truncated_poisson_never_takes_more_than_its_cap(tmp_path: Path) -> None:
    scheme = "mechanism.sampling={scheme: truncated_poisson, batch_size: 12, max_batch_size: 16}"
    seen = ran(tmp_path, *LONG, scheme)
    joined_TN = included(seen)
    sizes = joined_TN.sum(1)
    assert sizes.max() == 16
    distribution = stats.binom(SIZE, 0.1)
    assert_within((sizes == 16).sum(), stats.binom(300, distribution.sf(15)), "full batches")
    assert_within((sizes <= 9).sum(), stats.binom(300, distribution.cdf(9)), "small batches")
    # Who is dropped does not depend on who it is: all records join alike.
    mean = joined_TN.mean()
    spread = (joined_TN.sum(0) - 300 * mean) / math.sqrt(300 * mean * (1 - mean))
    assert_within(float((spread**2).sum()), stats.chi2(SIZE), "records' numbers of batches")
    noise = seen.noise(lambda gradients, step: shrink(gradients, 0.5))
    assert_white(noise / (4.0 * 0.5), "truncated")


@pytest.mark.slow
def test_fixed_size_takes_exactly_the_batch(tmp_path: Path) -> None:
    scheme = "mechanism.sampling={scheme: fixed_size, batch_size: 12}"
    seen = ran(tmp_path, *LONG, scheme, "budget.neighbouring=replace_one")
    joined_TN = included(seen)
    assert set(joined_TN.sum(1)) == {12.0}
    assert joined_TN.max() == 1
    # Over batches that are drawn apart, a record's numbers are binomial; those of all records add up: one degree less.
    spread = (joined_TN.sum(0) - 30) / math.sqrt(300 * 0.1 * 0.9 * SIZE / (SIZE - 1))
    assert_within(float((spread**2).sum()), stats.chi2(SIZE - 1), "records' numbers of batches")
    steps = joined_TN[1:] * joined_TN[:-1]
    assert_within(
        steps.sum(), stats.norm(299 * 1.2, math.sqrt(299 * 1.2 * 0.9 * 108 / 119)), "batches after one another"
    )
    noise = seen.noise(lambda gradients, step: shrink(gradients, 0.5))
    assert_white(noise / (4.0 * 0.5), "fixed size")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["{scheme: dealt, batch_size: 12}", "{scheme: full_batch}"])
def test_shuffled_and_full_batches(tmp_path: Path, scheme: str) -> None:
    steps = 60 if "dealt" in scheme else 20
    seen = ran(tmp_path, f"mechanism.sampling={scheme}", f"training.steps={steps}")
    joined_TN = included(seen)
    batches = 10 if "dealt" in scheme else 1
    assert (joined_TN.reshape(-1, batches, SIZE).sum(1) == 1).all()  # once an epoch
    noise = seen.noise(lambda gradients, step: shrink(gradients, 0.5))
    assert_white(noise / (1.5 * 0.5), scheme)


def test_units_of_several_records_and_copies_are_clipped_as_one(tmp_path: Path) -> None:
    """Every unit's gradient is the mean over its records, whatever their number, and over their copies.

    The store moves no image here, so that the clean sums are known.
    """
    generator = np.random.default_rng(0)
    units = np.concatenate([np.arange(SIZE), generator.integers(SIZE, size=SIZE)])
    features = generator.normal(size=(2 * SIZE, 1, 3, 4)).astype(np.float32)
    records = Records(features, generator.integers(CLASSES, size=2 * SIZE), units)
    moved = ("mechanism.augmentations=2", "data.train.shape=[1, 3, 4]", "data.preprocess=[{flip: {probability: 0.5}}]")
    seen = ran(tmp_path, *moved, "data.unit={column: user, max_records: 9}", records=records)

    def clip(gradients: Floats, step: int) -> Floats:
        owners = units[seen.batches[step]]
        rows = [np.unique(seen.batches[step][owners == unit]) for unit in np.unique(owners)]
        first = {index: place for place, index in reversed(list(enumerate(seen.batches[step])))}
        means = [gradients[[first[index] for index in of_unit]].mean(0) for of_unit in rows]
        return shrink(np.stack(means), 0.5) if means else gradients

    assert_white(seen.noise(clip) / (1.5 * 0.5), "units")


@pytest.mark.slow
def test_another_seed_is_another_run(tmp_path: Path) -> None:
    one, other = ran(tmp_path, seed=1), ran(tmp_path, seed=2)
    noises = [seen.noise(lambda gradients, step: shrink(gradients, 0.5)) / 0.75 for seen in (one, other)]
    assert_white((noises[0] + noises[1]) / math.sqrt(2), "two seeds")
