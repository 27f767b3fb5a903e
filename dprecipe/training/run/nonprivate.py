"""A run without privacy: plain gradient steps on records that are declared public. No gate, no ledger, no release.

It writes a folder of its own kind (`weights/`, never `release/`), whole or not at all, and says in each document that
there is no guarantee. The same recipe gives the same weights on one machine with the same versions.

Its progress is one file beside its folder, so that an interrupted run can go on. Nothing is spent, so there is no
ledger: the file alone says where the run stands. A run that goes on gives the weights of one that was never
interrupted, bit for bit on the same machine with the same versions.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import secrets
import shlex
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
import yaml
from safetensors.torch import save
from torch import Tensor, nn

from dprecipe import durable
from dprecipe.contract.plan import digest_of
from dprecipe.data.augment import make_augmentation
from dprecipe.data.copies import find_folder
from dprecipe.data.facts import describe_data
from dprecipe.data.load import open_all_tokens, read
from dprecipe.data.problems import combine_faults
from dprecipe.data.records import Records
from dprecipe.data.schema import AnySource
from dprecipe.data.tokens import TOKENIZER, LibraryTokens, SequenceTokens
from dprecipe.faults import DataFault, Interrupted, RunFailed, UsageFault
from dprecipe.models.file import describe_file, parse_description
from dprecipe.models.library_files import name_weights, render_library_files
from dprecipe.models.lora import merge_adapters
from dprecipe.models.public_record import KEY, InitialWeights, PublicRecord, UsedRecipe, UsedRecords
from dprecipe.models.zoo.causal_lm import CausalLanguageModel
from dprecipe.models.zoo.hub import SequenceClassifier
from dprecipe.nonprivate import documents
from dprecipe.nonprivate.place import choose_folder
from dprecipe.nonprivate.plan import PublicPlan
from dprecipe.priors.record import digest_tensors
from dprecipe.progress import Progress
from dprecipe.release.facts import list_versions
from dprecipe.release.scores import AnyScore, name_loss, state_score
from dprecipe.release.untrusted import to_bytes
from dprecipe.training.program.evaluate import METRICS, HeldOut, Score
from dprecipe.training.program.file_digests import digest_files, holding_still
from dprecipe.training.program.losses import choose_loss
from dprecipe.training.program.metrics import PUBLIC, render_metrics
from dprecipe.training.program.program import build_from, device_of, measure_base
from dprecipe.training.program.records import Store
from dprecipe.training.publish.provenance import device_name
from dprecipe.training.publish.publish import select_public
from dprecipe.training.run import checkpoint
from dprecipe.training.run.signals import stopping_on_signals
from dprecipe.training.steps.optimise import Average, apply_weight_decay, learning_rate, optimizer_of

Role = Literal["train", "test"]
SCORED_TOGETHER = 512
"""The number of held-out records that are scored together."""


@dataclass(frozen=True, slots=True)
class PublicRun:
    """A finished run without privacy."""

    folder: Path
    weights: Path
    digest: str
    """The digest of `model.safetensors`: `sha256:…`."""
    record: PublicRecord
    score: Score | None
    seconds: float


def train(plan: PublicPlan, root: Path, out: Path | None = None, resume: bool = False) -> PublicRun:
    """Trains as `plan` says and writes the run folder. `resume`: continue an interrupted run to the same folder.

    Raises:
        UsageFault: the folder exists; or see `KeptState`.
        DataFault: the records, or the weights to begin from, are not what the recipe declares.
        RunFailed: the loss is not finite, there is no such device, or the folder can't be written.
        Interrupted: the user stopped it; `resume` continues.
    """
    started = time.monotonic()
    target = choose_folder(plan, out)
    records, used = read_records(plan, root)
    facts, device = describe_data(plan.data), device_of(plan.runtime.device)
    module, initial = build_from(plan.model, plan.runtime.seed, Path(plan.source.file).parent, facts)
    module.to(device)
    begun = (plan.digest, *(one.digest for one in used), "" if initial is None else initial.digest)
    kept = KeptState(target, digest_of(list(begun)), resume)
    test = records.get("test")
    texts = None if test is None else test.prepared()
    base = measure_base(module, texts, device, SCORED_TOGETHER, facts.target)
    state = learn(plan, module, records["train"], device, kept)
    score = None
    if texts is not None:
        held_out = HeldOut(module, texts, device, SCORED_TOGETHER, facts.target, base=base)
        score = held_out.score(state, full=True)
    tensors = {name: value.detach().cpu().contiguous() for name, value in merge_adapters(module, state).items()}
    record = describe_run(plan, used, initial, digest_tensors(save(tensors)), device)
    config = module.config if isinstance(module, SequenceClassifier | CausalLanguageModel) else None
    files = {"model.json": to_bytes(describe_file(plan.model, plan.data, config))}
    tokens = open_all_tokens(plan.data.preprocess, root)
    if isinstance(tokens, LibraryTokens | SequenceTokens):
        files[TOKENIZER] = tokens.content
        files |= render_library_files(parse_description(files["model.json"]), tokens.content, tensors)
    if score is not None:
        files[METRICS] = render_metrics(score.all, score.records, PUBLIC)
    public = select_public(score, plan.data)
    stated = None if public is None else state_score(public, facts.target)
    digest = write_folder(target, plan, tensors, record, files, stated)
    kept.remove()
    return PublicRun(target, target / documents.FOLDER, digest, record, score, time.monotonic() - started)


def learn(
    plan: PublicPlan, module: nn.Module, records: Records, device: torch.device, kept: KeptState
) -> dict[str, Tensor]:
    """Takes all steps, from the state that was kept; returns the weights to write, averaged where there is an average.

    Raises:
        RunFailed: the loss is not finite, or the disk refuses the state.
        Interrupted: the user stopped it; the state is kept.
    """
    spec, steps, seed = plan.training.descent, plan.length.steps, plan.runtime.seed
    optimizer, rate = optimizer_of(spec, module), learning_rate(spec, plan.length)
    average = Average(plan.training.average, steps)
    loss_of = choose_loss(describe_data(plan.data).target, plan.training, omits=plan.data.omits_records)
    store = Store(records.prepared(), device, lambda generator: make_augmentation(plan.data.preprocess, generator))
    stopped = threading.Event()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), stopping_on_signals(stopped.set):
        torch.manual_seed(seed)  # of layers that draw
        module.train()
        done = kept.restore(module, optimizer, average, device)
        bar = Progress("training without privacy", "step", steps, done)
        batches = zip(range(steps), draw_batches(len(records), plan.batch_size, seed), strict=False)
        for step, units in itertools.islice(batches, done, None):
            (part,) = store.batch(units, seed + step).parts(len(units))
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(module(part.features), part.labels).mean()
            mean_loss = float(loss.detach())
            if not math.isfinite(mean_loss):
                raise RunFailed(f"the loss is not finite at step {step + 1}", "set a smaller training.optimizer.lr")
            loss.backward()  # type: ignore[no-untyped-call]
            lr = rate(step)
            for group in optimizer.param_groups:
                group["lr"] = lr
            apply_weight_decay(spec, optimizer, lr)
            optimizer.step()
            average.take(step, [p for p in module.parameters() if p.requires_grad])
            bar.show(step + 1, functools.partial("loss {:.4f}".format, mean_loss))
            if stopped.is_set() or kept.is_due:
                kept.save(step + 1, module, optimizer, average, device)
            if stopped.is_set():
                raise Interrupted(
                    f"stopped after {step + 1:,} of {steps:,} steps; nothing was spent",
                    f"continue with: {_continue_words(plan, kept.target)}",
                )
    bar.end(steps)
    module.eval()
    if average.value is not None:
        torch.nn.utils.vector_to_parameters(average.value, (p for p in module.parameters() if p.requires_grad))
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _continue_words(plan: PublicPlan, target: Path) -> str:
    words = ["dprecipe", "run", plan.source.file, "--resume", "--out", str(target)]
    words += [word for override in plan.source.overrides for word in ("--set", override)]
    return f"{shlex.join(words)} (and the same --data-root)"


def draw_batches(count: int, size: int, seed: int) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Yields, epoch after epoch without end, disjoint batches of record numbers in increasing order, the last one of an
    epoch smaller where `size` does not divide `count`."""
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(count)
        yield from (np.sort(order[start : start + size]) for start in range(0, count, size))


def read_records(plan: PublicPlan, root: Path) -> tuple[dict[Role, Records], tuple[UsedRecords, ...]]:
    """Reads the records of each role, and what is stated of them.

    Raises:
        DataFault: all faults of all sources.
    """
    sources: list[tuple[Role, AnySource | None]] = [("train", plan.data.train), ("test", plan.data.held_out)]
    records: dict[Role, Records] = {}
    used, faults = [], []
    for role, source in sources:
        if source is None:
            continue
        try:
            with holding_still(source, root):
                records[role] = read(source, plan.data, root, role, copies=find_folder(None, None), anew=True)[0]
                used.append(_describe_records(role, source, root, records[role]))
        except DataFault as fault:
            faults.append(fault)
    if faults:
        raise combine_faults(faults)
    return records, tuple(used)


def _describe_records(role: Role, source: AnySource, root: Path, records: Records) -> UsedRecords:
    digest = hashlib.sha256()
    for array in (records.features, records.labels):
        digest.update(json.dumps([array.dtype.str, array.shape]).encode())
        digest.update(np.ascontiguousarray(array).data)
    return UsedRecords(
        role=role,
        source=source.source,
        part=source.part[:200],
        files=digest_files(source, root),
        records=None if source.records is None else (source.records[0], source.records[1]),
        count=len(records),
        digest=f"sha256:{digest.hexdigest()}",
    )


def describe_run(
    plan: PublicPlan,
    used: tuple[UsedRecords, ...],
    initial: InitialWeights | None,
    weights: str,
    device: torch.device,
) -> PublicRecord:
    """Returns what the weights state about themselves."""
    return PublicRecord(
        recipe=UsedRecipe(name=plan.name, digest=plan.source.digest),
        data=used,
        steps=plan.length.steps,
        seed=plan.runtime.seed,
        initial_weights=None if initial is None else initial.digest,
        weights=weights,
        versions=dict(list_versions()),
        device=device_name(device)[:100],
    )


def write_folder(
    target: Path,
    plan: PublicPlan,
    tensors: Mapping[str, Tensor],
    record: PublicRecord,
    files: Mapping[str, bytes],
    score: AnyScore | None,
) -> str:
    """Makes the run folder, whole or not at all; returns the digest of `model.safetensors`.

    Raises:
        RunFailed: the disk refuses.
    """
    text = json.dumps(record.model_dump(mode="json", by_alias=True), sort_keys=True, separators=(",", ":"))
    _, metadata = name_weights(plan.model, adapters=False)
    content = save(dict(tensors), {**(metadata or {}), KEY: text})
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    loss = name_loss(plan.data)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    inside = {
        "model.safetensors": content,
        "provenance.json": documents.render_provenance(record),
        "README.md": documents.render_readme(record, digest, score, loss),
        "report.html": documents.render_report(record, digest, score, loss, plan.source.text),
        **files,
    }
    beside = {
        "recipe.yaml": plan.source.text.encode(),
        "resolved.yaml": yaml.safe_dump(dict(plan.resolved), sort_keys=False, allow_unicode=True).encode(),
        "plan.json": json.dumps(plan.to_json(), indent=1).encode(),
    }
    try:
        durable.make_folders(target.parent)
        (draft / documents.FOLDER).mkdir(parents=True)
        for name, part in beside.items():
            (draft / name).write_bytes(part)
        for name, part in inside.items():
            (draft / documents.FOLDER / name).write_bytes(part)
        draft.rename(target)
    except OSError as error:
        raise RunFailed(f"{target}: can't be written: {error.strerror}", "make room, or choose --out") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return digest


SAVE_SECONDS = 60.0
"""Longest time between two states that are kept."""


@final
class KeptState:
    """The state of a run, in the file `<folder>.interrupted`."""

    def __init__(self, target: Path, identity: str, resume: bool) -> None:
        """`identity`: of plan, records and first weights.

        Raises:
            UsageFault: there is a state, and the run is not to go on from it; or the other way round, or it is of
                another run.
            RunFailed: the file is damaged.
        """
        self.target = target
        self.path = target.with_name(f"{target.name}.interrupted")
        self._identity = identity
        self._saved = time.monotonic()
        self._state = checkpoint.load(self.path)
        if self._state is None and resume:
            raise UsageFault(f"{self.path}: there is no interrupted run", "leave --resume out")
        if self._state is not None and not resume:
            raise UsageFault(
                f"{self.path}: a run to {target} was interrupted",
                "continue it with --resume; or delete the file, or choose another folder with --out",
            )
        if self._state is not None and self._state.get("identity") != identity:
            raise UsageFault(
                f"{self.path}: is of another recipe, of other records or of other first weights",
                "put back what the run began with; or delete the file and leave --resume out",
            )

    def restore(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, average: Average, device: torch.device
    ) -> int:
        """Brings everything to where the run stood; returns the number of steps that are done, 0 for a run that begins.

        Raises:
            RunFailed: the state is not of this program.
        """
        state = self._state
        if state is None:
            return 0
        try:
            module.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            value, average.count = state["average"], int(state["average_count"])
            average.value = None if value is None else value.to(device)
            torch.set_rng_state(state["draws"][0])
            if device.type == "cuda":
                torch.cuda.set_rng_state(state["draws"][1], device)
            return int(state["step"])
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
            reason = checkpoint.first_line(error)
            raise RunFailed(f"{self.path}: not the state of this run: {reason}", "delete it and start again") from None

    @property
    def is_due(self) -> bool:
        """Returns True if it is time to save."""
        return time.monotonic() - self._saved >= SAVE_SECONDS

    def save(
        self, step: int, module: nn.Module, optimizer: torch.optim.Optimizer, average: Average, device: torch.device
    ) -> None:
        """Keeps the state after `step` steps, instead of an earlier one.

        Raises:
            RunFailed: the disk refuses; the earlier state stays.
        """
        draws: Sequence[torch.Tensor] = [torch.get_rng_state()]
        if device.type == "cuda":
            draws = [*draws, torch.cuda.get_rng_state(device)]
        state: dict[str, Any] = {
            "identity": self._identity,
            "step": step,
            "model": module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "average": average.value,
            "average_count": average.count,
            "draws": list(draws),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.save(self.path, state)
        self._saved = time.monotonic()

    def remove(self) -> None:
        """Removes the state: the run has ended."""
        self.path.unlink(missing_ok=True)
