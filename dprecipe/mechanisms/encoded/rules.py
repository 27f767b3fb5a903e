"""Checks of the `encoded` block, each a small function: what can't be accounted for. No data is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from dprecipe.faults import Finding, Severity
from dprecipe.mechanisms.contract import Facts
from dprecipe.mechanisms.encoded.phases import EncodedRun, box_of_text, groups_of
from dprecipe.mechanisms.encoded.plan import ATTACHMENT
from dprecipe.mechanisms.encoded.schema import Encoded, GaussianCodebook, GradientCodebook, Slots
from dprecipe.mechanisms.noisy_sum import phased, solve
from dprecipe.mechanisms.noisy_sum.sampling import Pace
from dprecipe.models.schema import Timm, Transformers
from dprecipe.noise import families
from dprecipe.noise.schema import CauchyNoise, phases, shape_of

FEW_COORDINATES = 1000
"""Below this the null value of the Kolmogorov–Smirnov distance, 0.87/√d, drowns the signal."""
MANY_COORDINATES = 100
"""Above this one number of the noise's distribution, its Fisher information, decides what it costs."""


def sizes_are_known(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Codes are made layer by layer, so the layers' sizes have to be known before the model is built."""
    if isinstance(facts.model, Timm | Transformers):
        yield Finding(
            "R280",
            f"encoded needs the size of each layer, which nobody knows of a {facts.model.kind} model before it is "
            "built",
            "use mechanism.kind dpsgd, or a model.kind of dprecipe",
            "model.kind",
        )


def codebook_is_public(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """A codebook fitted to private gradients would publish them unpaid."""
    if isinstance(spec.codebook, GradientCodebook):
        yield Finding(
            "P130",
            "a codebook fitted to the gradients of private records would publish them unpaid",
            "use source: gaussian, or source: file with a codebook that `dprecipe codebook` made from public records",
            "mechanism.codebook.source",
        )
    elif not isinstance(spec.codebook, GaussianCodebook):
        yield from _file_fits(spec, facts)


def _file_fits(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    text = facts.attachments.get(ATTACHMENT)
    if text is None:
        yield Finding(
            "R260",
            "the codebook file was not read: only the recipe's text is known here",
            "validate the recipe where its codebook lies",
            "mechanism.codebook.path",
        )
        return
    try:
        sizes = tuple(size for size, _ in box_of_text(text).groups)
    except (ValueError, TypeError, RecursionError):
        yield Finding("R260", "the summary of the codebook is unreadable", "make it again", "mechanism.codebook.path")
        return
    if sizes != groups_of(spec, facts):
        yield Finding(
            "R260",
            f"the codebook is for {sum(sizes):,} coordinates in {len(sizes)} groups, the model has "
            f"{sum(facts.layers):,} in {len(groups_of(spec, facts))}",
            "make the codebook for this model with `dprecipe codebook`",
            "mechanism.codebook.path",
        )


def sampled_independently(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Lemma 4 is about units that join independently of one another."""
    if spec.sampling.scheme == "shuffle":
        yield Finding(
            "P131",
            "encoding is accounted for units that join a batch independently: batches dealt by shuffling have no bound "
            "here",
            "use scheme: poisson (or full_batch)",
            "mechanism.sampling.scheme",
        )


def check_microbatches(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Chunks of the sampled list all change when one unit joins; slots of their own change one code."""
    if isinstance(spec.microbatch, Slots) and spec.microbatch.by == "position":
        yield Finding(
            "P132",
            "micro-batches cut from the list of a batch: one more record shifts every chunk behind it, without bound",
            "set mechanism.microbatch to 1, or by: unit (each unit draws its slot by itself)",
            "mechanism.microbatch.by",
        )
    elif spec.microbatch_size > 1:
        yield Finding(
            "P133",
            "one record exchanges the code of its micro-batch for another: twice the sensitivity of microbatch: 1",
            "set mechanism.microbatch to 1",
            "mechanism.microbatch",
            severity=Severity.WARNING,
        )
        gaussian = any(noise.family == "gaussian" for _, noise in phases(spec.noise))
        if gaussian and facts.budget.neighbouring == "zero_out_one" and spec.sampling.scheme == "poisson":
            yield Finding(
                "P142",
                "a blanked unit that joins exchanges the code of its micro-batch for a third one, and no bound is "
                "known here of three codes under Gaussian noise and sampling",
                "set budget.neighbouring to replace_one, or mechanism.microbatch to 1",
                "mechanism.microbatch",
            )


def public_divisor(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """How many units joined is private."""
    if spec.divide_by == "realised_batch":
        yield Finding(
            "P134",
            "dividing by the realised batch size would use how many records joined, which is private",
            "set mechanism.divide_by to expected_batch",
            "mechanism.divide_by",
        )


def check_denoising(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """The step multiplier is post-processing only while it reads the noisy sum; and it needs coordinates."""
    chosen = spec.denoising
    if chosen is None:
        return
    if chosen.on == "clean_sum":
        yield Finding(
            "P135",
            "denoising by the sum before noise would publish a statistic of private records unpaid",
            "set mechanism.denoise.on to noisy_sum",
            "mechanism.denoise.on",
        )
        return
    sizes = groups_of(spec, facts) if chosen.per == "group" else (sum(facts.layers),)
    if min(sizes) < FEW_COORDINATES:
        enough = sum(sizes) >= FEW_COORDINATES
        yield Finding(
            "P139",
            f"a step multiplier over {min(sizes):,} coordinates: pure noise gives it about "
            f"{0.87 / math.sqrt(min(sizes)):.2g}, which drowns the signal",
            ("set mechanism.denoise.per to model, or " if enough else "set ") + "mechanism.denoise to none",
            "mechanism.denoise",
            severity=Severity.WARNING,
        )


def one_distribution_where_ranked(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Ranking moves a bound from one coordinate to another: they need the same noise."""
    if spec.group_noise is None:
        return
    if spec.groups == "model":
        yield Finding(
            "P136",
            "noise that differs between layers, with all coordinates ranked together: a bound may land on less noise "
            "than it was accounted with",
            "set mechanism.groups to layer, or remove mechanism.group_noise",
            "mechanism.group_noise",
        )
    elif len(spec.group_noise) != len(facts.layers):
        yield Finding(
            "R261",
            f"{len(spec.group_noise)} relative scales for {len(facts.layers)} layers",
            f"give {len(facts.layers)}, one for each layer with parameters, in order",
            "mechanism.group_noise",
        )


def check_distributions(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Families that need an excuse, and shapes that have no bound."""
    for path, noise in phases(spec.noise):
        try:
            families.check(noise.family, shape_of(noise))
        except ValueError as error:
            name = families.SHAPED[noise.family]
            yield Finding(
                "P101",
                f"no bound for this noise: {error}",
                f"choose a {name} in that range",
                f"{path}.{name}",
            )
            continue
        if isinstance(noise, CauchyNoise) and not noise.force:
            yield Finding(
                "P137",
                "cauchy noise has neither mean nor variance: sums of it never settle, and training on them rarely does",
                "choose family: student_t with a df, or add force: true to have it all the same",
                f"{path}.family",
            )
        elif noise.family != "gaussian" and sum(facts.layers) > MANY_COORDINATES:
            yield Finding(
                "P138",
                f"{noise.family} noise protects {sum(facts.layers):,} coordinates no better than gaussian noise: only "
                "its Fisher information counts there",
                "prefer gaussian; `dprecipe noise` compares all families for this recipe",
                f"{path}.family",
                severity=Severity.WARNING,
            )


def phase_lengths(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Every phase but the last says how long it lasts, once."""
    yield from phased.check_phase_lengths(spec.noise)


def phases_end(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """The phases before the last leave it something to do."""
    if not isinstance(spec.noise, tuple) or list(phase_lengths(spec, facts)):
        return
    if spec.sampling.scheme == "shuffle" or getattr(spec.sampling, "batch_size", 0) > facts.size:
        return
    problem = EncodedRun(spec, facts).problem
    yield from phased.leave_something(problem.opening or 0, problem.events)


def check_optimizer(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """An adaptive optimiser divides any factor of the gradient away again."""
    if spec.denoising is not None and facts.training.descent.kind != "sgd":
        yield Finding(
            "P140",
            f"{facts.training.descent.kind} divides the scale of a gradient away: the step multiplier is applied to "
            "its updates instead",
            "prefer sgd with denoising, or set mechanism.denoise to none",
            "training.optimizer.kind",
            severity=Severity.WARNING,
        )


def check_batches(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Batches fit the data, and the run can be planned."""
    yield from solve.batches_that_fit(Pace.of(spec.sampling, facts.size), facts)


RULES: Sequence[Callable[[Encoded, Facts], Iterator[Finding]]] = (
    codebook_is_public,
    sampled_independently,
    check_microbatches,
    public_divisor,
    check_denoising,
    one_distribution_where_ranked,
    check_distributions,
    phase_lengths,
    phases_end,
    check_optimizer,
    check_batches,
)
