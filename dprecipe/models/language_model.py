"""A released language model that writes: continuations of a prompt, in the form in which its training texts were.

It is built from the files of its release folder alone.

What it writes is post-processing of what was released: it costs nothing more, however much of it there is. A text may
still resemble public text that the base model has read, which no certificate is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

import torch
from torch import Tensor

from dprecipe.data.facts import sequences_step
from dprecipe.data.schema import ASSISTANT, Sequences
from dprecipe.data.tokens import TOKENIZER, SequenceTokens, read_tokenizer
from dprecipe.faults import DataFault, UsageFault
from dprecipe.libraries import ignoring_warnings
from dprecipe.models.build import build
from dprecipe.models.checks import check_data
from dprecipe.models.decoding import Continuation, Sampling, continue_tokens
from dprecipe.models.file import ModelFile, find_model_folder
from dprecipe.models.library_files import ADAPTERS, WEIGHTS
from dprecipe.models.load import find_file, read_description, read_tensors
from dprecipe.models.lora import add_adapters, load_adapters, read_adapters
from dprecipe.models.schema import CausalLm
from dprecipe.models.zoo.causal_lm import CausalLanguageModel
from dprecipe.models.zoo.checkpoint import check_decoder, digest_weights, load_decoder

USER = "user"
BATCH = 64
"""Texts that are written at once."""
MAX_COUNT = 10_000_000


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A text that the model has written behind its prompt."""

    text: str
    tokens: int
    has_ended: bool
    """True if the text ended by itself, and was not cut."""


@final
class LanguageModel:
    """A released decoder and its tokeniser; in evaluation mode."""

    def __init__(self, module: CausalLanguageModel, file: ModelFile, step: Sequences, tokens: SequenceTokens) -> None:
        """`file`: what `model.json` says; `step`: how it makes sequences of texts; `tokens`: of its tokeniser."""
        self.module = module.eval().requires_grad_(False)
        self.file, self.step, self.tokens = file, step, tokens

    @property
    def places(self) -> int:
        """Tokens that it can read: prompt and continuation together."""
        return self.module.places

    @ignoring_warnings()
    def generate(
        self,
        prompt: str = "",
        count: int = 1,
        *,
        max_tokens: int | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> list[str]:
        """Returns `count` texts behind a prompt: of a chat the assistant's answers to this message, of prompts and
        completions the completion, else what goes on from it. `max_tokens` of each: what is left of the length of
        training when None.

        Guarantees: the same release, arguments and machine give the same texts.

        Raises:
            UsageFault: no token fits after the prompt, there is nothing to start from, or a number is out of
                its range.
            DataFault: the tokeniser has no token for a part of the prompt.
        """
        if not 1 <= count <= MAX_COUNT:
            raise UsageFault(f"{count} texts can't be generated", f"choose 1 to {MAX_COUNT:,}")
        start = self.begin(prompt)
        sampling = Sampling(self.count_left(start) if max_tokens is None else max_tokens, temperature, top_p)
        generator = torch.Generator().manual_seed(check_seed(seed))
        texts: list[str] = []
        while len(texts) < count:
            texts += [one.text for one in self.write(start, min(BATCH, count - len(texts)), sampling, generator)]
        return texts

    def begin(self, prompt: str) -> tuple[int, ...]:
        """Returns the tokens that a continuation of `prompt` goes on from.

        Raises:
            UsageFault: they fill all places, or there are none.
            DataFault: the tokeniser has no token for a part of the prompt.
        """
        before, encoded = self.tokens.before, tuple(self.tokens.encode([prompt])[0]) if prompt else ()
        if self.step.chat is not None:
            if USER not in self.tokens.turns or ASSISTANT not in self.tokens.turns:
                raise UsageFault(f"the recipe's roles have no {USER!r} or no {ASSISTANT!r}", "use the tokens in Python")
            start, end = self.tokens.turns[USER]
            encoded = (*start, *encoded, *end, *self.tokens.turns[ASSISTANT][0])
        # Behind the end of a text another one begins: what a text starts from where nothing else stands before it.
        result = (*before, *encoded) or self.tokens.after[:1]
        if not result:
            raise UsageFault("the model's texts have no token before the first, to start from", "give a text: --prompt")
        if len(result) >= self.places:
            raise UsageFault(
                f"the prompt has {len(result)} tokens, and the model reads {self.places}", "give a shorter prompt"
            )
        return result

    def count_left(self, start: Sequence[int]) -> int:
        """Returns new tokens up to the length of training; one at least."""
        return max(1, min(self.places, self.step.max_length) - len(start))

    def write(
        self, start: Sequence[int], count: int, sampling: Sampling, generator: torch.Generator
    ) -> list[WrittenText]:
        """Returns `count` continuations of tokens, at most as long as the places allow.

        Raises:
            DataFault: the weights give numbers that are not finite.
        """
        length = min(sampling.max_tokens, self.places - len(start))
        fitting = Sampling(length, sampling.temperature, sampling.top_p)
        end = self.tokens.after[0] if self.tokens.after else None
        vocabulary = int(self.module.vocabulary)
        # Padding may be a token that texts are made of: places behind the end are ignored, whatever stands there.
        banned = {*range(self.tokens.count, vocabulary), *(self.tokens.special & {self.step.tokenizer.padding})}
        done = continue_tokens(self._step, start, count, fitting, generator, end, banned)
        return [self._read(start, one) for one in done]

    def _step(self, tokens_BT: Tensor, cache: Any) -> tuple[Tensor, Any]:
        # Drawn on the CPU, wherever the module is: the same seed draws the same numbers.
        logits_BV, cache = self.module.next_logits(tokens_BT.to(self.module.embedding.weight.device), cache)
        return logits_BV.cpu(), cache

    def _read(self, start: Sequence[int], one: Continuation) -> WrittenText:
        # A tokeniser may drop a blank at the beginning: so the whole is read, and its beginning taken off.
        whole, prefix = self.tokens.decode([*start, *one.tokens]), self.tokens.decode(start)
        text = whole[len(prefix) :] if whole.startswith(prefix) else self.tokens.decode(one.tokens)
        turn_end = (self.step.roles or {}).get(ASSISTANT, ("", ""))[1] if self.step.chat is not None else ""
        if turn_end and turn_end in text:
            return WrittenText(text[: text.index(turn_end)], len(one.tokens), True)
        return WrittenText(text, len(one.tokens), one.has_ended)


def check_seed(seed: int) -> int:
    """Returns the seed itself.

    Raises:
        UsageFault: it is no whole number of 0 to 2^63 - 1.
    """
    if not 0 <= seed < 1 << 63:
        raise UsageFault(f"the seed is {seed}", "choose 0 to 2^63 - 1")
    return seed


def find_sequences(file: ModelFile) -> Sequences:
    """Returns the step that makes the sequences of a language model.

    Raises:
        DataFault: it is another kind of model.
    """
    step = sequences_step(file.preprocess)
    if step is None:
        raise DataFault(
            "the released model predicts labels, and writes no text", "use dprecipe predict, or name a causal_lm"
        )
    return step


def load_language_model(release: str | Path, base: str | Path | None = None, device: str = "cpu") -> LanguageModel:
    """Returns the language model of a release folder; also of a folder that holds one, as `release/`. `base`: where
    adapters are released alone, the folder of the weights that they belong to, whose digest is checked. `device`: see
    `find_device`.

    Check the folder with `dprecipe verify` first: this reads the model, not the certificate. No code is read from it.

    Raises:
        DataFault: a file is missing or damaged, it is another kind of model, or `base` holds other weights.
        UsageFault: `base` is missing, or given where the release has all weights; or the device is not there.
        RunFailed: transformers is not installed.
    """
    place = find_device(device)
    folder = find_model_folder(Path(release))
    file = read_description(folder)
    step = find_sequences(file)
    if (file.base is None) != (base is None):
        raise UsageFault(
            "the release has all its weights, and needs no base"
            if file.base is None
            else f"the release has adapters alone, of the weights with digest {file.base}",
            "remove --base" if file.base is None else "name the folder of these weights with --base",
        )
    tokens = SequenceTokens(step, *read_tokenizer(find_file(folder, TOKENIZER), step.tokenizer), TOKENIZER)
    if base is None:
        module = _build(file, "meta")  # without memory, however large it claims to be
        module.load_state_dict(read_tensors(find_file(folder, WEIGHTS), module), assign=True)
    else:
        _check_base(digest_weights(Path(base)), file, Path(base))  # before a model is built for them
        adapters = read_adapters(find_file(folder, ADAPTERS))
        draft = _build(file, "meta")  # without memory, until base and adapters are known to have its shapes
        check_decoder(draft, Path(base))
        with torch.device("meta"):
            _adapt(draft, file.model, adapters)
        module = _build(file)
        _check_base(load_decoder(module, Path(base)).digest, file, Path(base))  # of what was read
        _adapt(module, file.model, adapters)
    try:
        return LanguageModel(module.to(place), file, step, tokens)
    except torch.OutOfMemoryError:
        raise UsageFault(f"the weights do not fit into the memory of {place}", "choose the device cpu") from None


def find_device(name: str) -> torch.device:
    """Returns the device of this name; of `auto` a GPU where there is one, else the CPU.

    Raises:
        UsageFault: it is not there, or no device has this name.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device("cuda" if there["cuda"] else "cpu")
    if not there.get(name, False):
        reason = "is not available here" if name in there else f"is none of auto, {', '.join(there)}"
        raise UsageFault(f"device {name!r} {reason}", "choose auto, which takes a GPU where there is one")
    return torch.device(name)


def _build(file: ModelFile, device: str = "cpu") -> CausalLanguageModel:
    findings = [] if file.model is None else check_data(file.model, file.facts)
    if not isinstance(file.model, CausalLm) or findings:
        reason = findings[0].message if findings else "its model is no causal_lm"
        raise DataFault(f"model.json: {reason}", "take it from the release folder, unchanged")
    public = file.facts
    with torch.device(device):
        module = build(file.model, public.shape, public.outputs, 0, public.vocabulary, file.config, public.max_length)
    return cast(CausalLanguageModel, module)


def _check_base(digest: str, file: ModelFile, base: Path) -> None:
    """Checks that the digest of a folder's weights is that of the release."""
    if digest != file.base:
        raise DataFault(
            f"{base}: its weights have the digest {digest}, and the adapters belong to {file.base}",
            "name the folder of the weights that the training began from",
        )


def _adapt(module: CausalLanguageModel, model: object, adapters: Mapping[str, Tensor]) -> None:
    if isinstance(model, CausalLm) and model.lora is not None:
        add_adapters(module, model.lora, frozenset(), 0)
    load_adapters(module, adapters)
