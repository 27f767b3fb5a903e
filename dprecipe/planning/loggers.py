"""Checks of loggers: the values that a recipe may not send to them."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.table import mechanism_of
from dprecipe.faults import Finding
from dprecipe.recipe.root import Recipe

PRIVATELY = "log with kind tensorboard or csv and values: private, into files under private/"


def check_loggers(recipe: Recipe) -> Iterator[Finding]:
    """Checks that nothing private leaves the run's own files, and that no logger reveals the duration of a run where it
    is protected."""
    for number, logger in enumerate(recipe.runtime.loggers):
        path = f"runtime.loggers.{number}"
        if recipe.tuning is not None:
            yield Finding(
                "P195",
                "how many runs a tuned run makes, and how each of them does, is secret: no logger may show it",
                "remove runtime.loggers; private/trials.csv has the scores of all runs",
                path,
            )
        elif logger.values == "private" and logger.networked:
            yield Finding(
                "P195",
                f"{logger.kind} sends values to another machine, and `values: private` are not covered by the claim",
                "set values to covered, or log private values with kind tensorboard or csv, into files under private/",
                f"{path}.values",
            )
        elif logger.values == "covered" and recipe.data.hides_training_units:
            why = "is protected (data.size: {max: …})" if recipe.data.hides_size else "data.test.split keeps secret"
            yield Finding(
                "P195",
                f"how long a step takes reveals the number of units, which {why}, and a logger notes the time of each "
                "value and of the run's end",
                PRIVATELY,
                path,
            )
        elif logger.values == "covered" and mechanism_of(recipe.mechanism.kind).hides_duration(recipe.mechanism):
            yield Finding(
                "P195",
                "the guarantee is an average over the number of steps, which is secret, and a logger notes the time of "
                "the run's end",
                PRIVATELY,
                path,
            )
