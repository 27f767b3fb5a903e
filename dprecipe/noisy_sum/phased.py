"""Lengths of noise phases, for the mechanisms whose noise can have several phases."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.faults import Finding
from dprecipe.noisy_sum.solve import MAX_STEPS


def check_phase_lengths(noise: object) -> Iterator[Finding]:
    """Checks that every phase but the last has exactly one length, in epochs or steps (R262)."""
    if not isinstance(noise, tuple):
        return
    for index, phase in enumerate(noise):
        path, last = f"mechanism.noise.{index}", index == len(noise) - 1
        lengths = [name for name in ("epochs", "steps") if getattr(phase, name) is not None]
        if last and lengths:
            yield Finding(
                "R262",
                "the last phase lasts to the end of the run and takes no length",
                f"remove {' and '.join(lengths)}",
                f"{path}.{lengths[0]}",
            )
        elif not last and not lengths:
            yield Finding(
                "R262",
                "a phase before the last has no length",
                "add epochs (passes over the data) or steps",
                path,
            )
        elif not last and len(lengths) == 2:
            yield Finding("R262", "the phase has both epochs and steps", "remove one of them", f"{path}.steps")


def check_last_phase(opening: int, steps: int | None) -> Iterator[Finding]:
    """Checks that the phases before the last, `opening` steps in total, leave at least one of `steps` steps for the
    last; `None`: as many steps as the budget allows (R262).
    """
    max_steps = MAX_STEPS if steps is None else steps
    if max_steps <= opening:
        limit = "a run has at most" if steps is None else "the run has"
        yield Finding(
            "R262",
            f"the phases before the last take {opening:,} steps; {limit} {max_steps:,}",
            "shorten them" + ("" if steps is None else ", or lengthen the run"),
            "mechanism.noise",
        )
