"""A released network as an ONNX file: prepared features in, what the module gives out; compared before it is kept.

Preprocessing stays outside. Columns are texts, dates and categories, which ONNX has no operators for, and a second
implementation of the rest would be a second truth: `dprecipe.models.prepare` prepares records without torch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from numpy.typing import NDArray

from dprecipe.faults import DataFault, RunFailed
from dprecipe.libraries import EXTRAS, check_libraries, ignoring_warnings, importing_libraries
from dprecipe.models.zoo.forest import Forest
from dprecipe.models.zoo.linear import LocationModel

if TYPE_CHECKING:
    from dprecipe.models.load import Released

INPUT, OUTPUT = "features", "outputs"
MAX_DIFFERENCE, MAX_EDGE_DIFFERENCE = 1e-4, 1e-2
"""Limits for the two differences in `Exported`. Normalising a constant record amplifies its rounding by hundreds."""
BATCHES = (1, 2, 17)


@final
@dataclass(frozen=True, slots=True)
class Exported:
    """Comparison of an ONNX file with the module."""

    records: int
    difference: float
    """Largest difference of an output on usual records, as a share of the largest output of its batch (of 1, if that is
    more)."""
    edge_difference: float
    """Largest difference on constant and very large records, where normalisation nears the edge of single precision."""


def export_onnx(model: Released, target: Path, metadata: Mapping[str, str]) -> Exported:
    """Writes the network as ONNX, one file, any number of records at a time, and compares it in onnxruntime.

    Input `features` (records, *shape) float32, as `prepare` gives them; output `outputs`, what `model(features)` gives:
    logits, or numbers in the target's units. `metadata` stands in the file beside the names of classes.

    Raises:
        UsageFault: the libraries of the extra `onnx` are missing.
        DataFault: a model of this kind is not exported, and why.
        RunFailed: torch can't export the module, or the file computes something else; nothing is kept of it.
    """
    check_libraries("exporting to ONNX", *EXTRAS["onnx"])
    if isinstance(model.module, Forest):
        raise DataFault(
            "trees are not exported to ONNX: its operators for trees add in single precision, ours in double",
            "use them with dprecipe.load_model(release)",
        )
    if isinstance(model.module, LocationModel):
        raise DataFault("a location model is one number, and reads no features", "read it: model.predict(one record)")
    names = {} if model.class_names is None else {"class_names": json.dumps(list(model.class_names))}
    try:
        _write(model, target, {**metadata, **names})
        return _compare(model, target)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _write(model: Released, target: Path, metadata: Mapping[str, str]) -> None:
    example = torch.from_numpy(next(_examples(model))[0][:2])
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # that torchvision is not installed, for one
    try:
        with ignoring_warnings():
            program = torch.onnx.export(
                model,
                (example,),
                dynamo=True,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim("records")},),
                verbose=False,
            )
            if program is None:
                raise RunFailed("torch exported nothing")
            program.model.metadata_props.update(metadata)
            program.save(target, external_data=False)
    except RunFailed:
        raise
    except Exception as error:  # an exporter may raise anything
        first = str(error).strip().splitlines()[:1] or [""]
        raise RunFailed(
            f"torch can't export this network to ONNX ({type(error).__name__}: {first[0][:200]})",
            "use it with dprecipe.load_model(release)",
        ) from error
    finally:
        logger.setLevel(level)


def _compare(model: Released, target: Path) -> Exported:
    with importing_libraries("exporting to ONNX"):
        import onnxruntime

    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    records, differences = 0, {True: 0.0, False: 0.0}
    for features, usual in _examples(model):
        for size in BATCHES:
            part = features[:size]
            expected = model.outputs(part)
            (found,) = session.run([OUTPUT], {INPUT: part})
            if found.shape != expected.shape or not np.isfinite(found).all() == np.isfinite(expected).all():
                raise _unlike("its outputs have another shape, or are not finite")
            records += len(part)
            finite = np.isfinite(expected)
            scale = max(1.0, float(np.abs(expected)[finite].max(initial=0.0)))
            apart = float(np.abs(found - expected)[finite].max(initial=0.0)) / scale
            if not apart <= (MAX_DIFFERENCE if usual else MAX_EDGE_DIFFERENCE):
                raise _unlike(f"an output differs by {apart:.2g} of the largest")
            differences[usual] = max(differences[usual], apart)
    return Exported(records, differences[True], differences[False])


def _unlike(reason: str) -> RunFailed:
    return RunFailed(
        f"the exported network does not compute what the model does: {reason}",
        "use it with dprecipe.load_model(release), and report this",
    )


def _examples(model: Released) -> Iterator[tuple[NDArray[np.float32], bool]]:
    """Yields prepared features to compare on, 17 records at a time, and whether they are usual: those come first."""
    shape, count = model.file.shape, max(BATCHES)
    generator = np.random.default_rng(0)
    tokens = model.file.facts.vocabulary or getattr(model.file.model, "vocabulary", None)
    if tokens is not None:
        drawn = generator.integers(1, tokens, (count, *shape))
        drawn[:, shape[-1] // 2 :] *= generator.integers(0, 2, (count, 1))  # padding behind
        yield drawn.astype(np.float32), True
        yield np.zeros((count, *shape), np.float32), False
        yield np.full((count, *shape), tokens - 1, np.float32), False
        return
    yield generator.random((count, *shape), np.float32), True
    yield generator.standard_normal((count, *shape)).astype(np.float32), True
    yield np.zeros((count, *shape), np.float32), False
    yield np.ones((count, *shape), np.float32), False
    yield 1e3 * generator.standard_normal((count, *shape)).astype(np.float32), False
