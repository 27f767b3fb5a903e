"""Texts to tokens: hashed words as before, and public tokenisers of the `tokenizers` library."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.data.checks import check_data
from dprecipe.data.load import load
from dprecipe.data.schema import Data, Tokenize, TokenizerFile
from dprecipe.data.tokens import (
    HashedWords,
    LibraryTokens,
    check_form,
    decode_tokens,
    encode_texts,
    load_tokenizer,
    open_tokens,
)
from dprecipe.faults import DataFault, UsageFault

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "free", "call", "now", "prize"]


def write_tokenizer(folder: Path, words: list[str] | None = None) -> Path:
    library = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    numbers = {word: number for number, word in enumerate(words or WORDS)}
    made = library.Tokenizer(library.models.WordLevel(numbers, unk_token="[UNK]"))
    made.normalizer = library.normalizers.Lowercase()
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.post_processor = library.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(word, numbers[word]) for word in ("[CLS]", "[SEP]")]
    )
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def step_of(**changes: Any) -> Tokenize:
    block = {"path": "tokenizer.json", "vocabulary": len(WORDS), **changes}
    return Tokenize(column="text", tokenizer=TokenizerFile.model_validate(block), length=6)


def write_all(tokens: Any, texts: list[str], length: int = 6) -> list[list[int]]:
    features = np.zeros((len(texts), length), np.float32)
    tokens.write(texts, features)
    return [[int(number) for number in row] for row in features]


TEXTS = ["Call NOW", "", "free prize free prize free prize", "what?", "\ud800 now"]


def test_the_tokens_are_the_librarys_cut_and_padded(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokens = open_tokens(step_of(), tmp_path)
    assert isinstance(tokens, LibraryTokens)
    assert tokens.content == (tmp_path / "tokenizer.json").read_bytes()
    expected = [[2, 5, 6, 3, 0, 0], [2, 3, 0, 0, 0, 0], [2, 4, 7, 4, 7, 3], [2, 1, 1, 3, 0, 0], [2, 1, 6, 3, 0, 0]]
    assert write_all(tokens, TEXTS) == expected


def test_a_text_has_the_same_tokens_in_any_company(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokens = open_tokens(step_of(), tmp_path)
    together = write_all(tokens, TEXTS * 50)
    assert together == [write_all(tokens, [text])[0] for text in TEXTS] * 50


def test_padding_is_the_tokenisers_own(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, ["[UNK]", "[CLS]", "[SEP]", "<pad>", "free", "call", "now", "prize"])
    with pytest.raises(DataFault, match="pads with token 3, declared is 0") as caught:
        open_tokens(step_of(), tmp_path)
    assert caught.value.remedy == "write padding: 3"
    assert write_all(open_tokens(step_of(padding=3), tmp_path), ["now", ""]) == [[1, 6, 2, 3, 3, 3], [1, 2, 3, 3, 3, 3]]


def test_more_tokens_than_declared_are_refused_and_fewer_are_not(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    with pytest.raises(DataFault, match="has tokens up to 7, declared are 5") as caught:
        open_tokens(step_of(vocabulary=5), tmp_path)
    assert "vocabulary: 8" in (caught.value.remedy or "")
    assert open_tokens(step_of(vocabulary=64), tmp_path) is not None  # an embedding may be larger


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"model": {"type": "Unknown"}}', '{"version": "1.0", "model": null}', "\x00\xff"]
)
def test_what_is_no_tokeniser_is_a_fault_of_the_file(tmp_path: Path, content: str) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    (tmp_path / "tokenizer.json").write_text(content, encoding="latin-1")
    with pytest.raises(DataFault, match=r"tokenizer\.json: is no tokeniser"):
        open_tokens(step_of(), tmp_path)


BAD = {
    "a word without a token": ({"model": {"type": "WordLevel", "vocab": {"now": 6}, "unk_token": "?"}}, "no token for"),
    "a token beyond the vocabulary": ({"id": 1 << 20}, "adds token 1048576 to each text, and declared are 8"),
    "more tokens than are read": ({"ids": 7}, "adds 8 tokens to each text, of which 6 are read"),
    "chance": ({"model": {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.5}}, "leaves out merges by chance"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_tokeniser_that_can_t_be_used_is_a_fault_of_the_file(tmp_path: Path, name: str) -> None:
    path, (change, message) = write_tokenizer(tmp_path), BAD[name]
    content = json.loads(path.read_text())
    special = content["post_processor"]["special_tokens"]["[SEP]"]
    if "model" in change:
        content |= change
    else:
        special["ids"] = [change["id"]] if "id" in change else [3] * change["ids"]
        special["tokens"] = ["[SEP]"] * len(special["ids"])
    path.write_text(json.dumps(content))
    with pytest.raises(DataFault, match=message) as caught:
        write_all(open_tokens(step_of(), tmp_path), ["SECRET now"])
    assert "SECRET" not in f"{caught.value} {caught.value.private}"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_file_that_is_not_there_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    with pytest.raises(DataFault, match="no such data file"):
        open_tokens(step_of(), tmp_path)
    path = write_tokenizer(tmp_path)
    monkeypatch.setattr("dprecipe.data.tokens.MAX_BYTES", 10)
    with pytest.raises(DataFault, match="larger than"):
        load_tokenizer(path, TokenizerFile(path="tokenizer.json", vocabulary=8), 6)


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageFault) as caught:
        open_tokens(step_of(), tmp_path)
    assert "dprecipe[hub]" in (caught.value.remedy or "")


def test_hashed_words_need_no_file() -> None:
    step = Tokenize(column="text", buckets=8, length=3)
    assert isinstance(open_tokens(step, Path("nowhere")), HashedWords)
    rows = write_all(HashedWords(step), ["Free free call now", ""], 3)
    assert rows[0][0] == rows[0][1] > 0
    assert rows[1] == [0, 0, 0]
    assert step.vocabulary == 9


def data_of(**step: Any) -> Data:
    block = {
        "train": {
            "source": "csv",
            "path": "texts.csv",
            "columns": {"text": {"kind": "text"}},
            "label": {"column": "kind", "values": ["ham", "spam"]},
        },
        "size": 2,
        "preprocess": [{"tokenize": {"column": "text", "length": 6, **step}}],
    }
    return Data.model_validate_json(json.dumps(block))


def test_records_of_a_file_have_the_tokens(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "texts.csv").write_text("text,kind\ncall now,spam\nfree,ham\n", encoding="utf-8")
    data = data_of(tokenizer={"path": "tokenizer.json", "vocabulary": 8})
    records = load(data.train, data, tmp_path, "train")
    assert records.features.tolist() == [[2, 5, 6, 3, 0, 0], [2, 4, 3, 0, 0, 0]]


def test_a_prepared_copy_is_of_one_tokeniser(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "texts.csv").write_text("text,kind\ncall now,spam\nfree,ham\n", encoding="utf-8")
    data = data_of(tokenizer={"path": "tokenizer.json", "vocabulary": 8})
    copies = tmp_path / "copies"
    first = load(data.train, data, tmp_path, "train", copies=copies)
    again = load(data.train, data, tmp_path, "train", copies=copies)
    assert np.array_equal(first.features, again.features)
    write_tokenizer(tmp_path, [*WORDS[:4], "call", "free", "now", "prize"])
    other = load(data.train, data, tmp_path, "train", copies=copies)
    assert other.features.tolist() == [[2, 4, 6, 3, 0, 0], [2, 5, 3, 0, 0, 0]]


@pytest.mark.parametrize(
    ("step", "place"),
    [
        ({}, "data.preprocess.0.tokenize"),
        ({"buckets": 4, "tokenizer": {"path": "t", "vocabulary": 8}}, "data.preprocess.0.tokenize"),
        ({"tokenizer": {"path": "t", "vocabulary": 8, "padding": 8}}, "data.preprocess.0.tokenize.tokenizer.padding"),
    ],
    ids=["neither", "both", "padding"],
)
def test_a_step_has_one_kind_of_tokens(step: dict[str, Any], place: str) -> None:
    assert [(finding.code, finding.path) for finding in check_data(data_of(**step))] == [("R228", place)]


class PanicException(BaseException):
    """The name of what libraries in Rust raise, which is no `Exception`."""


class Panicking:
    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        raise PanicException("called `Result::unwrap()` on an `Err` value: secret")

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[Any]:
        raise PanicException("called `Result::unwrap()` on an `Err` value: secret")


def test_a_panic_of_the_library_is_a_fault() -> None:
    for act in (lambda: decode_tokens(Panicking(), [1], "t.json"), lambda: encode_texts(Panicking(), ["a"], "t.json")):
        with pytest.raises(DataFault, match=r"^t\.json: ") as caught:
            act()
        assert "secret" not in str(caught.value)


def test_a_tokeniser_that_is_nested_deeply_is_refused() -> None:
    for depth in (500, 900, 10_000):
        content = b'{"model": {}, "decoder": ' + b'{"decoders": [' * depth + b"]}" * depth + b"}"
        with contextlib.suppress(ValueError):
            check_form(content)
