"""What a certificate says of a run whose iterates are hidden: one event, whatever happens between its first step and
its last.

The events are those of the transcript that is finally released. An attempt that was cut short released nothing, so one
that goes on with it, or begins anew, is charged once, as long as what ended the first had nothing to do with the
records: that is an assumption, and the certificate says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.pnsgd.schedule import steps_of
from dprecipe.release import schema

if TYPE_CHECKING:
    from dprecipe.release.claim import HiddenNumbers

NAME = "pnsgd"


def facts(plan: Plan, found: HiddenNumbers) -> schema.ProjectionFacts:
    """The problem, from the plan, and the bounds, from the events."""
    settings = plan.settings
    return schema.ProjectionFacts(
        constraint=plan.resolved["mechanism"]["constraint"],
        diameter=settings["diameter"],
        largest_norm=settings["largest_norm"],
        parameters=settings["parameters"],
        feature_norm=settings["feature_norm"],
        l2=settings["l2"],
        lipschitz=settings["lipschitz"],
        moved=settings["moved"],
        smoothness=settings["smoothness"],
        strong_convexity=settings["strong_convexity"],
        contraction=settings["contraction"],
        order=settings["order"],
        stop=settings["stop"],
        batch_size=settings["batch_size"],
        lots=settings["lots"],
        passes=passes(plan),
        stages=tuple(schema.StageFacts(**stage) for stage in settings["stages"]),
        bounds=found.bounds,
        winner=found.winner,
    )


def phases(plan: Plan) -> tuple[schema.PhaseFacts, ...] | None:
    """The noise of each phase, where the recipe has several."""
    noise = plan.resolved["mechanism"]["noise"]
    if not isinstance(noise, list):
        return None
    lots = plan.length.steps_per_epoch
    steps = [steps_of(phase["epochs"], phase["steps"], lots) for phase in noise[:-1]]
    return tuple(
        schema.PhaseFacts(
            steps=count,
            family=phase["family"],
            shape=None,
            multiplier=plan.solved.get(f"mechanism.noise.{index}.multiplier", phase["multiplier"]),
        )
        for index, (phase, count) in enumerate(zip(noise, [*steps, plan.length.steps - sum(steps)], strict=True))
    )


def passes(plan: Plan) -> float:
    """How often the run goes through all records, at most."""
    return plan.length.steps / plan.length.steps_per_epoch


def fewest(made: schema.Predicate) -> str:
    """Before the most steps of a run whose number of steps was drawn; else nothing."""
    problem = made.mechanism.projection
    return "1 to " if problem is not None and problem.stop == "random" else ""


def averaged(plan: Plan, found: HiddenNumbers) -> str:
    """What the claim is an average over, and what it is the worst of; begins with a space."""
    settings, sentences = plan.settings, []
    if settings["order"] == "permuted":
        sentences.append(
            "The records took part in an order drawn at random, whatever they hold; the guarantee is an average over "
            "that order, and the same for every record."
        )
    else:
        sentences.append(
            "The records took part in the order of the file; the guarantee is that of the place where it is weakest."
        )
    if settings["stop"] == "random":
        sentences.append(
            f"The number of steps was drawn at random too, from 1 to {plan.length.steps:,}, and the guarantee is an "
            "average over it."
        )
    if found.by_position:
        best = min(found.by_position, key=lambda row: (row.epsilon, row.position))
        worst = max(found.by_position, key=lambda row: (row.epsilon, -row.position))
        sentences.append(
            f"At this δ, ε is {worst.epsilon!r} for record {worst.position:,} and {best.epsilon!r} for record "
            f"{best.position:,}."
        )
    return "".join(f" {sentence}" for sentence in sentences)


def enforced_by(plan: Plan) -> str:
    """What bounds how far one record moves a step."""
    settings = plan.settings
    norm = settings["feature_norm"]
    clipped = "targets are clipped to their range" if norm is None else f"features are clipped to the norm {norm:g}"
    return (
        f"{clipped}, so that one record's gradient changes by at most {settings['moved']:g}, divided by the "
        f"{settings['batch_size']:,} of a lot; each record is in one lot of a pass, and steps are projected on a set "
        f"of diameter {settings['diameter']:g}"
    )


def not_protected(plan: Plan) -> list[str]:
    """What a hidden run leaves to be assumed."""
    lines = [
        "the model before its last step: the claim holds for those who see none of it, so private/ stays closed while "
        "the run lasts and after it",
        "when an attempt was cut short, if it was: an attempt that goes on with it, or begins anew, is not charged "
        "again, which rests on crashes, and the decision to begin again, not depending on the records",
    ]
    if plan.settings["order"] == "sequential":
        lines.append("which place in the file a record has, and so how well it is protected")
    return lines


def training(plan: Plan) -> str:
    """How the training records were used."""
    text = "every use of the training records is a step of one event, of which nothing but the end is released"
    if plan.settings["private_log"]:
        text += "; the loss on them after each pass stays in private/ and chose nothing"
    return text


def impossible(stated: schema.Predicate) -> list[str]:
    """Why no hidden run can have gone as its certificate says."""
    budget, found = stated.budget, []
    if stated.provenance.model != "recipe":
        found.append("provenance.model: of a model that is not the recipe's nothing is proved, and none is trained")
    if budget.stop_reason != "completed":
        found.append("budget.stop_reason: a hidden run that did not come to its end has no release")
    if not budget.events_settled:
        found.append("budget.events_settled: a hidden run is released when its event is settled")
    return found
