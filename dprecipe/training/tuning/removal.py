"""The end of the runs that were not chosen, once the release is there: a table of them, and nothing in plain.

The files that stay are written first, whole or not at all, and then `private/trials` is removed. An attempt that was
killed in between leaves the folder, and the next one ends the work.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from dprecipe import durable
from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.privacy.ledger import lock_ledger
from dprecipe.screen import write_note
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.tuning.draws import DRAWS, DrawnRuns, load
from dprecipe.training.tuning.losers import LOSERS, keep_losers
from dprecipe.training.tuning.plot import draw_trials
from dprecipe.training.tuning.trials import Trials
from dprecipe.training.tuning.winner import choose_winner, write_table

TABLE, FIGURE = "trials.csv", "trials.svg"


def locate_trials(folder: RunFolder) -> Path:
    """Returns the folder of all runs."""
    return folder.private / "trials"


def remove_losers(plan: Plan, folder: RunFolder, trials: Trials, recipient: Any | None) -> None:
    """Values and scores of all runs, for their owner; all but the winner encrypted to `recipient`, where there is one;
    and then what the runs made is deleted. No release needs it: a disk that refuses is a note.

    Guarantees: what was made is deleted only after all that is kept of it is on disk. It is made out of `private/`
    alone, so that a later attempt can do it.
    """
    place = locate_trials(folder)
    try:
        with lock_ledger(folder.ledger):
            if not place.exists():
                return
            kept = [folder.private / FIGURE, *([] if recipient is None else [folder.private / LOSERS])]
            if not all(path.exists() for path in kept):
                _keep(plan, folder, trials, load(folder.private / DRAWS, plan), recipient)
            shutil.rmtree(place)
    except (OSError, RunFailed) as error:
        reason = error.strerror if isinstance(error, OSError) else error.message
        write_note(
            f"{folder.private}: the other runs could not be deleted ({reason}); mend this and write --resume, or "
            f"delete private/trials"
        )


def _keep(plan: Plan, folder: RunFolder, trials: Trials, drawn: DrawnRuns, recipient: Any | None) -> None:
    rows = write_table(folder.private / TABLE, plan, trials, drawn)
    if recipient is not None:
        winner = choose_winner(plan, trials, drawn).number
        keep_losers(folder.private / LOSERS, recipient, trials, drawn.points, winner)
    durable.replace_file(folder.private / FIGURE, draw_trials(plan, rows).encode())
