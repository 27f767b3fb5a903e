"""The cost of a run's score, if it is measured on private records."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dprecipe.privacy.events import Charge


def list_score_charges(noise_multiplier: float | None) -> tuple[Charge, ...]:
    """Returns the charge of a count, with this noise, of the held-out records that a run's model gets right; nothing if
    the noise is None, for a score on public records.

    Guarantees: adding, removing or replacing a held-out record moves the count by at most 1. A person with a training
    record and a held-out record moves both training's sums and this count, within the charges of both: the two sets may
    share persons. The charge is composed with those of training, before the best of several runs is.
    """
    if noise_multiplier is None:
        return ()
    from dprecipe.privacy.events import Charge
    from dprecipe.privacy.stages.events import NoisyCount

    return (Charge(NoisyCount(noise_multiplier), 1),)
