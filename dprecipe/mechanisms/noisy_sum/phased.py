"""Phases of noise: how long each lasts. Shared by the mechanisms whose noise can have several."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.faults import Finding
from dprecipe.mechanisms.noisy_sum.solve import MAX_STEPS


def check_phase_lengths(noise: object) -> Iterator[Finding]:
    """Every phase but the last of a list of them says how long it lasts, once (R262)."""
    if not isinstance(noise, tuple):
        return
    for index, phase in enumerate(noise):
        path, last = f"mechanism.noise.{index}", index == len(noise) - 1
        given = [name for name in ("epochs", "steps") if getattr(phase, name) is not None]
        if last and given:
            yield Finding(
                "R262",
                "the last phase lasts to the end of the run and has no length of its own",
                f"remove {' and '.join(given)}",
                f"{path}.{given[0]}",
            )
        elif not last and not given:
            yield Finding(
                "R262",
                "a phase before the last does not say how long it lasts",
                "add epochs (passes over the data) or steps",
                path,
            )
        elif not last and len(given) == 2:
            yield Finding("R262", "the phase has both epochs and steps", "remove one of them", f"{path}.steps")


def leave_something(opening: int, steps: int | None) -> Iterator[Finding]:
    """The phases before the last, of `opening` steps together, leave it something to do in a run of `steps`; `None`: as
    many as the budget holds (R262).
    """
    most = MAX_STEPS if steps is None else steps
    if most <= opening:
        has = "the most a run can have is" if steps is None else "the run has"
        yield Finding(
            "R262",
            f"the phases before the last take {opening:,} steps, {has} {most:,}",
            "shorten them" + ("" if steps is None else ", or lengthen the run"),
            "mechanism.noise",
        )
