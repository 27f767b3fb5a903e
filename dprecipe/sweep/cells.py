"""The cells of a sweep as plans: all are read and planned before any runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dprecipe.contract.plan import Plan
from dprecipe.faults import Finding, PlanRefused, RecipeError
from dprecipe.nonprivate.plan import PublicPlan
from dprecipe.nonprivate.plan import make_plan as make_public_plan
from dprecipe.planning.make import plan as make_plan
from dprecipe.planning.verifiable import find_unverifiable
from dprecipe.policy.apply import enforce_on_plan, enforce_on_recipe
from dprecipe.recipe.read import Loaded, LoadedPublic, read_any
from dprecipe.sweep.grid import Grid, SweepCell

MAX_FINDINGS = 20
"""Most findings of cells that are shown at once."""


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell with what it will do. `texts`: a digest of the texts that it was planned from, its values included.
    `plan`: that of the first seed of its values; seeds change no plan."""

    cell: SweepCell
    texts: str
    plan: Plan | PublicPlan


def plan_cells(
    recipe: Path, overrides: Sequence[str], grid: Grid, report: Callable[[int], None] = lambda done: None
) -> list[PlannedCell]:
    """Reads and plans all cells; reads no data. `report` gets the number of cells that are planned.

    Raises:
        RecipeError, PlanRefused: with what is wrong with every cell.
    """
    planned: list[PlannedCell] = []
    wrong: list[tuple[SweepCell, RecipeError | PlanRefused]] = []
    for point in grid.list_points():
        cells = [SweepCell(grid.keys, point, seed) for seed in grid.seeds]
        try:
            first = plan_cell(recipe, overrides, cells[0])
            planned.append(first)
            for cell in cells[1:]:
                texts = read_any(recipe, (*overrides, *cell.overrides)).source.digest
                planned.append(PlannedCell(cell, texts, first.plan))
        except (RecipeError, PlanRefused) as fault:
            wrong.append((cells[0], fault))
        report(len(planned))
    if wrong:
        raise _join_faults(wrong, len(grid.list_points()))
    return planned


def plan_cell(recipe: Path, overrides: Sequence[str], cell: SweepCell) -> PlannedCell:
    """Reads and plans one cell, as `dprecipe plan` does.

    Raises:
        RecipeError, PlanRefused: with its findings.
    """
    loaded = read_any(recipe, (*overrides, *cell.overrides))
    if isinstance(loaded, LoadedPublic):
        plan = make_public_plan(loaded)
        enforce_on_recipe(loaded)
        return PlannedCell(cell, loaded.source.digest, plan)
    return PlannedCell(cell, loaded.source.digest, _plan_private(loaded))


def _plan_private(loaded: Loaded) -> Plan:
    plan = enforce_on_plan(make_plan(loaded))
    findings = find_unverifiable(plan)
    if findings:
        raise PlanRefused(loaded.located(findings))
    return plan


def _join_faults(
    wrong: Sequence[tuple[SweepCell, RecipeError | PlanRefused]], points: int
) -> RecipeError | PlanRefused:
    """Returns one fault for all cells; where each has the same findings, the recipe is wrong, and not the grid."""
    first = wrong[0][1]
    found = {tuple((finding.code, finding.path, finding.message) for finding in fault.findings) for _, fault in wrong}
    if len(wrong) == points and len(found) == 1:
        return first
    findings: list[Finding] = []
    for cell, fault in wrong:
        values = ", ".join(cell.overrides[:-1])
        findings += [
            replace(finding, message=f"with {values}: {finding.message}", place=None)
            for finding in fault.findings
            if finding.is_error
        ]
    kind = RecipeError if all(isinstance(fault, RecipeError) for _, fault in wrong) else PlanRefused
    return kind(tuple(findings[:MAX_FINDINGS]))
