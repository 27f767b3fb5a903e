"""`dprecipe prior`: initial weights from images of a random process, and the check that they are that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dprecipe.cli.arguments import Overrides
from dprecipe.cli.files import check_output, path_in_recipe, replace_output
from dprecipe.data.facts import describe_data
from dprecipe.faults import CertificateInvalid, DataFault, PlanRefused, UsageFault
from dprecipe.libraries import check_libraries, importing_libraries
from dprecipe.models.prior_checks import describe_network, describe_steps, read_network
from dprecipe.models.schema import PrimedNetwork
from dprecipe.planning import rules
from dprecipe.priors.generate import ImageShape, digest_images
from dprecipe.priors.record import PriorFacts, PriorRecord, read_prior
from dprecipe.priors.schema import Prior
from dprecipe.progress import Progress
from dprecipe.recipe.read import read, read_source
from dprecipe.recipe.root import Recipe
from dprecipe.screen import write_output

WEIGHTS = ".safetensors"
NO_PRIOR = UsageFault(
    "the recipe declares no prior",
    "add a block model.prior, such as {generator: mixed}, to a model of kind mlp, cnn or wide_resnet",
)


def prior(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A recipe; with --check weights or a certificate.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The file of weights; model.init by default.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Make the images again and compare their digest.")] = False,
    retrain: Annotated[bool, typer.Option("--retrain", help="With --check: also learn the weights again.")] = False,
) -> None:
    """Learns the weights that a recipe declares; with `check`, checks those that are there. Raises as `make_prior` and
    `check_prior`."""
    if check:
        check_prior(path, retrain)
    else:
        make_prior(path, out, overrides or (), force)


def make_prior(recipe: Path, out: Path | None, overrides: Sequence[str] = (), force: bool = False) -> None:
    """Learns initial weights from a recipe's `model.prior`; writes them to `out`, by default to the file that
    `model.init` names.

    Raises:
        RecipeError: what is wrong with the recipe's text.
        PlanRefused: its blocks contradict each other.
        UsageFault: a file that exists or can't be written, a recipe without a prior, or no torch.
        DataFault, RunFailed: as `dprecipe.training.prior.make.make_prior`.
    """
    loaded = read(recipe, overrides)
    model, prior = _declared(loaded.recipe)
    findings = [finding for rule in rules.RULES for finding in rule(loaded.recipe)]
    if any(finding.is_error for finding in findings):
        raise PlanRefused(loaded.located(findings))
    target = out or recipe.parent / str(model.init)
    if target.suffix != WEIGHTS:
        raise UsageFault(f"{target} does not end in {WEIGHTS}", "name another file with --out")
    check_output(target, force)
    with importing_libraries("learning a prior"):
        from dprecipe.training.prior import make

    data = loaded.recipe.data
    kept = target.with_name(f"{target.stem}.part")
    made = make.make_prior(model, prior, _shape(loaded.recipe), data.preprocess, loaded.recipe.runtime.device, kept)
    described = target.with_suffix(".json")
    record = json.dumps(json.loads(made.record.to_json()), indent=2) + "\n"
    replace_output(target, made.content)
    replace_output(described, record.encode())
    write_output(
        [
            f"wrote {target}, and {described.name}, which says what it is",
            f"images {made.record.facts.images}",
            f"weights {made.record.facts.weights}",
            f"alignment {made.alignment:.4f}, uniformity {made.uniformity:.4f} at the last step",
            "for the recipe:",
            "model:",
            f"  init: {path_in_recipe(recipe, target)}",
        ]
    )


def check_prior(path: Path, retrain: bool = False) -> None:
    """Makes the images of a prior again, and compares their digest; with `retrain`, learns the weights again as well.

    `path`: a file that `dprecipe prior` has written; or a certificate, or a release folder, which is verified first.

    Raises:
        UsageFault: there is no prior to check, or no torch to learn with.
        DataFault: the file can't be read or its parts don't belong together.
        CertificateInvalid: the certificate does not verify, or a digest is another.
    """
    if retrain:
        check_libraries("learning a prior", "torch", "safetensors")
    record = _record_of(path)
    prior, facts = record.prior, record.facts
    bar = Progress("images", "image", prior.images)
    images = digest_images(prior, record.shape, bar.show)
    bar.end(prior.images)
    if images != facts.images:
        raise CertificateInvalid([f"images: the digest is {images}, and not {facts.images}"])
    write_output(
        [
            f"the same images: {prior.images:,} of generator {prior.generator}, version {prior.version}, "
            f"seed {prior.seed}",
            f"images {images}",
            *([] if retrain else [f"weights {facts.weights}: not learned again; --retrain does it"]),
        ]
    )
    if retrain:
        _learn_again(record, path)


def _learn_again(record: PriorRecord, path: Path) -> None:
    with importing_libraries("learning a prior"):
        from dprecipe.training.prior.make import make_prior as learn

    model, steps = read_network(record, path.name)
    device = "cuda" if record.facts.device.startswith("cuda") else "cpu"
    facts = learn(model, record.prior, record.shape, steps, device).record.facts
    if facts.weights != record.facts.weights:
        raise CertificateInvalid([f"weights: learned again they are {facts.weights}, {_why(facts, record.facts)}"])
    write_output(["the same weights, learned again", f"weights {facts.weights}"])


def _why(mine: PriorFacts, theirs: PriorFacts) -> str:
    there = ", ".join(f"{name} {version}" for name, version in theirs.versions.items())
    if (mine.versions, mine.device) != (theirs.versions, theirs.device):
        return f"not {theirs.weights}; that was on {theirs.device} with {there}, and others may round otherwise"
    return (
        f"not {theirs.weights}; the versions are the same ({there}), but another kind of processor may round otherwise"
    )


def _record_of(path: Path) -> PriorRecord:
    if path.suffix != WEIGHTS:
        return _certified_record(path)
    file = read_prior(path)
    if file is None:
        raise UsageFault(f"{path}: says nothing of a prior", "name a file that `dprecipe prior` has written")
    if file.weights != file.record.facts.weights:
        raise DataFault(
            f"{path}: its tensors are not those that its prior made: their digest differs",
            "make it again with `dprecipe prior RECIPE`",
        )
    read_network(file.record, path.name)
    return file.record


def _certified_record(path: Path) -> PriorRecord:
    """Returns what a certificate that holds says of the prior that its run began from."""
    from dprecipe.release.rebuild import stated_source
    from dprecipe.release.verify import verify

    stated = verify(path).statement.predicate
    recipe, initial = read_source(stated_source(stated)).recipe, stated.provenance.initial_weights
    if initial is None or initial.prior is None:
        raise UsageFault(f"{path}: the run did not begin from a prior", "name a file that `dprecipe prior` has written")
    model, prior = _declared(recipe)
    return PriorRecord(
        prior=prior,
        shape=_shape(recipe),
        network=describe_network(model),
        preprocess=describe_steps(recipe.data.preprocess),
        facts=initial.prior,
    )


def _declared(recipe: Recipe) -> tuple[PrimedNetwork, Prior]:
    model = recipe.model
    if not isinstance(model, PrimedNetwork) or model.prior is None:
        raise NO_PRIOR
    return model, model.prior


def _shape(recipe: Recipe) -> ImageShape:
    channels, height, width = describe_data(recipe.data).source_shape
    return channels, height, width
