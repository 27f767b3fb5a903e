"""Paid steps of preprocessing in a certificate: which noise each had, what it costs alone, and what it released.

The constants themselves are in `model.json`; the certificate has their digests. `verify` holds the constants against
both the certificate and the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dprecipe.contract.facts import Access
from dprecipe.contract.plan import Plan, digest_of
from dprecipe.data.paid.bounds import find_misfit
from dprecipe.data.paid.constants import StageConstants, dump_constants, parse_constants
from dprecipe.faults import InternalFault
from dprecipe.page import escape_html, render_number, render_section, render_table
from dprecipe.release.no_model import has_no_model
from dprecipe.release.schema import PaidStageFacts, Predicate


def describe_access(has_no_model: bool) -> Access:
    """Describes how paid steps of preprocessing used the data; `has_no_model`: the run ended without a model."""
    became = "released constants, and each release"
    if has_no_model:
        became = "drew constants, which are not released, and each draw"
    return Access(
        status="covered", text=f"paid steps {became} is one of the events; all other steps are constants of the recipe"
    )


def digest_constants(constants: StageConstants) -> str:
    """Returns the digest that a certificate has of released constants."""
    return digest_of(dump_constants(constants))


def describe_stages(plan: Plan, digests: Sequence[str]) -> tuple[PaidStageFacts, ...] | None:
    """Describes the plan's paid steps as the certificate states them; None where there is none.

    Raises:
        RunFailed: there is not one digest for each.
    """
    if len(digests) != len(plan.stages):
        raise InternalFault("not every paid step has released its constants")
    alone = {part.step: part.epsilon for part in plan.spending}
    stages = zip(plan.stages, digests, strict=True)
    return (
        tuple(
            PaidStageFacts(
                step=stage.step,
                kind=stage.kind,
                noise_multiplier=stage.noise_multiplier,
                epsilon_alone=alone[stage.step],
                constants=digest,
            )
            for stage, digest in stages
        )
        or None
    )


def read_constants(content: Any) -> tuple[StageConstants, ...]:
    """Returns the constants in a stranger's `model.json`, which may have none.

    Raises:
        ValueError: they are not of the form that dprecipe writes.
    """
    released = content.get("stages", [])
    if not isinstance(released, list):
        raise ValueError("stages is not a list")
    return tuple(map(parse_constants, released))


def find_differences(stated: Predicate, plan: Plan, released: Sequence[StageConstants]) -> Iterator[str]:
    """Finds constants in `model.json` that are not the certificate's, or can't be those of the recipe's steps."""
    facts = stated.stages or ()
    if not len(released) == len(facts) == len(plan.stages):
        yield "model.json: stages: not one set of constants for each paid step"
        return
    for number, (stage, fact, constants) in enumerate(zip(plan.stages, facts, released, strict=True)):
        if digest_constants(constants) != fact.constants:
            yield f"model.json: stages.{number}: not the constants whose digest the certificate has"
        misfit = find_misfit(plan.data, stage.step, stage.charges, constants, released[:number])
        if misfit is not None:
            yield f"model.json: stages.{number}: not what {stage.path} can release: {misfit}"
            return  # later steps are compared with earlier constants


def render_stages(plan: Plan, predicate: Predicate) -> list[str]:
    """Returns the report's section of who spends what; none where the mechanism alone spends."""
    if not plan.spending:
        return []
    noise: dict[int | None, str] = {stage.step: render_number(stage.noise_multiplier) for stage in plan.stages}
    rows = [(part.name, noise.get(part.step, ""), render_number(part.epsilon)) for part in plan.spending]
    rows.append(("together", "", render_number(predicate.claim.epsilon)))
    text = "What each part would cost alone, as planned, and what was spent together."
    if not has_no_model(predicate):
        text += (
            " The constants that paid steps of preprocessing released are in model.json; whoever uses the model "
            "prepares records with them."
        )
    table = render_table(("part", "noise multiplier", "ε alone"), rows)
    return [render_section("Who spends what", f"{table}<p>{escape_html(text)}</p>")]
