"""Modules from Python as the engine calls them: one tensor of features in, one of logits out.

A module is searched for control flow that depends on values of records: with it, one record could change others'
outputs.

Axes: N records, K fields, L places of a record.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dprecipe.models.form import Form
from dprecipe.models.modules.draws import SEEDS, draw_from, drawing_from, find_shared_draws

MASK = "attention_mask"
TRIAL_RECORDS, MANY_RECORDS = 3, 7
"""Records of a trial, and what a module may raise there, whose code is the user's, is anything."""


@final
class RecordByRecord(nn.Module):
    """`module`, under the names of its own parameters, for features (N, …) as float32.

    - Tokens come as int64, and what is none of them as the nearest one; a record that is not finite has outputs of NaN.
    - Fields come by their names, as int64. A module that takes an `attention_mask` and was given none gets 1 where a
      token is not padding, and at the first place.
    - Of what it returns `.logits` is taken, where it returns no tensor.
    - `single`: records go through it one by one.
    """

    def __init__(self, module: nn.Module, form: Form, *, whole: bool, mask: str = "", single: bool = False) -> None:
        """`mask`: "added" to the scores, (N, 1, L, L), or "counts", (N, L), where the module takes one."""
        super().__init__()
        # The module's own, so that names, states and devices are its own; it is reached through no name of ours.
        self._parameters, self._buffers = module._parameters, module._buffers
        self._modules = module._modules
        object.__setattr__(self, "_wrapped", (module,))
        self._non_persistent_buffers_set = module._non_persistent_buffers_set
        self._form, self._whole, self._mask, self._single = form, whole, mask, single
        padding = getattr(getattr(module, "config", None), "pad_token_id", None)
        self._padding = padding if isinstance(padding, int) else 0
        self.training = module.training

    @property
    def module(self) -> nn.Module:
        """The module as it came."""
        result: nn.Module = vars(self)["_wrapped"][0]
        return result

    @property
    def single(self) -> bool:
        """Records go through it one by one, each with draws of its own."""
        return self._single

    def train(self, mode: bool = True) -> RecordByRecord:
        self.module.train(mode)
        self.training = mode
        return self

    def forward(self, features: Tensor) -> Tensor:
        if self._single:
            if torch._C._functorch.peek_interpreter_stack() is not None:
                # `vmap` runs Python once for all records, with one answer of Python's and numpy's generators.
                raise RuntimeError("records go through this module one by one")
            if not len(features):
                return self._call_module(features)
            return torch.cat(
                [self._call_module(features[i : i + 1]) for i in by_record(len(features), features.device)]
            )
        return self._call_module(features)

    def _call_module(self, features: Tensor) -> Tensor:
        if self._form.tokens is None:
            plain: Tensor = logits_of(self.module(features))
            return plain
        limited = self._form.limited(features)
        inputs = limited.long() if self._whole else limited
        if len(self._form.fields) and inputs.dim() == len(self._form.shape) + 1:
            named = dict(zip(self._form.fields, inputs.unbind(1), strict=True))
            result = logits_of(self.module(**named))
        elif self._mask:
            result = logits_of(self.module(inputs, **{MASK: self._counted(inputs)}))
        else:
            result = logits_of(self.module(inputs))
        # No table shows what was looked up in it, so that a record without numbers is marked.
        marked: Tensor = result + (0.0 * features).flatten(1).sum(1).view(-1, *[1] * (result.dim() - 1))
        return marked

    def _counted(self, tokens_NL: Tensor) -> Tensor:
        places_L = torch.arange(tokens_NL.shape[1], device=tokens_NL.device)
        counts_NL = (tokens_NL != self._padding) | (places_L == 0)
        if self._mask == "counts":
            return counts_NL.long()
        # As it is added to the scores: a library then makes no mask of its own, which might look at all records.
        added = torch.where(counts_NL, 0.0, torch.finfo(torch.float32).min)[:, None, None, :]
        return added.expand(-1, 1, len(places_L), -1)


def by_record(count: int, device: torch.device) -> Iterator[int]:
    """Yields 0 … count - 1, each with draws of its own, of torch, Python and numpy: how many a record takes moves
    nothing of what others draw.
    """
    seeds = torch.randint(SEEDS, (count,)).tolist()
    with drawing_from(0, device):
        for number, seed in enumerate(seeds):
            draw_from(seed, device)
            yield number


def logits_of(answer: Any) -> Any:
    """Returns the tensor of logits in what a module returns: itself, or the `logits` of an object or a mapping."""
    if isinstance(answer, Tensor):
        return answer
    result = answer.get("logits") if isinstance(answer, dict) else getattr(answer, "logits", None)
    return result if isinstance(result, Tensor) else answer


def adapt_module(module: nn.Module, form: Form) -> tuple[nn.Module, Form, str]:
    """Returns the module as the engine calls it, the form of its records with the number of tokens that its tables
    have, and why its records go through it one by one (empty: they need not).

    Where it is known that records are tokens, and not how many, tables of the module tell. Quantities are taken for
    tokens where the module takes no others. All of it is found on synthetic records. A module that takes and returns
    plain tensors comes back as it is.
    """
    with _preserve_module(module):
        if form.tokens is None and _try_call(module, form) is None and _try_call(module, form, 1) is None:
            tokens = Form(form.shape, _tokens_of(module, form), form.fields)
            form = tokens if isinstance(_try_call(_find_call(module, tokens), tokens), Tensor) else form
        elif form.tokens is not None and not any(form.tokens):
            form = Form(form.shape, _tokens_of(module, form), form.fields)
        record_by_record = _find_call(module, form)
        single = _by_single_records(record_by_record, form)
    if single:
        whole, mask = (
            (record_by_record._whole, record_by_record._mask)
            if isinstance(record_by_record, RecordByRecord)
            else (False, "")
        )
        record_by_record = RecordByRecord(module, form, whole=whole, mask=mask, single=True)
    if isinstance(record_by_record, RecordByRecord):
        record_by_record.training = module.training
    return record_by_record, form, single


def _find_call(module: nn.Module, form: Form) -> nn.Module:
    """Returns the first way of calling the module that works."""
    if form.tokens is None:
        plain = _try_call(module, form)
        return module if plain is None or isinstance(plain, Tensor) else RecordByRecord(module, form, whole=False)
    takes_mask = not form.fields and MASK in _parameters(module)
    masks = ("added", "counts") if takes_mask and _of_library(module) else ("counts",) if takes_mask else ("",)
    # Tables want whole numbers, layers of quantities do not.
    candidates = [RecordByRecord(module, form, whole=whole, mask=mask) for whole in (True, False) for mask in masks]
    for candidate in candidates:
        if isinstance(_try_call(candidate, form), Tensor) and (
            candidate._mask != "added" or _is_mask_equivalent(candidate, form)
        ):
            return candidate
    return candidates[len(masks) - 1]  # none: the probe says what it raises


def _is_mask_equivalent(candidate: RecordByRecord, form: Form) -> bool:
    """Returns True if the library treats a mask that is added to the scores like a mask of counts."""
    with _in_evaluation(candidate):
        other = RecordByRecord(candidate.module, form, whole=candidate._whole, mask="counts")
        one, two = _try_call(candidate, form), _try_call(other, form)
    return isinstance(one, Tensor) and isinstance(two, Tensor) and bool(torch.allclose(one, two, rtol=1e-4, atol=1e-5))


def _by_single_records(module: nn.Module, form: Form) -> str:
    """Returns why records can't go through the module together: one would decide for the others. Empty if they can."""
    records = _records(module, form)
    try:
        return find_reads(module, records) or find_shared_draws(module, (records, _records(module, form, MANY_RECORDS)))
    except Exception:  # of the module, whose code is the user's
        return "it takes one record at a time" if isinstance(_try_call(module, form, 1), Tensor) else ""


def _tokens_of(module: nn.Module, form: Form) -> tuple[int, ...]:
    """Finds the number of tokens in the table that each field is looked up in; 0 for a field without a table."""
    small = Form(form.shape, (0,) * max(1, len(form.fields)), form.fields)
    result = _find_call(module, small)
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    zeros = torch.zeros((TRIAL_RECORDS, *form.shape), device=device)
    for number, name in enumerate(form.fields):
        zeros[:, number] = float("mask" in name)
    before = _lookups(result, zeros)
    results = []
    for number in range(max(1, len(form.fields))):
        ones = zeros.clone()
        (ones[:, number] if form.fields else ones).fill_(1.0)
        after = _lookups(result, ones)
        changed = [key for key in before.keys() & after.keys() if not _equal(before[key][1], after[key][1])]
        results.append(min((before[key][0] for key in changed), default=0))
    return tuple(results)


def _lookups(module: nn.Module, records: Tensor) -> dict[int, tuple[int, Tensor]]:
    """Returns for each table its number of rows, and what was looked up last."""
    lookups: dict[int, tuple[int, Tensor]] = {}

    def hook(layer: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            lookups[id(layer)] = cast(nn.Embedding, layer).num_embeddings, args[0].detach().clone()

    tables = [layer for layer in module.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    hooks = [layer.register_forward_pre_hook(hook) for layer in tables]
    with contextlib.suppress(Exception):  # of the module, whose code is the user's: the probe says what it raises
        module(records)
    for handle in hooks:
        handle.remove()
    return lookups


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one, other))


def _try_call(module: nn.Module, form: Form, count: int = TRIAL_RECORDS) -> Any:
    """Returns what the module returns for synthetic records; None if it raises."""
    try:
        with torch.no_grad():
            return module(_records(module, form, count))
    except Exception:  # of the module, whose code is the user's
        return None


def _records(module: nn.Module, form: Form, count: int = TRIAL_RECORDS) -> Tensor:
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    return form.draw(count, torch.Generator().manual_seed(0)).to(device)


def _parameters(module: nn.Module) -> set[str]:
    return set(inspect.signature(module.forward).parameters)


def _of_library(module: nn.Module) -> bool:
    """Returns True for a module of transformers, whose encoders take a mask that is added to the scores."""
    return any(kind.__module__.partition(".")[0] == "transformers" for kind in type(module).__mro__)


@contextmanager
def _in_evaluation(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


@contextmanager
def _preserve_module(module: nn.Module) -> Iterator[None]:
    """Restores generators, buffers and modes afterwards."""
    devices = {p.device for p in module.parameters() if p.device.type == "cuda"}
    modes = [(layer, layer.training, dict(layer._buffers)) for layer in module.modules()]
    contents = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    with drawing_from(0, next(iter(devices), torch.device("cpu"))):
        module.train()
        try:
            yield
        finally:
            for layer, mode, buffers in modes:
                layer.training = mode
                layer._buffers.update(buffers)
            with torch.no_grad():
                for buffer, content in contents:
                    buffer.copy_(content)


READING = frozenset(
    (
        *(Tensor.numpy, Tensor.tolist, Tensor.item, Tensor.data_ptr, Tensor.untyped_storage, Tensor.__array__),
        *(Tensor.__dlpack__, Tensor.__repr__, Tensor.__format__, Tensor.__bool__, Tensor.__int__, Tensor.__float__),
        Tensor.__index__,
    )
)
"""Methods that can take values out of a tensor without an operation that torch marks as such."""


def find_reads(module: nn.Module, features: Tensor) -> str:
    """Finds the line on which the module reads values of records; empty if it reads none, or constants only.

    Raises:
        Exception: what the module raises.
    """
    calls = _Calls()
    with calls, _Operations(calls.places):
        module(features)
    if not calls.places:
        return ""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def one(feature: Tensor) -> Any:
        return functional_call(module, state, (feature.unsqueeze(0),))

    try:
        with _Calls(refused=True):
            vmap(one, randomness="different")(features)
    except Exception:  # a value of a record, or of a draw, would have become one of Python's
        place = next((place for place in calls.places if place), "")
        return f"it decides by values of records{f' ({place})' if place else ''}"
    return ""


@final
class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Recorder of places that make a Python value of a tensor, or a tensor whose shape depends on values."""

    def __init__(self, places: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._places = places

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tags = getattr(func, "tags", ())
        if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
            self._places.append(find_user_line(inspect.currentframe()))
        return func(*args, **(kwargs or {}))


@final
class _Calls(TorchFunctionMode):
    """Recorder of places where values leave torch altogether, to numpy, to lists and to text."""

    def __init__(self, *, refused: bool = False) -> None:
        super().__init__()
        self.places: list[str] = []
        self._refused = refused

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READING:
            if self._refused and args and torch._C._functorch.is_functorch_wrapped_tensor(args[0]):
                raise RuntimeError("a value of a record is read")
            self.places.append(find_user_line(inspect.currentframe()))
        return func(*args, **(kwargs or {}))


def find_user_line(frame: Any) -> str:
    """Returns the innermost line of the user's code, `file.py:12: code`; empty if there is none."""
    while frame is not None:
        info = inspect.getframeinfo(frame, context=1)
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("torch", "dprecipe", "contextlib", "functools", "inspect") and "self" in frame.f_locals:
            code = (info.code_context or [""])[0].strip()
            return f"{info.filename.replace(chr(92), '/').rpartition('/')[2]}:{info.lineno}: {code[:80]}".rstrip(": ")
        frame = frame.f_back
    return ""
