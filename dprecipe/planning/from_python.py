"""Loss and optimiser of a module from Python: for noisy steps of a run that such a module can be passed to."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.plan import Assumption
from dprecipe.contract.table import list_kinds
from dprecipe.faults import Finding
from dprecipe.language.training import Training
from dprecipe.language.words import join_with_or
from dprecipe.planning.learning import has_student
from dprecipe.recipe.root import Recipe

LOSS, OPTIMIZER = "python_loss", "python_optimizer"
"""The ids of the assumptions."""
REMEDIES = {
    "training.loss": "remove training.loss: the loss follows from the label",
    "training.optimizer": "name an optimizer of the recipe, such as training.optimizer: {kind: sgd, lr: 0.1}",
}


def list_own(training: Training) -> list[str]:
    """Returns the keys that leave to a module from Python what the recipe would say."""
    given = {"training.loss": training.own_loss, "training.optimizer": training.own_optimizer}
    return [key for key, is_own in given.items() if is_own]


def check_own(recipe: Recipe) -> Iterator[Finding]:
    """Refuses a module's own loss or optimiser where no module can be passed, or steps are not on noisy sums."""
    for key in list_own(recipe.training):
        if has_student(recipe) and key == "training.optimizer":
            able = join_with_or(list_kinds(lambda mechanism: not mechanism.has_student and not mechanism.is_convex))
            yield Finding(
                "R306",
                f"a student takes the recipe's steps; a module's own optimiser is for mechanism {able}",
                REMEDIES[key],
                key,
            )
        if recipe.tuning is not None:
            yield Finding("R306", "dprecipe tune takes no module from Python", REMEDIES[key], key)
    if recipe.training.own_optimizer and recipe.runtime.sharding != "none":
        yield Finding(
            "R307",
            "a module's own optimiser holds whole weights, and each process has a part of them",
            "remove runtime.sharding, or name an optimizer of the recipe",
            "runtime.sharding",
        )


def assume_own(recipe: Recipe) -> Iterator[Assumption]:
    """Yields what can only be declared of a loss and an optimiser from Python."""
    if recipe.training.own_loss:
        yield Assumption(
            LOSS,
            "the loss came from Python: each call got the outputs and the label of one record alone, and the person "
            "who passed the module declares that it kept nothing of a record from one call to another",
            "declaration",
        )
    if recipe.training.own_optimizer:
        yield Assumption(
            OPTIMIZER,
            "the optimiser (of torch) and its schedule came from Python: they moved the weights by noisy gradients, "
            "and the person who passed the module declares that its constants and functions were chosen without the "
            "private records",
            "declaration",
        )
