"""Checks of how the model is trained: by noisy steps, by a convex mechanism, as a student, or by direct fitting.

A convex mechanism has no optimizer: it takes plain steps, whose length its block states. A student learns from public
records and released labels, so its training spends nothing: it has its own batch size, and its length can't be solved
for. Trees are fitted directly; so is a student's logistic regression without a `training` block.
"""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.mechanism import RuntimeOption
from dprecipe.contract.table import list_kinds, mechanism_of
from dprecipe.data.facts import DataFacts
from dprecipe.faults import Finding
from dprecipe.language.training import Training
from dprecipe.language.words import join_with_or
from dprecipe.models import checks
from dprecipe.models.schema import CausalLm, GradientBoosting, LogisticRegression, NoModel, RandomForest
from dprecipe.recipe.root import Recipe


def has_student(recipe: Recipe) -> bool:
    """Returns True if the model is a student of released labels, and not made by noisy steps."""
    return mechanism_of(recipe.mechanism.kind).has_student


def is_convex(recipe: Recipe) -> bool:
    """Returns True if the mechanism takes plain steps of its own on a convex loss with proved constants."""
    return mechanism_of(recipe.mechanism.kind).is_convex


def is_fitted_directly(recipe: Recipe) -> bool:
    """Returns True if the model takes no gradient steps: the `training` block is then left out."""
    if isinstance(recipe.model, RandomForest | GradientBoosting | NoModel):
        return True
    return has_student(recipe) and isinstance(recipe.model, LogisticRegression) and recipe.training == Training()


def check_gradients(recipe: Recipe) -> Iterator[Finding]:
    """Refuses a model without gradients if noise is added to gradients. The account of a convex mechanism has its own
    check."""
    if is_convex(recipe):
        return
    if isinstance(recipe.model, RandomForest | GradientBoosting) and not has_student(recipe):
        yield Finding(
            "R305",
            f"a {recipe.model.kind} has no gradients: {recipe.mechanism.kind} can't train it",
            f"choose model.kind logistic_regression, mlp or cnn{_suggest_student()}",
            "model.kind",
        )


def _suggest_student() -> str:
    """Suggests the mechanisms that can train trees: those with a student."""
    kinds = list_kinds(lambda mechanism: mechanism.has_student)
    return f"; or mechanism.kind {join_with_or(kinds)}, whose student can be a tree" if kinds else ""


def check_convex_models(recipe: Recipe) -> Iterator[Finding]:
    """Refuses models with proved constants where the mechanism has no use for them."""
    if not is_convex(recipe):
        convex = join_with_or(list_kinds(lambda mechanism: mechanism.is_convex))
        yield from checks.find_unsupported(
            recipe.model, recipe.mechanism.kind, fitted=is_fitted_directly(recipe), convex=convex
        )


def check_training_block(recipe: Recipe) -> Iterator[Finding]:
    """Checks that a model that learns by gradient steps has an optimizer and exactly one length, and that a fitted
    model has neither."""
    training = recipe.training
    if isinstance(recipe.model, RandomForest | GradientBoosting):
        if has_student(recipe) and training != Training():
            yield Finding(
                "R304",
                f"a {recipe.model.kind} takes no gradient steps: training has no effect",
                "remove training, or choose model.kind logistic_regression, mlp or cnn",
                "training",
            )
        return
    if is_fitted_directly(recipe):
        return
    if not mechanism_of(recipe.mechanism.kind).has_length:
        if training != Training():
            yield Finding(
                "R304",
                f"{recipe.mechanism.kind} has no length and no optimizer: training has no effect",
                "remove training",
                "training",
            )
        return
    if is_convex(recipe):
        yield from check_length(training)
        return
    if training == Training():
        yield Finding(
            "R304",
            f"nothing says how the {recipe.model.kind} is trained",
            "add training: {epochs: …, optimizer: {kind: sgd, lr: …}}",
            "training",
        )
        return
    if training.optimizer is None:
        yield Finding(
            "R304",
            "training has no optimizer",
            "add training.optimizer, such as {kind: sgd, lr: 0.1}",
            "training",
        )
    yield from check_length(training)


def check_length(training: Training) -> Iterator[Finding]:
    """Checks that exactly one of `epochs` and `steps` is given."""
    if (training.epochs is None) == (training.steps is None):
        both = training.epochs is not None
        yield Finding(
            "R301",
            "training has both epochs and steps" if both else "training has no length",
            "remove one of them" if both else "set training.epochs (passes over the data) or training.steps",
            "training.steps" if both else "training",
        )


def check_training_keys(recipe: Recipe) -> Iterator[Finding]:
    """Checks that noisy steps take the batches of the `mechanism` block, and that a student's length is a number: it
    spends nothing, so it can't be solved for."""
    training = recipe.training
    if not mechanism_of(recipe.mechanism.kind).has_length:
        return  # `check_training_block` says that there is no such block
    if has_student(recipe):
        for key in ("epochs", "steps"):
            if getattr(training, key) == "auto":
                yield Finding(
                    "R306",
                    "the student's training spends nothing, so the budget does not say how long it is",
                    f"give training.{key} a number",
                    f"training.{key}",
                )
        return
    if training.batch_size is not None:
        own = "batch_size" in type(recipe.mechanism).model_fields
        key = "mechanism.batch_size" if own else "mechanism.sampling.batch_size"
        yield Finding(
            "R306",
            f"{recipe.mechanism.kind} takes its batch size from {key}",
            f"remove training.batch_size, and set {key}",
            "training.batch_size",
        )
    for key, value in (
        ("augment", training.augment),
        ("robustness", training.robustness or None),
        ("semi_supervised", training.semi_supervised),
    ):
        if value is not None:
            yield Finding(
                "R306",
                f"{recipe.mechanism.kind} learns from data.train alone; this is for a student, which learns from "
                "released labels",
                f"remove training.{key}",
                f"training.{key}",
            )


def check_runtime_options(recipe: Recipe) -> Iterator[Finding]:
    """Checks that a recipe sets only the options of `runtime` that its mechanism reads."""
    kind, runtime = recipe.mechanism.kind, recipe.runtime
    options = mechanism_of(kind).runtime_options
    if "compile" in options and runtime.compile is True and recipe.data.unit != "record":
        yield Finding(
            "R307",
            "runtime.compile needs a fixed number of records per unit",
            "remove runtime.compile",
            "runtime.compile",
        )
    if runtime.sharding != "none" and recipe.audit is not None and recipe.audit.canaries is not None:
        yield Finding(
            "R307",
            "canaries are scored by whole noisy sums, and each process has a part of them",
            "remove runtime.sharding, or audit.canaries",
            "runtime.sharding",
        )
    yield from _check_parameters_in_shards(recipe)
    if runtime.recompute and runtime.compile is True:
        yield Finding(
            "R307",
            "blocks that are computed again are not compiled",
            "remove runtime.compile or runtime.recompute",
            "runtime.compile",
        )
    if "recompute" in options and runtime.recompute and getattr(recipe.model, "kind", None) != "causal_lm":
        yield Finding(
            "R307",
            "runtime.recompute is for the blocks of a decoder (model.kind: causal_lm)",
            "remove runtime.recompute",
            "runtime.recompute",
        )
    if runtime.physical_batch == "auto" and "physical_batch" not in options:
        able = _kinds_that_read("physical_batch")
        yield Finding(
            "R307",
            f"{kind} needs a number of records at once: physical_batch: auto is for {able} alone",
            "write a number, or remove runtime.physical_batch",
            "runtime.physical_batch",
        )
    options_set: tuple[tuple[RuntimeOption, str, bool], ...] = (
        ("compile", "compiles nothing", runtime.compile != "auto"),
        ("precision", "computes in its own precision", runtime.precision != 32),
        ("recompute", "stores the activations inside blocks", runtime.recompute),
        ("processes", "runs in one process", runtime.processes > 1),
        ("sharding", "keeps its noisy sums whole", runtime.sharding != "none"),
        ("loggers", "logs nothing while it runs", bool(runtime.loggers)),
    )
    for key, what, is_set in options_set:
        if is_set and key not in options:
            able = _kinds_that_read(key)
            yield Finding(
                "R307",
                f"{kind} {what}" + (f": runtime.{key} is for {able} alone" if able else ""),
                f"remove runtime.{key}",
                f"runtime.{key}",
            )


def _check_parameters_in_shards(recipe: Recipe) -> Iterator[Finding]:
    """Checks the conditions of weights in shards, which are gathered block by block, for one pass of records that are
    units."""
    runtime = recipe.runtime
    if runtime.sharding != "parameters":
        return
    reasons = {
        "a model of repeated blocks (model.kind: causal_lm or transformer)": getattr(recipe.model, "kind", None)
        in ("causal_lm", "transformer"),
        "units of one record (data.unit: record)": recipe.data.unit == "record",
        "a number in runtime.physical_batch, which is measured with whole weights": runtime.physical_batch != "auto",
        "a pass that is not compiled": runtime.compile is not True,
        "recompute: true with precision: bf16, which otherwise keeps a copy of all weights": runtime.precision == 32
        or runtime.recompute,
    }
    for needs, has in reasons.items():
        if not has:
            yield Finding(
                "R307",
                f"weights in shards need {needs}",
                "set runtime.sharding to optimizer, or remove it",
                "runtime.sharding",
            )


def _kinds_that_read(option: RuntimeOption) -> str:
    return join_with_or(list_kinds(lambda mechanism: option in mechanism.runtime_options))


def check_augmentation(recipe: Recipe, facts: DataFacts) -> Iterator[Finding]:
    """Checks that a student's augmentation has pixels to move."""
    if recipe.training.augment is not None and not facts.is_pixels:
        yield Finding(
            "R212",
            "training.augment moves pixels, and the features here are not images",
            "remove training.augment, or the steps of data.preprocess that make vectors of images (flatten, "
            "scattering, patches, whiten)",
            "training.augment",
        )


def check_released_labels(recipe: Recipe) -> Iterator[Finding]:
    """Refuses published labels unless they are a student's."""
    if recipe.release.labels and not has_student(recipe):
        yield Finding(
            "R306",
            f"{recipe.mechanism.kind} releases no labels",
            "remove release.labels",
            "release.labels",
        )


def check_released_weights(recipe: Recipe) -> Iterator[Finding]:
    """Refuses `release.weights` unless a language model's adapters are trained: no other model has a second form that
    other programs read."""
    model = recipe.model
    if recipe.release.weights is not None and not (isinstance(model, CausalLm) and model.lora is not None):
        yield Finding(
            "R340",
            f"{model.kind} without adapters is released in one form: release.weights has no effect"
            if isinstance(model, CausalLm)
            else f"{model.kind} is released in one form: release.weights is for a causal_lm with lora",
            "remove release.weights" + (", or add model.lora" if isinstance(model, CausalLm) else ""),
            "release.weights",
        )
