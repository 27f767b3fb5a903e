"""A release folder back to a module that predicts."""

from __future__ import annotations

import math
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from dprecipe.data.facts import sequences_step, tokenize_step
from dprecipe.data.targets import ClassTarget, SeveralTarget, name_classes
from dprecipe.data.tokens import TOKENIZER, Tokens, load_tokenizer
from dprecipe.faults import DataFault
from dprecipe.libraries import ignoring_warnings
from dprecipe.models.build import build
from dprecipe.models.checks import check_data
from dprecipe.models.file import ModelFile, find_model_folder, parse_description
from dprecipe.models.form import Form
from dprecipe.models.modules.adapted import adapt_module
from dprecipe.models.outputs import interpret_outputs
from dprecipe.models.prepare import ROWS, Preparation, UndeclaredValues
from dprecipe.models.schema import HuberSvm
from dprecipe.models.zoo.forest import Forest

Predicted: TypeAlias = (
    "NDArray[np.str_] | NDArray[np.object_] | NDArray[np.int64] | NDArray[np.float64] | NDArray[np.bool_]"
)
MAX_FIXED_NAME = 64
"""Longest class name, in letters, for which an array of names takes the longest name's width in each row.

A letter takes 4 bytes.
"""


@final
class Released(nn.Module):
    """A released module with the constants that prepare raw records for it; in evaluation mode.

    What it predicts of a new record is about that record: a certificate covers those of training.
    """

    def __init__(self, module: nn.Module, file: ModelFile, folder: Path | None = None) -> None:
        """`folder`: of the tokeniser, if there is one."""
        super().__init__()
        self.module = module
        self.file = file
        self._folder = folder
        self.eval()

    @cached_property
    def tokens(self) -> Tokens | None:
        """Returns the tokeniser, opened; None if the model has none.

        Raises:
            DataFault, UsageFault: see `dprecipe.data.tokens.load_tokenizer`.
        """
        step = tokenize_step(self.file.preprocess)
        if step is None or step.tokenizer is None:
            return None
        return load_tokenizer((self._folder or Path()) / TOKENIZER, step.tokenizer, step.length)

    def forward(self, features: Tensor) -> Tensor:
        """Maps prepared features (N, *shape) float32 to logits (N, classes) or (N, names), or to numbers or expected
        counts (N, 1), in the units of the label.
        """
        return interpret_outputs(self.module(features), self.file.facts.target)

    def prepare(self, raw: object) -> Tensor:
        """Returns raw records as the module sees them, (N, *shape) float32.

        Raw are, for a table, a DataFrame (pandas, polars), an Arrow table, a mapping of columns, or rows (mappings of
        column name to value); else an array (N, …) in the source's layout (height, width, channels), bytes 0 … 255 or
        floats (pixels: 0 … 1).

        Warns:
            UndeclaredValues: once, with counts, where values are clamped or not declared.

        Raises:
            DataFault: they are not of the shape, or not of the columns, that the model was trained on.
        """
        with ignoring_warnings():
            preparation = Preparation(self.file, tokens=self.tokens)
            parts = list(preparation.batches(raw))
        warn_of_undeclared(preparation, stacklevel=3)
        empty = np.zeros((0, *self.file.shape), np.float32)
        return torch.from_numpy(np.concatenate(parts) if parts else empty)

    def predict(self, raw: object, batch_size: int = ROWS) -> Predicted:
        """Predicts the label of each raw record. `batch_size`: records in memory at once.

        Returns, (N,): the name of the most likely class (its number, where the recipe names none), or the number or the
        expected count, in the label's units. Where any of several names may apply, (N, names) truth values: True where
        a name's probability is above one half.

        Warns and raises as `prepare`.
        """
        return self.decide(self._outputs(raw, batch_size))

    def predict_proba(self, raw: object, batch_size: int = ROWS) -> NDArray[np.float64]:
        """Predicts the probabilities of the classes for each raw record, (N, classes), in the order of `class_names`.

        Where any of several names may apply, it is the probability of each, (N, names), and they do not add up to 1.

        They are what the model computes, and not calibrated: noise in training tends to make them less certain or more
        so than the records warrant.

        Warns as `prepare`.

        Raises:
            DataFault: as `prepare`; or the model has no probabilities.
        """
        self.check_probabilities()
        return self.probabilities(self._outputs(raw, batch_size))

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, or of what may apply; None if there are none."""
        target = self.file.facts.target
        return name_classes(target) if isinstance(target, SeveralTarget) else self.file.class_names

    @ignoring_warnings()
    def outputs(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Returns the module's outputs for prepared features, (N, outputs), computed on its own device."""
        first = next(self.module.parameters(), None)
        device = first.device if first is not None else next((b.device for b in self.module.buffers()), None)
        with torch.no_grad():
            outputs: Tensor = self(torch.from_numpy(features).to(device))
        numbers: NDArray[np.float64] = outputs.double().cpu().numpy()
        return numbers

    def decide(self, outputs: NDArray[np.float64]) -> Predicted:
        """Returns what `predict` makes of outputs."""
        target = self.file.facts.target
        if isinstance(target, SeveralTarget):
            applies: NDArray[np.bool_] = outputs > 0
            return applies
        if not isinstance(target, ClassTarget):
            return outputs[:, 0]
        numbers: NDArray[np.int64] = outputs.argmax(axis=1)
        if self.class_names is None:
            return numbers
        are_long = max(map(len, self.class_names)) > MAX_FIXED_NAME
        names: NDArray[Any] = np.array(self.class_names, np.object_ if are_long else np.str_)[numbers]
        return names

    def check_probabilities(self) -> None:
        """Checks that the model has probabilities.

        Raises:
            DataFault: it has none, and why.
        """
        reason = explain_no_probabilities(self.file)
        if reason is not None:
            raise DataFault(reason, "use predict")

    def probabilities(self, outputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns what `predict_proba` makes of outputs."""
        if isinstance(self.file.facts.target, SeveralTarget):
            chances: NDArray[np.float64] = 0.5 * (1 + np.tanh(outputs / 2))  # never overflows
            return chances
        exponentials: NDArray[np.float64] = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        result: NDArray[np.float64] = exponentials / exponentials.sum(axis=1, keepdims=True)
        return result

    def _outputs(self, raw: object, batch_size: int) -> NDArray[np.float64]:
        if batch_size < 1:
            raise DataFault(f"batch_size is {batch_size}", "pass 1 or more")
        with ignoring_warnings():
            preparation = Preparation(self.file, tokens=self.tokens)
            parts = [self.outputs(features) for features in preparation.batches(raw, batch_size)]
        warn_of_undeclared(preparation, stacklevel=4)
        return np.concatenate(parts) if parts else np.zeros((0, self.file.facts.outputs))


def warn_of_undeclared(preparation: Preparation, stacklevel: int) -> None:
    """Warns once about values of new records that are clamped, or read as `other`."""
    found = preparation.describe_undeclared()
    if found:
        warnings.warn(
            f"of {preparation.counts.records:,} records, as training would count them: {'; '.join(found)}",
            UndeclaredValues,
            stacklevel=stacklevel,
        )


def explain_no_probabilities(file: ModelFile) -> str | None:
    """Explains why a model has no probabilities of classes; None if it has."""
    target = file.facts.target
    if not target.is_choice:
        return f"the model predicts {target.describe()}, and there are no classes to have probabilities"
    if isinstance(file.model, HuberSvm):
        return "the outputs of a huber_svm are margins: its loss fits no probabilities"
    return None


def load(release: str | Path, module: nn.Module | None = None) -> Released:
    """Returns the module of a release folder, with its weights; also of a folder that holds one, as `release/`.

    `module` is one's own, for a release whose module came from Python. Check the folder with `dprecipe
    verify` first: this reads the model, not the certificate. No code is read from it.

    Raises:
        DataFault: a file is missing, damaged, or the weights are not those of the module.
    """
    folder = find_model_folder(Path(release))
    content = read_description(folder)
    if sequences_step(content.preprocess) is not None:
        raise DataFault(
            f"{folder}: the model writes text, and predicts no label",
            "dprecipe.load_language_model(release), or dprecipe generate",
        )
    weights = find_file(folder, "model.safetensors")
    empty = _empty(content) if module is None else module
    empty.load_state_dict(read_tensors(weights, empty), assign=module is None)
    flaw = empty.flaw() if isinstance(empty, Forest) else None
    if flaw is not None:
        raise DataFault(f"{weights}: its tensors are no trees: {flaw}", "take it from the release folder, unchanged")
    empty.requires_grad_(False)
    if module is not None:
        tokens = content.facts.vocabulary
        empty, _, _ = adapt_module(module, Form(content.shape, None if tokens is None else (tokens,)))
    return Released(empty, content, folder)


def read_description(folder: Path) -> ModelFile:
    """Reads `model.json`.

    Raises:
        DataFault: it is missing or damaged.
    """
    return parse_description(find_file(folder, "model.json").read_bytes())


def find_file(folder: Path, name: str) -> Path:
    """Returns the path of a file of a release.

    Raises:
        DataFault: it is not there.
    """
    if not (folder / name).is_file():
        raise DataFault(f"{folder / name}: no such file", "name the release folder of a finished run")
    return folder / name


def _empty(content: ModelFile) -> nn.Module:
    """Returns the module without memory for its weights, however large it claims to be."""
    if content.model is None:
        raise _from_python()
    findings = check_data(content.model, content.facts)
    if findings:
        raise DataFault(f"model.json: {findings[0].message}", "take it from the release folder, unchanged")
    with torch.device("meta"):
        facts = content.facts
        return build(content.model, facts.shape, facts.outputs, 0, facts.vocabulary, content.config)


def _from_python() -> DataFault:
    return DataFault(
        "the module of this release came from Python, so model.json can't rebuild it",
        "build it and pass it in Python: dprecipe.load_model(release, module=…)",
    )


def read_tensors(file: Path, module: nn.Module) -> dict[str, Tensor]:
    """Returns the weights, after a comparison of their names, shapes and types with the module's.

    How many trees and nodes a forest has is learned: it takes over the numbers of the file.
    """
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
