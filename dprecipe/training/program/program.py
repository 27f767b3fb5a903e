"""A plan to a program that is ready to train: data read, model built and probed. Nothing is spent here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dprecipe.contract.plan import Plan
from dprecipe.data.augment import make_augmentation
from dprecipe.data.facts import DataFacts, describe_data
from dprecipe.data.paid.constants import StageConstants
from dprecipe.data.raw import Labels
from dprecipe.data.records import Records
from dprecipe.data.targets import Target, TokenTarget
from dprecipe.faults import DataFault, InternalFault, PlanRefused, RunFailed, UsageFault
from dprecipe.models.build import build
from dprecipe.models.decoder_config import check_decoder_config
from dprecipe.models.form import Form
from dprecipe.models.hub_config import Config, check_config
from dprecipe.models.initial import start_from
from dprecipe.models.modules.adapted import adapt_module
from dprecipe.models.modules.inspection import detach_trainers, inspect_module, inspect_training
from dprecipe.models.public_record import InitialWeights
from dprecipe.models.schema import CausalLm, Model, Pretrained, Transformer, Transformers
from dprecipe.models.zoo.causal_lm import CausalLanguageModel
from dprecipe.models.zoo.hub import SequenceClassifier, config_of, folder_of
from dprecipe.progress import report_progress
from dprecipe.training.canaries.run import add_canaries
from dprecipe.training.checks.noise import noise_correlation, noise_scale, single_precision
from dprecipe.training.checks.stages import stage_noise
from dprecipe.training.engine.clipped_sum import per_record_gradients
from dprecipe.training.probe.own_loss import require_loss
from dprecipe.training.probe.program import Check, examine_module, require_passed
from dprecipe.training.probe.sums import SumTests
from dprecipe.training.processes.processes import is_worker, local_rank
from dprecipe.training.processes.sharded_weights import whole_on
from dprecipe.training.program.device_choice import device_for
from dprecipe.training.program.evaluate import HeldOut
from dprecipe.training.program.losses import synthetic_labels
from dprecipe.training.program.own_loss import loss_of, module_of
from dprecipe.training.program.records import RecordSource, Store
from dprecipe.training.publish.provenance import RunProvenance
from dprecipe.training.publish.released import refuse_python_tensors
from dprecipe.training.run.runner import PythonInputs, check_brings

DEVIATIONS = 8
"""A batch of Poisson sampling is larger than this many standard deviations above the expected one with a probability
below 2^-40."""
MAX_MEASURED = 4096
"""`runtime.physical_batch: auto` takes no more records at once: parts that are larger are no faster."""


@dataclass(frozen=True, slots=True)
class Sets:
    """Training and held-out records."""

    train: RecordSource
    test: RecordSource | None = None
    custom: bool = False
    """The training records came from Python and not from the recipe's source."""
    custom_test: bool = False
    """The held-out records did: what the recipe declares public is its own source and nothing else."""

    @property
    def from_python(self) -> bool:
        """True if any of the records came from Python."""
        return self.custom or self.custom_test

    def with_constants(self, constants: Sequence[StageConstants]) -> Sets:
        """Returns the same records after the paid steps that have released these constants."""
        if not constants:
            return self
        train, test = (apply_all(records, constants) for records in (self.train, self.test))
        if train is None:
            raise InternalFault("a run without training records")
        return replace(self, train=train, test=test)


@dataclass(frozen=True, slots=True)
class StepwiseProgram:
    """The parts of a run besides its ledger."""

    model: nn.Module
    custom_model: bool
    """The model came from Python and not from the recipe."""
    store: Store
    sets: Sets
    facts: DataFacts
    form: Form
    """The form of its records, as the model takes them."""
    device: torch.device
    checks: tuple[Check, ...]
    initial: InitialWeights | None = None
    """The file whose weights the model started from, where the recipe names one."""
    config: Config | None = None
    """The configuration that a model of transformers is built from; None for other models."""
    base_perplexity: float | None = None
    """The perplexity of a language model as its training begins, on the held-out texts; None without them."""
    physical_batch: int | None = None
    """Records that this process can hold in memory at once, as measured; None where the recipe has a number."""

    def with_constants(self, plan: Plan, constants: Sequence[StageConstants]) -> StepwiseProgram:
        """Returns the same program on its records as they are after the paid steps that have released these
        constants."""
        if not constants:
            return self
        sets = self.sets.with_constants(constants)
        return replace(self, sets=sets, store=store_of(plan, sets.train, self.device))

    @property
    def provenance(self) -> RunProvenance:
        """Returns the facts that the certificate states of it."""
        return RunProvenance(
            self.checks,
            self.device,
            "python" if self.custom_model else "recipe",
            "python" if self.sets.from_python else "recipe",
            self.initial,
        )


def prepare(
    plan: Plan,
    tests: Callable[[Plan, nn.Module], SumTests],
    records: Callable[[], Sets],
    model: nn.Module | None = None,
    python_records: object | None = None,
) -> StepwiseProgram:
    """Builds the model, probes the program on synthetic records, and only then reads its records.

    `tests`: the probe's checks of the mechanism's sums. `python_records`: training records from Python. Their shape,
    the type of their numbers and the names of their fields decide how a module from Python is called; no value is read.

    Raises:
        DataFault: the data is not what the recipe declares.
        PlanRefused: the model has layers that mix records or keep statistics of them, or training code of its own.
        UsageFault: `model` is given, and the recipe names weights that it would start from.
        RunFailed: the probe found that the program does not do what the accounting assumes.
    """
    check_brings(plan, model)
    data_facts = describe_data(plan.data)
    device = device_of(plan.runtime.device)
    built, initial = build_started_model(plan, data_facts) if model is None else (use_python_model(plan, model), None)
    findings = inspect_module(built)
    if model is not None:
        public_test = plan.data.test is not None and plan.data.test.access == "public"
        findings += inspect_training(built, plan.training, public_test=public_test)
        detach_trainers(built)
    if any(finding.is_error for finding in findings):
        raise PlanRefused(findings)
    if not any(parameter.requires_grad for parameter in built.parameters()):
        raise RunFailed("the model has no parameter that is trained", "leave requires_grad on where it should learn")
    if model is not None:
        refuse_python_tensors(plan, built)
    device = device_for(
        plan.runtime.device, device, built, data_facts.shape, plan.mechanism_plan.largest_expected_batch
    )
    built.to(whole_on(plan, device))
    form = form_of(plan, data_facts, built, python_records)
    if model is not None:
        built, form, single = adapt_module(built, form)
        if single:
            report_progress(f"records go through the module one by one, which is slow: {single}")
    report_progress("checking the program and its noise on synthetic records")
    loss = loss_of(plan, built)
    require_loss(loss, module_of(built), data_facts.target)
    sums = tests(plan, built)
    largest, gradients = records_at_once(plan), plan.mechanism_plan.expected_batch * plan.length.steps
    checks = require_passed(
        examine_module(
            built,
            loss,
            form,
            data_facts.target,
            per_record_gradients,
            sums,
            largest=largest,
            gradients=gradients,
        ),
        built,
    )
    trained = sum(parameter.numel() for parameter in built.parameters() if parameter.requires_grad)
    of_noise = (noise_scale(plan, device, trained), *noise_correlation(plan, device), *stage_noise(plan))
    checks = (*checks, single_precision(device), *of_noise)
    sets = records()
    store = store_of(plan, sets.train, device)
    config = built.config if isinstance(built, SequenceClassifier | CausalLanguageModel) and model is None else None
    return StepwiseProgram(built, model is not None, store, sets, data_facts, form, device, checks, initial, config)


def measure_base(
    model: nn.Module, records: RecordSource | None, device: torch.device, physical_batch: int, target: Target
) -> float | None:
    """Returns the perplexity of a language model's first weights on held-out texts; None for other models, and without
    texts."""
    if records is None or not isinstance(target, TokenTarget):
        return None
    held_out = HeldOut(model, records, device, physical_batch, target)
    perplexity: float | None = held_out.score(model.state_dict()).full.get("perplexity")
    return perplexity


def store_of(plan: Plan, records: RecordSource, device: torch.device) -> Store:
    """Returns the store of a run's records, augmented as the recipe says; with its canaries, where they are records."""
    records = add_canaries(plan, records)
    return Store(records, device, lambda generator: make_augmentation(plan.data.preprocess, generator))


def apply_all(records: RecordSource | None, constants: Sequence[StageConstants]) -> RecordSource | None:
    """Records after the paid steps that have released these constants."""
    if isinstance(records, Records):
        return records.with_all_constants(constants)
    if records is not None:
        raise InternalFault("records on which no paid step is pending")
    return None


def form_of(plan: Plan, public: DataFacts, built: nn.Module, python_records: object | None = None) -> Form:
    """Returns the form of records: as declared, or as those from Python come."""
    tokens = public.vocabulary
    if isinstance(plan.model, Transformer):
        tokens = plan.model.vocabulary or tokens
    if isinstance(built, SequenceClassifier):
        tokens = tokens_of(built)
    if isinstance(public.target, TokenTarget):
        count = built.vocabulary if isinstance(built, CausalLanguageModel) else public.target.vocabulary
        return Form(public.shape, (count,), sequences=True)
    if isinstance(python_records, Records):
        if tokens is None and python_records.features.dtype.kind in "iu" and python_records.features.dtype != np.uint8:
            tokens = 0
        if python_records.fields:
            return Form(python_records.features.shape[1:], (0,) * len(python_records.fields), python_records.fields)
    return Form(public.shape, None if tokens is None else (tokens,))


def records_at_once(plan: Plan) -> int:
    """Returns the number of records that the engine may put through the model at once: a physical batch, or the most
    that a batch has in any phase."""
    unit, expected = plan.data.unit, plan.mechanism_plan.largest_expected_batch
    rows = plan.mechanism_plan.copies * (1 if unit == "record" else unit.max_records)
    expected *= plan.data.max_units / plan.data.planned_units  # a split may leave more units than are planned for
    units = min(plan.data.max_units, math.ceil(expected + DEVIATIONS * math.sqrt(expected) + 4 * DEVIATIONS))
    given = plan.runtime.physical_batch
    return max(1, min(max(MAX_MEASURED if given == "auto" else given, rows), units * rows))


def build_started_model(plan: Plan, public: DataFacts) -> tuple[nn.Module, InitialWeights | None]:
    """Returns the recipe's model as its training begins, and where its weights came from if not from the seed.

    Raises:
        DataFault: the file of initial weights is not there, or not of this model.
        RunFailed: a library that the model is from is not installed.
    """
    return build_from(plan.model, plan.runtime.seed, Path(plan.source.file).parent, public)


def build_from(spec: Model, seed: int, folder: Path, public: DataFacts) -> tuple[nn.Module, InitialWeights | None]:
    """Returns a model as its training begins; `folder` is that of the recipe. See `build_started_model`."""
    config = None
    if isinstance(spec, Transformers | CausalLm):
        check = check_decoder_config if isinstance(spec, CausalLm) else check_config
        config = config_of(folder_of(spec, folder), check)
    length = public.max_length
    built = build(spec, public.shape, public.outputs, seed, public.vocabulary, config, max_length=length)
    if isinstance(built, SequenceClassifier | CausalLanguageModel):
        check_tokens(built, public)
    return built, start_from(spec, built, folder, seed)


def check_tokens(built: SequenceClassifier | CausalLanguageModel, public: DataFacts) -> None:
    """Checks that the tokens of a tokeniser are those that a checkpoint's embedding has, with its padding. A decoder
    masks none: no learned place sees what stands behind the end of a text.

    Raises:
        DataFault: they are not.
    """
    own, tokens = public.tokenizer, tokens_of(built)
    if own is not None and own.vocabulary > tokens:
        raise DataFault(
            f"data.preprocess makes {own.vocabulary:,} tokens, and the model has {tokens:,}",
            f"name the checkpoint's own tokeniser, with vocabulary: {tokens}",
        )
    if isinstance(built, CausalLanguageModel):
        return
    padding = int(built.network.config.pad_token_id or 0)
    if own is not None and own.padding != padding:
        raise DataFault(
            f"data.preprocess pads with token {own.padding}, and the model masks token {padding}",
            f"name the checkpoint's own tokeniser, with padding: {padding}",
        )


def tokens_of(built: SequenceClassifier | CausalLanguageModel) -> int:
    """Returns the number of tokens that a checkpoint's embedding has."""
    return built.vocabulary if isinstance(built, CausalLanguageModel) else int(built.network.config.vocab_size)


def use_python_model(plan: Plan, model: nn.Module) -> nn.Module:
    """Returns a module from Python, which brings its own weights.

    Raises:
        UsageFault: the recipe names others.
    """
    if isinstance(plan.model, Pretrained) and plan.model.starts_elsewhere:
        raise UsageFault(
            "the module comes from Python, so nothing reads the weights that the recipe's model starts from",
            "load them into the module, and remove model.init",
        )
    return model


def declared_records(plan: Plan, root: Path, inputs: PythonInputs) -> Sets:
    """Returns the records that the recipe names, or those that came from Python instead."""
    train = inputs.records("train", plan, root)
    if train is None:
        raise DataFault("there are no training records", "name data.train, or pass train=")
    return Sets(train, inputs.records("test", plan, root), inputs.train is not None, inputs.test is not None)


def check_width(plan: Plan, records: RecordSource) -> None:
    """Checks that records have as many features as a model of known size has weights for.

    Raises:
        DataFault: they do not.
    """
    features, _ = records.batch(slice(0, 1))
    width, declared_width = math.prod(features.shape[1:]), describe_data(plan.data).width
    if width != declared_width:
        raise DataFault(
            f"a training record has {width} features, the recipe declares {declared_width}",
            "pass the records the recipe declares",
        )


@final
class Synthetic:
    """As many units as the recipe declares, each with all the records that it may have, made when asked for."""

    def __init__(self, plan: Plan, each: int | None = None) -> None:
        """`each`: the records of a unit, where it shall have fewer than it may."""
        self._facts = describe_data(plan.data)
        self.unit_count, unit = plan.data.max_units, plan.data.unit
        self._each = None if unit == "record" else each or unit.max_records
        self._generator = np.random.default_rng(0)

    @cached_property
    def units(self) -> NDArray[np.int64] | None:
        """The unit of each record."""
        return None if self._each is None else np.repeat(np.arange(self.unit_count), self._each)

    def __len__(self) -> int:
        return self.unit_count * (1 if self._each is None else self._each)

    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.float32], Labels]:
        count = len(range(len(self))[indices]) if isinstance(indices, slice) else len(indices)
        features = self._generator.random((count, *self._facts.shape), dtype=np.float32)
        numbers = torch.from_numpy(self._generator.integers(1 << 31, size=count))
        return features, synthetic_labels(numbers, self._facts.target).numpy()


def device_of(name: str) -> torch.device:
    """Returns the device of a run.

    Raises:
        RunFailed: it is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    here = torch.backends.mps.is_available() if name == "mps" else name == "cpu" or torch.cuda.is_available()
    if not here:
        raise RunFailed(f"runtime.device: {name} is not available here", "set runtime.device to auto")
    if name != "cuda":
        return torch.device(name)
    # With its number: "cuda" is the GPU that was set last to torch, and the first to others.
    return torch.device("cuda", local_rank() if is_worker() else torch.cuda.current_device())
