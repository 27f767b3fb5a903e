"""A release folder back to a module that predicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from dprecipe.data.counts import SourceCounts
from dprecipe.data.preprocess import prepare_features
from dprecipe.data.problems import Problems
from dprecipe.data.raw import channels_first, record_number
from dprecipe.data.records import Records
from dprecipe.data.table import TableEncoder
from dprecipe.data.values import Value
from dprecipe.faults import DataFault
from dprecipe.models.build import build
from dprecipe.models.checks import check_data
from dprecipe.models.file import ModelFile, parse_description
from dprecipe.models.form import Form
from dprecipe.models.modules.adapted import adapt_module
from dprecipe.models.schema import Model
from dprecipe.models.zoo.forest import Forest

Rows = Sequence[Mapping[str, Value]]


@final
class Released(nn.Module):
    """A released module with the constants that prepare raw features for it; in evaluation mode."""

    def __init__(self, module: nn.Module, file: ModelFile) -> None:
        super().__init__()
        self.module = module
        self.file = file
        self.eval()

    def forward(self, features: Tensor) -> Tensor:
        """Prepared features (N, *shape) float32 to logits (N, classes), or to numbers (N, 1) in the target's units."""
        outputs: Tensor = self.module(features)
        return outputs

    def prepare(self, raw: ArrayLike | Rows) -> Tensor:
        """Raw features as the module sees them.

        Raw are, for a table, rows (mappings of column name to value); else an array (N, …) in the source's
        layout (height, width, channels), bytes 0 … 255 or floats (pixels: 0 … 1).

        Raises:
            DataFault: they are not of the shape, or not of the columns, that the model was trained on.
        """
        if self.file.columns is not None:
            return torch.from_numpy(self._prepared_rows(raw))  # type: ignore[arg-type]
        array = np.asarray(raw)
        expected = self.file.source_shape or ()
        if array.shape[1:] != expected or array.dtype.kind not in "uif" or array.ndim == 0:
            raise DataFault(
                f"the features have shape {list(array.shape)} ({array.dtype}), expected numbers of shape "
                f"[records, {', '.join(map(str, expected))}]",
                "pass raw features in the layout of the recipe's source",
            )
        array = array if array.dtype == np.uint8 else array.astype(np.float32)
        return torch.from_numpy(prepare_features(channels_first(array), self.file.ready_steps))

    def predict(self, raw: ArrayLike | Rows) -> NDArray[np.int64] | NDArray[np.float64]:
        """Of each raw record, (N,), its most likely class, or the number that is predicted, in the target's units.

        `class_names` names the classes where the recipe does.
        """
        with torch.no_grad():
            outputs: Tensor = self(self.prepare(raw))
        result = outputs.argmax(dim=1) if self.file.target is None else outputs[:, 0].double()
        return result.numpy()

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return self.file.class_names

    def _prepared_rows(self, rows: Rows) -> NDArray[np.float32]:
        problems = Problems(private=False)
        encoder = TableEncoder(self.file.columns or {}, self.file.preprocess, problems, SourceCounts())
        for number, row in enumerate(rows):
            missing = [name for name in encoder.names if name not in row]
            if missing:
                raise DataFault(
                    f"row {number} has no {', '.join(map(repr, missing))}", "pass each column, None if empty"
                )
        columns = {name: [row[name] for row in rows] for name in encoder.names}
        encoded = encoder.encode(columns, len(rows), lambda row: f"the records passed, {record_number(row)}")
        problems.check()
        labels = np.zeros(len(rows), np.int64)
        records = Records(encoded, labels, pending=self.file.preprocess, texts=encoder.text_values())
        features, _ = records.with_all_constants(self.file.stages or ()).batch(slice(None))
        return features


def load(release: str | Path, module: nn.Module | None = None) -> Released:
    """The module of a release folder, with its weights.

    `module` is one's own, for a release whose module came from Python. Check the folder with `dprecipe
    verify` first: this reads the model, not the certificate.

    Raises:
        DataFault: a file is missing, damaged, or the weights are not those of the module.
    """
    folder = Path(release)
    description, weights = folder / "model.json", folder / "model.safetensors"
    for file in (description, weights):
        if not file.is_file():
            raise DataFault(f"{file}: no such file", "name the release folder of a finished run")
    content = parse_description(description.read_bytes())
    empty = _empty(content) if module is None else module
    empty.load_state_dict(_tensors(weights, empty), assign=module is None)
    flaw = empty.flaw() if isinstance(empty, Forest) else None
    if flaw is not None:
        raise DataFault(f"{weights}: its tensors are no trees: {flaw}", "take it from the release folder, unchanged")
    empty.requires_grad_(False)
    if module is not None:
        tokens = content.facts.vocabulary
        empty, _, _ = adapt_module(module, Form(content.shape, None if tokens is None else (tokens,)))
    return Released(empty, content)


def _empty(content: ModelFile) -> nn.Module:
    """The module without memory for its weights, however large it claims to be."""
    if content.model is None:
        raise _from_python()
    findings = check_data(content.model, content.facts)
    if findings:
        raise DataFault(f"model.json: {findings[0].message}", "take it from the release folder, unchanged")
    with torch.device("meta"):
        return _built(content.model, content)


def _built(model: Model, content: ModelFile) -> nn.Module:
    public = content.facts
    return build(model, public.shape, public.classes, 0, public.target, public.vocabulary, content.config)


def _from_python() -> DataFault:
    return DataFault(
        "the module of this release came from Python, so model.json can't rebuild it",
        "build it and pass it: load(release, module=…)",
    )


def _tensors(file: Path, module: nn.Module) -> dict[str, Tensor]:
    """The weights, after their names, shapes and types have been held against the module's.

    How many trees and nodes a forest has is learned: it takes over the numbers of the file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as archive:
            shapes = {name: archive.get_slice(name).get_shape() for name in archive.keys()}  # noqa: SIM118
            if isinstance(module, Forest):
                module.resize(*(math.prod(shapes.get(name, ())) for name in ("root", "threshold")))
            expected = {name: (list(tensor.shape), tensor.dtype) for name, tensor in module.state_dict().items()}
            if shapes.keys() != expected.keys():
                raise DataFault(
                    f"{file}: its tensors are not those of the module ({len(shapes.keys() ^ expected.keys())} names "
                    "differ)",
                    "take model.json and model.safetensors from one release",
                )
            tensors = {}
            for name, (shape, dtype) in expected.items():
                if shapes[name] != shape:
                    raise DataFault(
                        f"{file}: {name!r} has another shape than the module's", "take both from one release"
                    )
                tensors[name] = archive.get_tensor(name)
                if tensors[name].dtype != dtype:
                    raise DataFault(f"{file}: {name!r} is {tensors[name].dtype}, expected {dtype}", "store it so")
    except (SafetensorError, OSError) as error:
        raise DataFault(f"{file}: is no safetensors file, or is damaged", "take it from the release folder") from error
    return tensors
