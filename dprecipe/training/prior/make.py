"""A file of weights from a prior: images, learning, record; what was interrupted goes on where it was saved."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dprecipe.data.facts import feature_shape
from dprecipe.data.schema import Step
from dprecipe.durable import replacing_file
from dprecipe.faults import DataFault, RunFailed
from dprecipe.models.build import build
from dprecipe.models.prior_checks import describe_network, describe_steps
from dprecipe.models.schema import PrimedNetwork
from dprecipe.priors.generate import ImageShape, digest_bytes, make_images
from dprecipe.priors.record import KEY, PriorFacts, PriorRecord, digest_tensors
from dprecipe.priors.schema import Prior
from dprecipe.progress import Progress
from dprecipe.release.facts import list_versions
from dprecipe.training.prior.learn import PriorLearner
from dprecipe.training.program.program import device_of
from dprecipe.training.publish.provenance import device_name

CLASSES = 2
"""Classes of the network while it learns: its last layer is not learned, and not in the file."""
SAVE_SECONDS: Final = 60.0
PROGRESS_KEY = "dprecipe.prior.progress"


@dataclass(frozen=True, slots=True)
class MadePrior:
    """The bytes of a file of weights, and what they say of themselves."""

    content: bytes
    record: PriorRecord
    alignment: float
    uniformity: float


def make_prior(
    model: PrimedNetwork, prior: Prior, shape: ImageShape, steps: Sequence[Step], device: str, kept: Path | None = None
) -> MadePrior:
    """Makes the images (C, H, W) of a prior and learns the layers of `model` below its last one from them.

    The rules of the recipe have to have passed. No data is read; `steps` are those that images go through. `device`
    is as in `runtime.device`. `kept`: where an unfinished learning is saved each minute, and taken up again if it is
    the same one; removed in the end.

    Guarantees: on one CPU with one thread and the same versions the bytes of the tensors are a function of the
    arguments,
    interrupted or not.

    Raises:
        DataFault: the images are not those of `prior.digest`.
        RunFailed: the loss is not finite, or there is no such device.
    """
    place = device_of(device)
    bar = Progress("images", "image", prior.images)
    images = make_images(prior, shape, bar.show)
    bar.end(prior.images)
    digest = digest_bytes(images)
    if prior.digest not in (None, digest):
        raise DataFault(
            f"the images have the digest {digest}, and model.prior.digest is another",
            "correct model.prior.digest, or remove it",
        )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums of several threads may differ in their last bits
    try:
        module = build(model, feature_shape(shape, steps), CLASSES, prior.seed)
        learner = PriorLearner(module, prior, images, steps, place)
        identity = f"{digest} {describe_network(model)} {prior.model_dump(exclude={'digest'})} {describe_steps(steps)}"
        learn(learner, prior, identity, kept)
    finally:
        torch.set_num_threads(threads)
    tensors = learner.weights()
    record = PriorRecord(
        prior=prior.model_copy(update={"digest": None}),
        shape=shape,
        network=describe_network(model),
        preprocess=describe_steps(steps),
        facts=PriorFacts(
            images=digest,
            weights=digest_tensors(save(tensors)),
            versions={name: version for name, version in list_versions().items() if name in ("numpy", "torch")},
            device=device_name(place),
        ),
    )
    if kept is not None:
        kept.unlink(missing_ok=True)
    return MadePrior(save(tensors, {KEY: record.to_json()}), record, *learner.losses)


def learn(learner: PriorLearner, prior: Prior, identity: str, kept: Path | None) -> None:
    """Takes all steps that are left, and saves to `kept` now and then."""
    if kept is not None:
        resume(learner, identity, kept)
    bar, saved = Progress("learning", "step", prior.steps, learner.done), time.monotonic()
    while learner.done < prior.steps:
        learner.step()
        if not sum(learner.losses) < float("inf"):
            raise RunFailed(f"the loss is not finite at step {learner.done}", "set a smaller model.prior.lr")
        bar.show(learner.done, lambda: _describe_losses(learner))
        if kept is not None and time.monotonic() - saved >= SAVE_SECONDS:
            keep(learner, identity, kept)
            saved = time.monotonic()
    bar.end(learner.done, lambda: _describe_losses(learner))


def keep(learner: PriorLearner, identity: str, kept: Path) -> None:
    """Saves an unfinished learning; a disk that refuses costs the saving, and not the learning."""
    try:
        with replacing_file(kept) as file:
            file.write(save(learner.state(), {PROGRESS_KEY: identity}))
    except OSError:
        return


def resume(learner: PriorLearner, identity: str, kept: Path) -> None:
    """Goes on from a saved learning, if there is one and it is the same; else from the beginning."""
    try:
        with safe_open(kept, "pt") as file:
            if (file.metadata() or {}).get(PROGRESS_KEY) != identity:
                return
            state: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return
    learner.load_state(state)


def _describe_losses(learner: PriorLearner) -> str:
    return f"alignment {learner.losses[0]:.3f}, uniformity {learner.losses[1]:.3f}"
