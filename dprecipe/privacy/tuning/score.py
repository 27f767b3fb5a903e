"""What the score of a run costs, where it is measured on private records."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dprecipe.privacy.events import Charge


def list_score_charges(noise_multiplier: float | None) -> tuple[Charge, ...]:
    """A count of the held-out records that a run's model gets right, with this noise; nothing where it is None, of a
    score on public records.

    Guarantees: adding, removing or replacing a held-out record moves the count by 1 at most, and so does one of the
    training records together with one that is held out move both, training's sums and this count, within the charges of
    both: nobody has to show that no person is in both sets. The charge is composed with those of training, before the
    best of several runs is.
    """
    if noise_multiplier is None:
        return ()
    from dprecipe.privacy.events import Charge
    from dprecipe.privacy.stages.events import NoisyCount

    return (Charge(NoisyCount(noise_multiplier), 1),)
