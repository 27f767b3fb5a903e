"""`model.json`: what is needed to rebuild a released module and to prepare raw features for it.

It holds constants of the recipe and nothing learned; the weights are in `model.safetensors`. Both are
untrusted when they are read: strict JSON and plain tensors, never a pickle, never a name of code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from dprecipe.data.facts import (
    DataFacts,
    column_facts,
    count_vocabulary,
    describe_data,
    feature_shape,
    sequences_step,
    source_shape,
    tokenizer_file,
)
from dprecipe.data.paid.bounds import find_wrong_shape
from dprecipe.data.paid.constants import AnyConstants, StageConstants
from dprecipe.data.paid.schema import PaidStep
from dprecipe.data.preprocess import ReadyStep, is_pending
from dprecipe.data.schema import Data, Step
from dprecipe.data.sources.base import Columns, Shape
from dprecipe.data.sources.labels import Classes, Count, Range, Several, choose_target
from dprecipe.data.targets import SEPARATOR, ClassTarget, CountTarget, NumberTarget, SeveralTarget, TokenTarget
from dprecipe.faults import DataFault
from dprecipe.language.base import Block, Text
from dprecipe.models.decoder_config import check_decoder_config
from dprecipe.models.hub_config import Config, check_config
from dprecipe.models.schema import CausalLm, Model, NoModel, Transformers

MAX_BYTES = 16 << 20


class ModelFile(Block):
    """The content of `model.json`, schema `dprecipe.model/v1`."""

    schema_: Literal["dprecipe.model/v1"] = Field("dprecipe.model/v1", alias="schema")
    model: Model | None = Field(description="the recipe's `model` block; null for a module passed from Python")
    shape: Shape = Field(description="of one record's features as the module sees them")
    classes: Classes | None = Field(None, description="null where no class is predicted")
    class_names: tuple[Text, ...] | None = None
    target: Range | None = Field(None, description="the declared range of a number to be predicted, in its own units")
    count: Count | None = Field(None, description="the declared largest count, where a count is predicted")
    several: Several | None = Field(None, description="the names, any of which may apply, in the order of the outputs")
    separator: Text | None = Field(None, description="between names that are written as one text; `;` when left out")
    columns: Columns | None = Field(None, description="of a table: raw features are rows")
    source_shape: Shape | None = Field(None, description="of an array: raw features as the source holds them")
    resize: Literal["stretch", "crop"] | None = Field(None, description="how images of another size are brought to it")
    preprocess: tuple[Step, ...] = ()
    stages: tuple[AnyConstants, ...] | None = Field(
        None, description="what the paid steps of `preprocess` have released, in order"
    )
    config: dict[str, str | int | float | bool] | None = Field(None, description="of a model of transformers")
    base: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = Field(
        None, description="where the adapters of a language model are released alone: the digest of its base's weights"
    )

    @property
    def ready_steps(self) -> tuple[ReadyStep, ...]:
        """The steps of preprocessing, with released constants instead of paid steps."""
        released = iter(self.stages or ())
        return tuple(next(released) if is_pending(step) else step for step in self.preprocess)

    @property
    def facts(self) -> DataFacts:
        """Facts about the data that a model is built from and checked against."""
        own, tokens = tokenizer_file(self.preprocess), count_vocabulary(self.preprocess)
        sequences = sequences_step(self.preprocess)
        if sequences is not None:
            learned, length = TokenTarget(sequences.vocabulary), sequences.max_length
            return DataFacts(self.shape, learned, self.shape, vocabulary=tokens, tokenizer=own, max_length=length)
        target = choose_target(self.classes, self.target, self.count, self.several)
        if isinstance(target, ClassTarget):
            target = ClassTarget(target.classes, self.class_names)
        elif isinstance(target, SeveralTarget):
            target = SeveralTarget(target.names, self.separator or SEPARATOR)
        return DataFacts(self.shape, target, self.shape, vocabulary=tokens, tokenizer=own)


def describe_file(
    model: Model | None,
    data: Data,
    config: Config | None = None,
    stages: Sequence[StageConstants] = (),
    base: str | None = None,
) -> dict[str, Any]:
    """Returns the content of `model.json`, JSON types only. `model` is None for a module that came from Python;
    `config` is of a model of transformers; `stages` are what paid steps have released; `base` is the digest of the
    weights that released adapters belong to.
    """
    public = describe_data(data)
    target = public.target
    file = ModelFile(
        model=model,
        shape=public.shape,
        classes=target.classes if isinstance(target, ClassTarget) else None,
        target=target.range if isinstance(target, NumberTarget) else None,
        count=Count(max=target.max) if isinstance(target, CountTarget) else None,
        class_names=target.names if isinstance(target, ClassTarget) else None,
        several=target.names if isinstance(target, SeveralTarget) else None,
        separator=target.separator if isinstance(target, SeveralTarget) and target.separator != SEPARATOR else None,
        columns=data.train.table_columns,
        source_shape=data.train.record_shape or None,
        resize=data.train.image_resize,
        preprocess=data.preprocess,
        stages=tuple(stages) or None,
        config=None if config is None else dict(config),
        base=base,
    )
    content: dict[str, Any] = file.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**content, "model": content.get("model")}


def parse_description(text: str | bytes) -> ModelFile:
    """Parses `model.json` as it was described.

    Raises:
        DataFault: it is none.
    """
    if len(text) > MAX_BYTES:
        raise DataFault(f"model.json is larger than {MAX_BYTES} bytes", "name a release folder of dprecipe")
    try:
        file = ModelFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise _damaged(f"{error.error_count()} problems, the first at {place}") from error
    before = source_shape(column_facts(file.columns or {}, file.preprocess), file.source_shape or ())
    if feature_shape(before, file.preprocess) != file.shape:
        raise _damaged("its preprocessing does not make features of its shape")
    columns = (file.columns or {}).items()
    wrong = next((finding for name, column in columns for finding in column.contradictions(name)), None)
    if wrong is not None:
        raise _damaged(f"{wrong.path}: {wrong.message}")
    misfit = _find_misfit(file, before)
    if misfit is not None:
        raise _damaged(misfit)
    if (file.config is not None) != isinstance(file.model, Transformers | CausalLm):
        raise _damaged("a configuration belongs to a model of transformers, and to no other")
    check = check_decoder_config if isinstance(file.model, CausalLm) else check_config
    if file.config is not None and check(file.config) != file.config:
        raise _damaged("its configuration holds more than numbers of a model")
    kinds = [file.classes, file.target, file.count, file.several, sequences_step(file.preprocess)]
    if kinds.count(None) != len(kinds) - 1:
        raise _damaged("it predicts neither a class, a number, a count nor names or tokens, or more than one of these")
    if isinstance(file.model, NoModel):
        raise _damaged("it describes no model")
    if file.base is not None and not (isinstance(file.model, CausalLm) and file.model.lora is not None):
        raise _damaged("adapters are of a language model")
    if file.target is not None and not file.target[0] / 2 < file.target[1] / 2:
        raise _damaged("its range is empty")
    return file


def find_model_folder(folder: Path) -> Path:
    """Returns the folder of `model.json`: this one, or the `release/` that it holds, as a run's folder or an upload
    does.
    """
    inner = folder / "release"
    return inner if not (folder / "model.json").is_file() and (inner / "model.json").is_file() else folder


def _find_misfit(file: ModelFile, shape: tuple[int, ...]) -> str | None:
    """Explains why the constants can't be those of the paid steps; `shape` is that of features before the first
    step.
    """
    paid = [(index, step.operation) for index, step in enumerate(file.preprocess) if is_pending(step)]
    if len(paid) != len(file.stages or ()):
        return "there are not constants for each paid step"
    for (index, step), constants in zip(paid, file.stages or (), strict=True):
        if isinstance(step, PaidStep):
            reason = find_wrong_shape(step, feature_shape(shape, file.preprocess[:index]), constants)
            if reason is not None:
                return f"the constants of {constants.kind} are not those of its step: {reason}"
    return None


def _damaged(reason: str) -> DataFault:
    return DataFault(f"model.json is not what dprecipe writes ({reason})", "take it from the release folder, unchanged")
