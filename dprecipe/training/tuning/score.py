"""The score of a run that every run pays for: how many private held-out records its model gets right, under noise.

Formal guarantee: each record is prepared and predicted by itself, so that what is counted of it depends on it and on
the model alone, down to the last bit; adding, removing or replacing one moves the count by 1 at most. The count is
whole, and its noise is drawn on a lattice (`noise.lattice`), of the standard deviation of the event that the ledger
holds since before all runs, as part of the one event `selected_best`.

| when a run is killed | its score | what it costs |
|---|---|---|
| before the file is there | never seen; drawn again | nothing: all runs are charged as a whole |
| after it | read | nothing |

The number of held-out records is in no score: the runs are compared by counts of the same records.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dprecipe import durable
from dprecipe.contract.plan import Plan
from dprecipe.data.paid.release import release_right_answers
from dprecipe.data.records import Records
from dprecipe.faults import InternalFault
from dprecipe.models.load import Released, load
from dprecipe.models.outputs import find_right
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.stages.events import NoisyCount
from dprecipe.privacy.tuning.events import SelectedBest
from dprecipe.release.untrusted import ContentError, parse_object, read_bytes

SCORE = "score.json"
SCHEMA = "dprecipe.trial-score/v1"


def find_score_event(plan: Plan) -> NoisyCount | None:
    """Finds what every run of a tuned plan is charged for its score; None where the score is free.

    Raises:
        RunFailed: a fault of ours: the charge is not there.
    """
    if plan.tuning is None or plan.tuning.block.score.noise_multiplier is None:
        return None
    best = plan.tuning.charge.event
    last = best.base[-1] if isinstance(best, SelectedBest) else None
    if last is None or last.count != 1 or not isinstance(last.event, NoisyCount):
        raise InternalFault("a score was planned, and no run is charged for it")
    return last.event


def prepare_alone(records: Records, file: Released) -> Records:
    """Returns the records as the module sees them, each prepared by itself. `records`: before any step of
    preprocessing."""
    ready = [
        _take_row(records, row).with_all_constants(file.file.stages or ()).batch(slice(None))[0]
        for row in range(len(records))
    ]
    shape = (0, *file.file.shape)
    features = np.concatenate(ready) if ready else np.zeros(shape, np.float32)
    return replace(records, features=features, pending=())


def _take_row(records: Records, row: int) -> Records:
    texts = {name: column.select([row]) for name, column in records.texts.items()}
    part = slice(row, row + 1)
    return replace(records, features=records.features[part], labels=records.labels[part], units=None, texts=texts)


def count_right_answers(model: Released, records: Records) -> int:
    """Counts the prepared records that the model predicts as they are labelled, with every answer right where there
    are several; each is predicted by itself."""
    target = model.file.facts.target
    right = 0
    with torch.no_grad():
        for row in range(len(records)):
            features, labels = records.batch(slice(row, row + 1))
            right += int(find_right(model(torch.from_numpy(features)), torch.from_numpy(labels), target))
    return right


def keep_score(kept: Path, event: NoisyCount, held_out: Records) -> None:
    """Counts, draws and writes the score beside what a run keeps, unless it is there.

    `event`: of the ledger, reserved. `held_out`: private records before any step of preprocessing.

    Raises:
        RunFailed: the disk refuses.
        DataFault: what the run kept is damaged.
    """
    path = kept / SCORE
    if path.exists():
        return
    model = load(kept)
    right = count_right_answers(model, prepare_alone(held_out, model))
    noisy = release_right_answers(right, event.noise_scale, Secrets().stream("tuning", 0))
    with durable.writing(path, "free space on the disk, then continue with --resume"):
        durable.replace_file(path, json.dumps({"schema": SCHEMA, "right_answers": noisy}).encode())


def read_score(kept: Path) -> float:
    """Returns the noisy number of right answers; it may be negative.

    Raises:
        ContentError: it is not there, or damaged.
    """
    content = parse_object(read_bytes(kept / SCORE), SCORE)
    value = content.get("right_answers")
    if set(content) != {"schema", "right_answers"} or content["schema"] != SCHEMA or type(value) is not float:
        raise ContentError(f"{SCORE}: not the score of a run")
    if not math.isfinite(value):
        raise ContentError(f"{SCORE}: not a number")
    return value
