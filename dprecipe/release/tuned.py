"""A certificate's statement of a run that is the best of several: the distribution of their number, what they tried,
what was chosen. Never how many there were."""

from __future__ import annotations

from collections.abc import Mapping

from dprecipe.contract.facts import Access
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.language.tuning import Value
from dprecipe.planning.candidates import describe_candidates, describe_runs, describe_score
from dprecipe.release import no_model, schema


def hides_iterates(plan: Plan) -> bool:
    """Returns True if the claim covers nothing before the end: of a last-iterate release, or of the best of several
    runs, whose course would reveal more of a run than its result."""
    return plan.tuning is not None or mechanism_of(plan.mechanism).certificate.hides_iterates


def describe_tuning(plan: Plan) -> schema.TuningFacts | None:
    """Returns the block `tuning` of a certificate; None where a run was the only one."""
    tuned = plan.tuning
    if tuned is None:
        return None
    distribution, mean, shape = tuned.block.runs.selection
    return schema.TuningFacts(
        distribution=distribution,
        mean=mean,
        shape=shape,
        over=tuple(
            schema.CandidateFacts(key=each.key, values=each.values, range=each.range, scale=each.scale)
            for each in tuned.block.over
        ),
        metric=tuned.block.score.metric,
        records=tuned.block.score.records,
        score_noise_multiplier=tuned.block.score.noise_multiplier,
        one_run_epsilon=tuned.epsilon,
        chosen=tuple(schema.ChosenValue(key=key, value=value) for key, value in sorted((tuned.chosen or {}).items())),
    )


def read_chosen(stated: schema.Predicate) -> Mapping[str, Value] | None:
    """Returns the values that a certificate says were chosen; None where it is not of a tuned run, or all runs were
    lost."""
    if stated.tuning is None or no_model.has_no_model(stated):
        return None
    return {each.key: each.value for each in stated.tuning.chosen}


def describe_access(plan: Plan) -> Access:
    """Describes how the recipe's constants came about."""
    tuned = plan.tuning
    if tuned is None:
        return Access(
            status="declared",
            text="the recipe's constants were chosen without these records; a choice among several runs on "
            "them would spend more than is counted here",
        )
    tried = "; ".join(describe_candidates(each) for each in tuned.block.over)
    chosen = "Chosen: " + ", ".join(f"{key} = {value}" for key, value in sorted((tuned.chosen or {}).items()))
    if tuned.chosen is None:
        chosen = "None was chosen: no run has a model"
    text = (
        f"this is the best of several runs, by {describe_score(tuned.block)}; their "
        f"number: {describe_runs(tuned.block)}. Each drew its values by itself. Tried were {tried}. {chosen}. "
        "All runs together are one event; the recipe's other constants were chosen without these records"
    )
    return Access(status="covered", text=text)


def describe_private_scores(plan: Plan) -> str:
    """Describes what became of scores on private held-out records."""
    if plan.tuning is None:
        return "on private records: the scores stay in private/ and were not used for any choice"
    return (
        "on private records, which the claim covers as it covers the training records: a noisy number of right answers "
        "of each run chose this model, and is charged with it; all scores stay in private/"
    )
