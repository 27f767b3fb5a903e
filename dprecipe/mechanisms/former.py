"""Plans as `release/` and the rooms' certificates read them until they take the typed ones; then this goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dprecipe.mechanisms.contract import MechanismPlan
    from dprecipe.mechanisms.dpsgd.plan import DpsgdPlan
    from dprecipe.mechanisms.encoded.plan import CodeNoise, EncodedPlan
    from dprecipe.mechanisms.pate.plan import PatePlan
    from dprecipe.mechanisms.pnsgd.plan import PnsgdPlan


def settings(plan: MechanismPlan) -> Mapping[str, Any]:
    """The constants of a plan by name."""
    made: dict[str, Any] = {"dpsgd": _dpsgd, "encoded": _encoded, "pate": _pate, "pnsgd": _pnsgd}[plan.kind](plan)  # type: ignore[operator]
    return made | {
        "scheme": plan.scheme,
        "sampling_rate": plan.sampling_rate,
        "expected_lot": plan.expected_batch,
        "max_batch_size": plan.max_batch_size,
    }


def _dpsgd(plan: DpsgdPlan) -> dict[str, Any]:
    clip, count, first = plan.clip, plan.clip.adaptation, plan.phases[0]
    return {
        "clip_norm": first.clip_norm,
        "noise_family": plan.noise_family,
        "noise_multiplier": first.noise_multiplier,
        "noise_std": plan.noise_deviation(first),
        "clip": {
            "mode": clip.mode,
            "norm_kind": clip.norm_kind,
            "norms": None if clip.norms is None else list(clip.norms),
            "stability": clip.stability,
            "quantile": None if count is None else count.quantile,
            "learning_rate": None if count is None else count.learning_rate,
            "count_noise": None if count is None else count.count_noise,
        },
        "augmentations": plan.augmentations,
        "phases": [
            {
                "steps": phase.steps,
                "clip_norm": phase.clip_norm,
                "noise_multiplier": phase.noise_multiplier,
                "expected_lot": phase.divisor,
            }
            for phase in plan.phases
        ],
    }


def _encoded(plan: EncodedPlan) -> dict[str, Any]:
    def noise(found: CodeNoise) -> dict[str, Any]:
        return {
            "noise_family": found.family,
            "noise_shape": found.shape,
            "noise_multiplier": found.multiplier,
            "noise_scale": found.scale,
            "noise_std": found.deviation,
        }

    noises = plan.noises
    made = noise(noises[-1]) | {
        "codebook": {
            **plan.codebook.model_dump(mode="json", exclude={"size"}),
            "size": plan.words,
            "digest": plan.digest,
        },
        "sensitivity": plan.sensitivity,
        "dimension": plan.dimension,
        "groups": list(plan.groups),
        "group_noise": None if plan.group_noise is None else list(plan.group_noise),
        "microbatch": plan.microbatch,
        "slots": plan.slots,
        "denoise": None if plan.denoise is None else plan.denoise.model_dump(mode="json", exclude={"on"}),
    }
    if len(noises) > 1:
        made["phases"] = [{"steps": found.steps, **noise(found)} for found in noises]
    return made


def _pate(plan: PatePlan) -> dict[str, Any]:
    check, asked, published = plan.check, plan.interaction, plan.publication
    return {
        "aggregator": plan.aggregator,
        "teachers": plan.ensemble.count,
        "teachers_from": "recipe" if plan.ensemble.votes is None else "file",
        "partition_by": plan.partition_by,
        "classes": plan.classes,
        "queries": plan.queries,
        "answers": plan.answers,
        "noise_family": plan.answer.family,
        "noise_multiplier": plan.answer.noise_multiplier,
        "noise_std": plan.noise_deviation,
        "threshold": plan.threshold,
        "selection_multiplier": None if check is None else check.noise_multiplier,
        "filter": plan.filter_limit,
        "interaction": None
        if asked is None
        else {"rounds": asked.rounds, "threshold": asked.threshold, "confidence": asked.confidence},
        "analysis": plan.analysis,
        "sanitize": None
        if published is None
        else {
            "method": "smooth_sensitivity",
            "order": published.order,
            "beta": published.event.beta,
            "multiplier": published.event.noise_multiplier,
            "scale_multiplier": published.event.scale_multiplier,
            "delta": published.failure,
        },
    }


def _pnsgd(plan: PnsgdPlan) -> dict[str, Any]:
    descent, proven, phases = plan.descent, plan.descent.proven, plan.noise_phases
    first = plan.stages[0]
    return {
        "constraint": plan.constraint.model_dump(mode="json"),
        "diameter": proven.diameter,
        "largest_norm": proven.largest_norm,
        "feature_norm": plan.feature_norm,
        "bias": plan.bias,
        "l2": plan.l2,
        "parameters": proven.parameters,
        "outputs": proven.outputs,
        "lipschitz": proven.lipschitz,
        "moved": proven.moved,
        "smoothness": proven.smoothness,
        "strong_convexity": proven.strong_convexity,
        "contraction": plan.contraction,
        "phases": None
        if plan.phase_steps is None
        else [
            {"steps": phase.steps, "family": descent.family, "shape": None, "multiplier": phase.multiplier}
            for phase in phases
        ],
        "stages": [
            {
                "steps": stage.steps,
                "learning_rate": stage.learning_rate,
                "noise_scale": stage.noise_scale,
                "noise_multiplier": stage.noise_scale / proven.lipschitz,
            }
            for stage in plan.stages
        ],
        "noise_family": descent.family,
        "noise_multiplier": phases[0].multiplier,
        "noise_scale": first.noise_scale,
        "noise_std": first.noise_scale * (math.sqrt(2) if descent.family == "laplace" else 1.0),
        "batch_size": descent.batch_size,
        "lots": plan.event.lots,
        "order": descent.order,
        "stop": descent.stop,
        "winner": plan.winner,
        "bounds": {bound.name: bound.epsilon for bound in plan.bounds},
        "checkpoint": plan.checkpoint,
        "private_log": plan.private_log,
    }
