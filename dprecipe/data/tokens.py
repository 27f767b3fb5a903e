"""Texts to numbers of tokens: hashed words, or the tokens of a public tokeniser.

A tokeniser is a file of data that the `tokenizers` library reads: it holds no code. Each text becomes tokens by itself,
by constants that are declared public, so a record still moves its own features alone.

Of `sequences`, segments are made tokens each by itself: the text of a record, a prompt, a completion, or a turn of a
conversation. What a record spells never becomes a special token (`<|endoftext|>` in it is read as letters): only the
recipe's own constants do. So no record can end its sequence early. What stands around a role's turns can be spelled in
a record unless it is a special token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.files import locate_file
from dprecipe.data.schema import Sequences, Tokenize, TokenizerFile
from dprecipe.data.token_patterns import grows_texts, take_long
from dprecipe.data.values import WORD, hash_bucket
from dprecipe.faults import DataFault
from dprecipe.libraries import importing_libraries, is_failure

TOKENIZER = "tokenizer.json"
"""The name of a tokeniser in a release."""
MAX_BYTES = 64 << 20
PADDING_WORDS = ("[PAD]", "<pad>", "<|pad|>", "<|padding|>")


class Tokens(Protocol):
    """Tokeniser: turns texts into tokens."""

    def write(self, texts: Sequence[str], features: NDArray[np.float32]) -> None:
        """Writes the first tokens of each text, and padding after the last, into `features` (N, length)."""


@final
class HashedWords:
    """The buckets of lower-cased words, 1 … `buckets`; 0 is padding."""

    def __init__(self, step: Tokenize) -> None:
        self._buckets, self._length = step.buckets or 1, step.length

    def write(self, texts: Sequence[str], features: NDArray[np.float32]) -> None:
        """See `Tokens`."""
        for row, text in enumerate(texts):
            words = WORD.findall(text.lower())[: self._length]
            features[row, : len(words)] = [1 + hash_bucket(word, self._buckets) for word in words]


@final
class LibraryTokens:
    """The tokens of a tokeniser, with the special ones that it adds to each text."""

    def __init__(self, tokenizer: Any, padding: int, content: bytes, name: str) -> None:
        """`tokenizer`: of the library, which truncates. `content`: that of its file, `name`: its name."""
        self._tokenizer, self._padding, self._name = tokenizer, padding, name
        self.content = content

    def write(self, texts: Sequence[str], features: NDArray[np.float32]) -> None:
        """See `Tokens`.

        Raises:
            DataFault: the tokeniser has no token for a part of a text.
        """
        features[:] = self._padding
        whole = [text.encode("utf-8", "replace").decode() for text in texts]  # of a lone surrogate there is no text
        for row, encoding in enumerate(encode_texts(self._tokenizer, whole, self._name)):
            features[row, : len(encoding.ids)] = encoding.ids


def open_tokens(step: Tokenize, root: Path) -> Tokens:
    """Opens the tokeniser of a step. `root`: the data root.

    Raises:
        DataFault, UsageFault: see `load_tokenizer`.
    """
    if step.tokenizer is None:
        return HashedWords(step)
    return load_tokenizer(locate_file(step.tokenizer.path, root), step.tokenizer, step.length)


def check_form(content: bytes) -> None:
    """Checks that a file may be a tokeniser, without the library: a mapping in JSON with a model, of a bounded size,
    and without patterns that may take long, or replacements that make texts far longer (`token_patterns`).

    Raises:
        ValueError: it is none.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        parsed = json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not (isinstance(parsed, dict) and isinstance(parsed.get("model"), dict)):
        raise ValueError("it holds no mapping with a model")
    try:
        if take_long(parsed):
            raise ValueError(
                "its patterns may take too long on some texts: they match in many ways before a part that may fail, or "
                "repeat a group that repeats or chooses"
            )
        if grows_texts(parsed):
            raise ValueError("its replacements, one after the other, may make a text thousands of times longer")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def load_tokenizer(path: Path, declared: TokenizerFile, length: int) -> LibraryTokens:
    """Returns the tokeniser of a file, for texts of at most `length` tokens.

    Raises:
        DataFault, UsageFault: as `read_tokenizer`.
    """
    tokenizer, content = read_tokenizer(path, declared)
    tokenizer.enable_truncation(length)
    _check_added(tokenizer, declared, length, path.name)
    return LibraryTokens(tokenizer, declared.padding, content, path.name)


def read_tokenizer(path: Path, declared: TokenizerFile) -> tuple[Any, bytes]:
    """Returns the library's tokeniser of a file, which neither cuts nor pads, and the content of the file.

    Raises:
        UsageFault: the library is not installed.
        DataFault: the file can't be read, is no tokeniser, or has other tokens than are declared.
    """
    with importing_libraries("a tokeniser"):
        import tokenizers
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        check_form(content)
        tokenizer = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    except OSError as error:
        raise DataFault(f"{path.name}: can't be read: {error.strerror}", "check its permissions") from None
    except BaseException as error:
        if not _is_of_library(error):
            raise
        reason = (str(error).splitlines() or [""])[0][:200]
        raise DataFault(
            f"{path.name}: is no tokeniser that the library reads: {reason}",
            "name the `tokenizer.json` of a checkpoint (one that has none: AutoTokenizer.from_pretrained(…)."
            "save_pretrained(…) writes it)",
        ) from None
    _check_tokens(tokenizer, declared, path.name)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, content


def _is_of_library(error: BaseException) -> bool:
    """Returns True if the library has raised it."""
    return is_failure(error) and not isinstance(error, MemoryError)


def _check_tokens(tokenizer: Any, declared: TokenizerFile, name: str) -> None:
    count = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if count > declared.vocabulary:
        raise DataFault(
            f"{name}: has tokens up to {count - 1}, declared are {declared.vocabulary}",
            f"write vocabulary: {count}, or the model's own number of tokens where that is larger",
        )
    if getattr(tokenizer.model, "dropout", None):
        raise DataFault(f"{name}: leaves out merges by chance (`dropout`)", "remove `dropout` from the file's model")
    stated = tokenizer.padding
    own = stated["pad_id"] if stated else None
    for word in PADDING_WORDS:
        own = tokenizer.token_to_id(word) if own is None else own
    if own is not None and own != declared.padding:
        raise DataFault(f"{name}: pads with token {own}, declared is {declared.padding}", f"write padding: {own}")


def _check_added(tokenizer: Any, declared: TokenizerFile, length: int, name: str) -> None:
    """Checks the tokens that are added to each text, which the file names apart from its vocabulary."""
    added = encode_texts(tokenizer, [""], name)[0].ids
    if max(added, default=0) >= declared.vocabulary:
        raise DataFault(
            f"{name}: adds token {max(added)} to each text, and declared are {declared.vocabulary}",
            "mend `post_processor` in the file: its tokens are those of the vocabulary",
        )
    if len(added) > length:
        raise DataFault(
            f"{name}: adds {len(added)} tokens to each text, of which {length} are read",
            f"write length: {len(added) + 1} or more",
        )


def encode_texts(tokenizer: Any, texts: list[str], name: str, special: bool = True) -> Sequence[Any]:
    """Returns the library's encodings of texts; `special`: with the tokens that the tokeniser of file `name` adds to
    each.

    Raises:
        DataFault: it fails on a text.
    """
    remedy = "name a token for unknown words in the file's model (`unk_token`), as checkpoints have one"
    with _reporting_failures(f"{name}: has no token for a part of a text, or fails on it", remedy):
        encodings: Sequence[Any] = tokenizer.encode_batch(texts, add_special_tokens=special)
        return encodings


def decode_tokens(tokenizer: Any, tokens: Sequence[int], name: str) -> str:
    """Returns the text of tokens, without the special ones among them.

    Raises:
        DataFault: the tokeniser of file `name` fails on them.
    """
    with _reporting_failures(f"{name}: fails to make a text of tokens", "mend `decoder` in the file"):
        text: str = tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


@contextmanager
def _reporting_failures(message: str, remedy: str) -> Iterator[None]:
    """Turns what the library raises into a fault, without the error's text, which may be of a record."""
    try:
        yield
    except BaseException as error:
        if not _is_of_library(error):
            raise
        raise DataFault(message, remedy) from None


PROBES = ("a", "e", "A", "0", ".")
"""Texts for at least one of which a tokeniser has a token."""


@final
class SequenceTokens:
    """The tokens of segments, without special ones; `before` and `after` are those around a whole text."""

    def __init__(self, step: Sequences, tokenizer: Any, content: bytes, name: str) -> None:
        """`tokenizer`: of the library, which neither cuts nor pads. `content`: that of its file, `name`: its name.

        Raises:
            DataFault: the tokens that it adds to a text are not those that are declared, or a text can spell a special
                one.
        """
        self._tokenizer, self._name = tokenizer, name
        self.content = content
        first, added = _find_added(tokenizer, step.vocabulary, name)
        self.before = first if step.begin is None else (step.begin,)
        if first not in ((), self.before):
            raise DataFault(
                f"{name}: puts token {', '.join(map(str, first))} before each text, and `begin` is {step.begin}",
                f"write begin: {first[0]}" if len(first) == 1 else "remove `begin`",
            )
        self.after = added if step.end is None else (step.end,)
        if added not in ((), self.after):
            raise DataFault(
                f"{name}: puts token {', '.join(map(str, added))} behind each text, and `end` is {step.end}",
                f"write end: {added[0]}" if len(added) == 1 else "remove `end`",
            )
        if len(self.before) + len(self.after) >= step.max_length:
            raise DataFault(
                f"{name}: adds {len(self.before) + len(self.after)} tokens to each text, and max_length is "
                f"{step.max_length}",
                f"write max_length: {len(self.before) + len(self.after) + 1} or more",
            )
        roles = step.roles or {}
        self.turns = {role: (self._constant(start), self._constant(end)) for role, (start, end) in roles.items()}
        """The tokens before and after each turn, by role."""
        tokenizer.encode_special_tokens = True
        _check_unspelled(tokenizer, (*self.before, *self.after), name)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of each segment; special ones never.

        Raises:
            DataFault: the tokeniser has no token for a part of a text.
        """
        encodings = encode_texts(self._tokenizer, list(texts), self._name, special=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, without the special ones among them. Raises as `decode_tokens`."""
        return decode_tokens(self._tokenizer, tokens, self._name)

    @property
    def count(self) -> int:
        """Number of tokens that the tokeniser knows: the vocabulary of a model may be larger."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def special(self) -> frozenset[int]:
        """The tokens that no text is made of: the file names them as special, apart from its vocabulary."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    def _constant(self, text: str) -> tuple[int, ...]:
        return tuple(encode_texts(self._tokenizer, [text], self._name, special=False)[0].ids) if text else ()


def open_sequence_tokens(step: Sequences, root: Path) -> SequenceTokens:
    """Returns the tokeniser of a step. `root`: the data root.

    Raises:
        DataFault, UsageFault: see `dprecipe.data.tokens.read_tokenizer`, and `SequenceTokens`.
    """
    path = locate_file(step.tokenizer.path, root)
    return SequenceTokens(step, *read_tokenizer(path, step.tokenizer), path.name)


def _check_unspelled(tokenizer: Any, around: Sequence[int], name: str) -> None:
    """Checks that no text becomes a special token, or what begins or ends a text: a vocabulary that has its words
    among the others finds them in texts. What stands for unknown letters is no such token.

    Raises:
        DataFault: one does.
    """
    added = tokenizer.get_added_tokens_decoder()
    words = {number: token.content for number, token in added.items() if token.special}
    words |= {number: tokenizer.id_to_token(number) or "" for number in around}
    unknown = getattr(tokenizer.model, "unk_token", None)
    words = {number: word for number, word in words.items() if word and word != unknown}
    for number, encoding in zip(words, encode_texts(tokenizer, list(words.values()), name, special=False), strict=True):
        if number in encoding.ids:
            raise DataFault(
                f"{name}: a record that spells special token {number} would hold it, and could end its text early",
                "name a tokeniser that makes it of no text: one of bytes or merges, without `ignore_merges` where the "
                "model's vocabulary has special tokens",
            )


def _find_added(tokenizer: Any, vocabulary: int, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the special tokens that a tokeniser puts before and behind each text, which the file names apart from its
    vocabulary."""
    for probe in PROBES:
        plain = encode_texts(tokenizer, [probe], name, special=False)[0].ids
        whole = encode_texts(tokenizer, [probe], name)[0].ids
        if not plain:
            continue
        starts = [place for place in range(len(whole)) if whole[place : place + len(plain)] == plain]
        if not starts:
            raise DataFault(
                f"{name}: puts special tokens into the middle of a text",
                "name the tokeniser of a decoder, whose `post_processor` adds tokens before a text or behind it",
            )
        before, after = tuple(whole[: starts[0]]), tuple(whole[starts[0] + len(plain) :])
        if max((*before, *after), default=0) >= vocabulary:
            raise DataFault(
                f"{name}: adds token {max((*before, *after))} to each text, and declared are {vocabulary}",
                "mend `post_processor` in the file: its tokens are those of the vocabulary",
            )
        return before, after
    raise DataFault(
        f"{name}: has no token for a letter, a digit or a full stop", "name the `tokenizer.json` of a checkpoint"
    )
