"""Checks of `model.prior`, before anything is made (R284), and of the file that it stands for. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dprecipe.data.facts import DataFacts
from dprecipe.data.schema import Step
from dprecipe.faults import DataFault, Finding
from dprecipe.models.schema import Model, Pretrained, Primed, PrimedNetwork
from dprecipe.priors.record import PriorFacts, PriorFile, PriorRecord
from dprecipe.priors.schema import Prior, fits_generators

FROM_ELSEWHERE = {"init", "train", "prior"}
"""Keys of a network that say what it starts from and what is trained: its layers are the same without them."""


def find_unusable_prior(model: Pretrained, facts: DataFacts) -> Iterator[Finding]:
    """Refuses a prior without a file to stand for, images to be like, and layers to learn."""
    if not isinstance(model, Primed) or model.prior is None:
        return
    if model.init is None:
        yield Finding(
            "R284",
            "model.prior says what the initial weights were learned from, and no file of them is named",
            "set model.init to the file that `dprecipe prior` is to write, such as prior.safetensors, or remove "
            "model.prior",
            "model.prior",
        )
    if not fits_generators(facts.source_shape):
        shape = "×".join(map(str, facts.source_shape))
        yield Finding(
            "R284",
            f"a prior is learned from images of 1 or 3 channels and of 4 to 256 pixels a side, and records are {shape}",
            "remove model.prior",
            "model.prior",
        )


def describe_network(model: Pretrained) -> dict[str, Any]:
    """Returns the model block without what it starts from and what it trains, JSON types only."""
    content: dict[str, Any] = model.model_dump(mode="json", exclude=FROM_ELSEWHERE)
    return content


def describe_steps(steps: Sequence[Step]) -> tuple[dict[str, Any], ...]:
    """Returns the steps of `data.preprocess` that make features of an image; what moves at random is no part of
    them.
    """
    constant = [step for step in steps if step.crop is None and step.flip is None]
    return tuple(step.model_dump(mode="json", exclude_none=True) for step in constant)


def read_network(record: PriorRecord, name: str) -> tuple[PrimedNetwork, tuple[Step, ...]]:
    """Returns the network that learned, and the steps that images went through, as a file says it; it is untrusted.

    Raises:
        DataFault: it says no such thing, or something that does not fit.
    """
    try:
        model: Model = TypeAdapter(Model).validate_json(json.dumps(record.network))
        steps = TypeAdapter(tuple[Step, ...]).validate_json(json.dumps(record.preprocess))
    except ValidationError:
        raise _unlike_a_prior(name) from None
    if not isinstance(model, PrimedNetwork) or not fits_generators(record.shape):
        raise _unlike_a_prior(name)
    return model, steps


def _unlike_a_prior(name: str) -> DataFault:
    return DataFault(
        f"{name}: what it says of the network that learned is damaged", "make it again with `dprecipe prior RECIPE`"
    )


def check_prior_file(name: str, model: Primed, prior: Prior, file: PriorFile | None) -> PriorFacts:
    """Returns the facts of a file of weights that a recipe says were learned from `prior`.

    Raises:
        DataFault: it says nothing of a prior, was learned from another one or by another network, or its numbers are
        not those
            that it speaks of.
    """
    remedy = "make it again with `dprecipe prior RECIPE`, or correct model.prior"
    if file is None:
        raise DataFault(f"{name}: says nothing of a prior, and the recipe declares one", f"{remedy}, or remove it")
    record = file.record
    if file.weights != record.facts.weights:
        raise DataFault(f"{name}: its tensors are not those that its prior made: their digest differs", remedy)
    if record.network != describe_network(model):
        differing = sorted(
            key
            for key in {*record.network, *describe_network(model)}
            if record.network.get(key) != describe_network(model).get(key)
        )
        raise DataFault(f"{name}: was learned by another network: model.{differing[0]} differs", remedy)
    if differing := find_differing(record.prior, prior):
        raise DataFault(
            f"{name}: was learned from another prior than the recipe declares: {', '.join(differing)} differ", remedy
        )
    if prior.digest not in (None, record.facts.images):
        raise DataFault(f"{name}: was learned from other images than those of model.prior.digest", remedy)
    return record.facts


def find_differing(one: Prior, other: Prior) -> list[str]:
    """Returns the keys in which two priors differ, but for the digest that one of them may state."""
    mine, theirs = one.model_dump(exclude={"digest"}), other.model_dump(exclude={"digest"})
    return [key for key in mine if mine[key] != theirs[key]]
