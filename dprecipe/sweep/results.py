"""The results of a sweep: scores and ε of each cell, as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dprecipe.comparison import Interval, find_interval
from dprecipe.nonprivate.documents import FOLDER
from dprecipe.nonprivate.plan import PublicPlan
from dprecipe.release.folder import CERTIFICATE, METRICS
from dprecipe.release.schema import Statement
from dprecipe.release.scores import BASELINE, format_score, list_leading, read_numbers, select_numbers, spell_score
from dprecipe.release.untrusted import ContentError, parse_object, read_bytes, validate_document
from dprecipe.screen import align_columns
from dprecipe.sweep.cells import PlannedCell
from dprecipe.sweep.folder import SweepFolder
from dprecipe.sweep.grid import Grid, SweepCell


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result of one cell. `epsilon`: spent; None without a guarantee or a release. `failure`: empty of a run that
    ended in order."""

    cell: SweepCell
    epsilon: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True, slots=True)
class PointRow:
    """All seeds of one combination of values. `score`: None where no run has one."""

    values: tuple[str, ...]
    epsilon: float | None
    scores: tuple[float, ...]
    failures: int

    @property
    def score(self) -> Interval | None:
        """The mean over seeds and its interval."""
        return find_interval(self.scores)


def read_result(planned: PlannedCell, folder: SweepFolder) -> CellResult:
    """Reads what a cell has released: what is in no release is not looked at."""
    cell, place = planned.cell, folder.locate(planned.cell)
    if not folder.is_done(cell):
        return CellResult(cell, failure=folder.read_failure(cell) or "not run")
    try:
        if isinstance(planned.plan, PublicPlan):
            numbers = select_numbers(parse_object(read_bytes(place / FOLDER / METRICS), METRICS))
            return CellResult(cell, None, numbers)
        content = parse_object(read_bytes(place / "release" / CERTIFICATE), CERTIFICATE)
        predicate = validate_document(Statement, content, "").predicate
    except (ContentError, OSError) as error:
        return CellResult(cell, failure=f"what it wrote can't be read: {error}")
    released = predicate.data_access.evaluation.released
    numbers = {} if released is None else read_numbers(released)
    return CellResult(cell, predicate.claim.epsilon, numbers, "" if numbers else "it ended without a model")


def list_metrics(results: Sequence[CellResult]) -> list[str]:
    """Lists the scores that all runs with scores have, those first that say most."""
    scored = [each.scores for each in results if each.scores]
    if not scored:
        return []
    keys = dict.fromkeys([*list_leading(scored[0]), *scored[0]])
    return [key for key in keys if not key.endswith(BASELINE) and all(key in scores for scores in scored)]


def gather_rows(grid: Grid, results: Sequence[CellResult], metric: str | None) -> list[PointRow]:
    """Returns a row for each combination of values, in the order of the grid."""
    rows = []
    for point in grid.list_points():
        own = [each for each in results if each.cell.values == point]
        spent = [each.epsilon for each in own if each.epsilon is not None]
        scores = tuple(each.scores[metric] for each in own if metric is not None and metric in each.scores)
        rows.append(PointRow(point, max(spent, default=None), scores, sum(each.failure != "" for each in own)))
    return rows


def write_table(grid: Grid, results: Sequence[CellResult]) -> str:
    """Returns the table of all runs as CSV: a column for each key, the seed, ε, and each score."""
    names = list(dict.fromkeys(key for each in results for key in each.scores))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*grid.keys, "seed", "epsilon", *names, "failure"])
    for each in results:
        numbers = [f"{each.scores[name]:.6g}" if name in each.scores else "" for name in names]
        epsilon = "" if each.epsilon is None else f"{each.epsilon:g}"
        writer.writerow([*each.cell.values, each.cell.seed, epsilon, *numbers, each.failure])
    return out.getvalue()


def render_rows(grid: Grid, rows: Sequence[PointRow], metric: str | None) -> list[str]:
    """Returns the table of means over seeds, as lines of text."""
    has_epsilon = any(row.epsilon is not None for row in rows)
    score = "score" if metric is None else spell_score(metric)
    head = [*grid.keys, *(["ε"] if has_epsilon else []), score, "runs"]
    cells = [head]
    for row in rows:
        spent = ["–" if row.epsilon is None else f"{row.epsilon:.4g}"] if has_epsilon else []
        lost = f", {row.failures} failed" if row.failures else ""
        cells.append([*row.values, *spent, _show(row.score, metric), f"{len(row.scores)}{lost}"])
    return [f"  {line}" for line in align_columns(cells)]


def _show(score: Interval | None, metric: str | None) -> str:
    if score is None or metric is None:
        return "–"
    mean = format_score(metric, score.mean)
    return mean if score.half_width is None else f"{mean} ± {format_score(metric, score.half_width)}"
