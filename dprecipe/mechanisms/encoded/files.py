"""The codebook file of a recipe; its envelope is attached to the recipe's texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dprecipe.contract.mechanism import Blocks, Facts
from dprecipe.contract.plan import canonical_json
from dprecipe.data.facts import describe_data as data_facts
from dprecipe.faults import Finding, RecipeError, RunFailed
from dprecipe.mechanisms.encoded.phases import groups_of
from dprecipe.mechanisms.encoded.plan import ATTACHMENT, EncodedPlan
from dprecipe.mechanisms.encoded.schema import Encoded, FileCodebook, GaussianCodebook
from dprecipe.models import checks as models
from dprecipe.models.schema import Hub

if TYPE_CHECKING:
    from dprecipe.mechanisms.encoded.codebook import Codebook, CodebookError

PATH = "mechanism.codebook.path"


def read_attachments(recipe: Blocks, folder: Path) -> tuple[dict[str, str], list[Finding]]:
    """Returns the summary of the codebook file as text, or findings about the file."""
    spec = recipe.mechanism
    if not isinstance(spec, Encoded) or not isinstance(spec.codebook, FileCodebook):
        return {}, []
    from dprecipe.mechanisms.encoded.codebook import CodebookError, load_codebook

    if not _has_model(recipe):
        return {}, []  # the checks of data and model report it
    sizes = groups_of(spec, Facts.of(recipe))
    try:
        codebook = load_codebook(folder / spec.codebook.path, sizes)
    except CodebookError as error:
        return {}, [_finding(error)]
    return {ATTACHMENT: canonical_json(codebook.box.to_json())}, []


def codebook_of(plan: EncodedPlan, folder: Path) -> Codebook:
    """Returns the codebook of a plan; `folder` is the recipe's.

    Raises:
        RunFailed: the file is missing, or is not the one of the plan.
    """
    from dprecipe.mechanisms.encoded.codebook import CodebookError, draw_gaussian_codebook, load_codebook

    chosen = plan.codebook
    try:
        if isinstance(chosen, GaussianCodebook):
            codebook = draw_gaussian_codebook(plan.groups, plan.words, chosen.floor, chosen.seed)
        else:
            codebook = load_codebook(folder / chosen.path, plan.groups)
    except CodebookError as error:
        raise RunFailed(str(error), "restore the codebook, or plan again") from None
    if codebook.digest != plan.digest:
        raise RunFailed("the codebook is not the one of the plan", "restore it, or plan again")
    return codebook


def _has_model(recipe: Blocks) -> bool:
    try:
        return not isinstance(recipe.model, Hub) and not models.check_data(recipe.model, data_facts(recipe.data))
    except RecipeError:
        return False


def _finding(error: CodebookError) -> Finding:
    if error.reason in ("signed", "unsorted"):
        return Finding(
            "P141",
            str(error),
            "store magnitudes in ascending order: `dprecipe codebook` does",
            PATH,
        )
    return Finding(
        "R260",
        str(error),
        "give a file that `dprecipe codebook` wrote for this model, relative to the recipe that is run",
        PATH,
    )
