"""Texts to sequences whose next token is learned: the step `sequences`, its checks and its counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dprecipe.data.checks import check_data
from dprecipe.data.facts import describe_data
from dprecipe.data.load import load, read
from dprecipe.data.schema import Data
from dprecipe.data.targets import TokenTarget
from dprecipe.faults import DataFault
from dprecipe.models.file import describe_file, parse_description

LETTERS = ["<eos>", "<unk>", "<user>", "<bot>", *"abcdefghijklmnopqrstuvwxyz .\n"]
EOS, UNKNOWN, USER, BOT = range(4)


def write_tokenizer(folder: Path, before: list[str] | None = None, after: list[str] | None = None) -> Path:
    """A tokeniser of letters, with special tokens; `before` and `after`: those that it puts around each text."""
    library = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    numbers = {letter: number for number, letter in enumerate(LETTERS)}
    made = library.Tokenizer(library.models.BPE(numbers, [], unk_token="<unk>"))
    made.add_special_tokens(["<eos>", "<user>", "<bot>"])
    if before or after:
        around = [*(before or []), "$A", *(after or [])]
        special = [(word, numbers[word]) for word in {*(before or []), *(after or [])}]
        made.post_processor = library.processors.TemplateProcessing(single=" ".join(around), special_tokens=special)
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def tokens_of(text: str) -> list[int]:
    return [LETTERS.index(letter) if letter in LETTERS else UNKNOWN for letter in text]


def data_of(columns: dict[str, Any], size: int = 1, train: dict[str, Any] | None = None, **step: Any) -> Data:
    block = {"tokenizer": {"path": "tokenizer.json", "vocabulary": len(LETTERS)}, "max_length": 12, **step}
    source = {"source": "csv", "path": "texts.csv", "columns": columns, "label": "next_token", **(train or {})}
    return Data.model_validate({"train": source, "size": size, "preprocess": ({"sequences": block},)})


TEXT = {"text": {"kind": "text"}}
PAIR = {"prompt": {"kind": "text"}, "completion": {"kind": "text"}}
CHAT = {"chat": {"kind": "chat"}}


def load_rows(folder: Path, data: Data, content: str) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Input tokens, labels and the numbers of learned tokens of each record of a CSV file."""
    (folder / "texts.csv").write_text(content, encoding="utf-8")
    records = load(data.train, data, folder, "train")
    whole = records.features.astype(int)
    assert (whole == records.features).all()
    return whole[:, 0].tolist(), whole[:, 1].tolist(), records.labels.tolist()


def test_the_facts_are_those_of_sequences() -> None:
    facts = describe_data(data_of(TEXT, text="text"))
    assert facts.shape == (2, 12)
    assert facts.target == TokenTarget(len(LETTERS))
    assert not facts.target.is_choice
    assert facts.vocabulary == len(LETTERS)
    assert facts.tokenizer is not None


def test_every_token_of_a_text_is_learned_and_padding_is_not(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    inputs, labels, learned = load_rows(
        tmp_path, data_of(TEXT, 2, text="text", end=EOS), 'text\n" ab"\nabcdefghijklmno\n'
    )
    assert inputs[0] == [*tokens_of(" ab"), EOS, *[0] * 8]
    assert labels[0] == [*tokens_of(" ab"), EOS, *[-100] * 8]
    assert inputs[1] == labels[1] == tokens_of("abcdefghijkl")  # cut: its end is not reached
    assert learned == [3, 11]


def test_a_long_text_is_cut_into_several_sequences_of_one_record(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, before=["<bot>"])
    data = data_of(TEXT, 3, text="text", end=EOS, max_length=4, max_sequences=3)
    assert describe_data(data).shape == (2, 12)
    (tmp_path / "texts.csv").write_text("text\nabcdef\nab\nabcdefghijklmnop\n", encoding="utf-8")
    records, counts = read(data.train, data, tmp_path, "train")
    (long, short, longest), learned = records.features.astype(int).tolist(), records.labels.tolist()
    assert long == [
        [BOT, *tokens_of("abcdef"), EOS, *[0] * 4],
        [-100, *tokens_of("abc"), -100, *tokens_of("ef"), EOS, *[-100] * 4],
    ]
    assert short == [[BOT, *tokens_of("ab"), EOS, *[0] * 8], [-100, *tokens_of("ab"), EOS, *[-100] * 8]]
    assert longest[0] == [BOT, *tokens_of("abcdefghijk")]
    assert learned == [6, 3, 9]
    assert counts.as_json()["sequences"]["truncated"] == 1
    parsed = parse_description(json.dumps(describe_file(None, data)).encode())
    assert (parsed.facts.shape, parsed.facts.max_length) == ((2, 12), 4)


def test_of_a_pair_only_the_completion_is_learned(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, before=["<bot>"])
    inputs, labels, learned = load_rows(
        tmp_path, data_of(PAIR, 2, prompt="prompt", completion="completion", end=EOS), "prompt,completion\nab, c\n,d\n"
    )
    assert inputs[0][:6] == [BOT, *tokens_of("ab c"), EOS]
    assert labels[0][:7] == [-100, -100, -100, *tokens_of(" c"), EOS, -100]
    assert inputs[1][:3] == [BOT, *tokens_of("d"), EOS]
    assert learned == [3, 2]


def test_of_a_chat_the_turns_of_the_assistant_are_learned(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    roles = {"user": ("<user>", "\n"), "assistant": ("<bot>", "<eos>")}
    field = '"[{""role"": ""user"", ""content"": ""a""}, {""role"": ""assistant"", ""content"": ""<bot>""}]"'
    inputs, labels, learned = load_rows(tmp_path, data_of(CHAT, chat="chat", roles=roles), f"chat\n{field}\n")
    spelt = tokens_of("<bot>")
    assert inputs[0][:10] == [USER, *tokens_of("a\n"), BOT, *spelt, EOS]
    assert labels[0][:10] == [-100] * 4 + [*spelt, EOS]
    assert BOT not in spelt  # what a record spells is never a special token
    assert learned == [6]


def test_a_row_is_learned_as_lines(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    columns = {**TEXT, "label": {"kind": "category", "values": ("ham", "spam")}}
    data = data_of(columns, row=("label", "text"), end=EOS, max_length=20)
    inputs, labels, learned = load_rows(tmp_path, data, "text,label\nab,ham\n")
    assert inputs[0][:19] == labels[0][:19] == [*tokens_of("label: ham\ntext: ab"), EOS][:19]
    assert learned == [19]


def test_what_is_cut_is_counted_in_private(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    data = data_of(TEXT, 2, text="text")
    (tmp_path / "texts.csv").write_text("text\nabcdefghijklmno\nabcdef\n", encoding="utf-8")
    for copies in (None, tmp_path / "copies", tmp_path / "copies"):
        records, counts = read(data.train, data, tmp_path, "train", copies=copies)
        assert counts.as_json()["sequences"] == {
            "truncated": 1,
            "tokens": 18,
            "learned": 16,
            "shares": {"truncated": 0.5, "padding": 0.25},
        }
        assert records.features.shape == (2, 2, 12)
        assert records.labels.tolist() == [11, 5]


BAD_ROWS = {
    "an empty text": (TEXT, {"text": "text"}, 'text\n" "\n', "a text is empty"),
    "one token": (TEXT, {"text": "text"}, "text\na\n", "fewer than two tokens"),
    "a prompt that fills": (
        PAIR,
        {"prompt": "prompt", "completion": "completion"},
        "prompt,completion\nabcdefghijklmn,o\n",
        "a prompt fills max_length",
    ),
    "no completion": (PAIR, {"prompt": "prompt", "completion": "completion"}, "prompt,completion\na,\n", "is empty"),
}
ROLES = {"user": ("", ""), "assistant": ("", "")}
BAD_CHATS = {
    "SECRET": "no list of messages in JSON",
    "{}": "no list of messages",
    "[]": "an empty one",
    "[1]": "no mapping",
    '[{"role": "user"}]': "no text as its",
    '[{"role": "user", "content": 3}]': "no text as its",
    '[{"role": "judge", "content": "SECRET"}]': "of a role that `roles` does not declare",
    '[{"role": "user", "content": "SECRET", "tool": 1}]': "more than a role and a content",
    '[{"role": "user", "content": "SECRET"}]': "no turn of the assistant",
    '[{"role": "assistant", "content": "\\ud800"}]': "half of a letter",
    "[" * 5000: "no list of messages in JSON",
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_record_with_nothing_to_learn_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    write_tokenizer(tmp_path)
    columns, step, content, message = BAD_ROWS[name]
    with pytest.raises(DataFault, match=message) as caught:
        load_rows(tmp_path, data_of(columns, **step), content)
    assert caught.value.private == "line 2"


@pytest.mark.parametrize("field", BAD_CHATS)
def test_what_is_no_conversation_is_refused_and_not_quoted(tmp_path: Path, field: str) -> None:
    write_tokenizer(tmp_path)
    doubled = field.replace('"', '""')
    with pytest.raises(DataFault, match=BAD_CHATS[field]) as caught:
        load_rows(tmp_path, data_of(CHAT, chat="chat", roles=ROLES), f'chat\n"{doubled}"\n')
    assert caught.value.private == "line 2"
    assert "SECRET" not in str(caught.value)


def test_a_tokeniser_must_agree_with_the_recipe_on_what_is_around_a_text(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, before=["<bot>"], after=["<user>"])
    with pytest.raises(DataFault, match="puts token 2 behind each text, and `end` is 0") as caught:
        load_rows(tmp_path, data_of(TEXT, text="text", end=EOS), "text\nab\n")
    assert caught.value.remedy == "write end: 2"
    inputs, _, _ = load_rows(tmp_path, data_of(TEXT, text="text"), "text\nab\n")
    assert inputs[0][:4] == [BOT, *tokens_of("ab"), USER]
    with pytest.raises(DataFault, match="adds 2 tokens to each text, and max_length is 2"):
        load_rows(tmp_path, data_of(TEXT, text="text", max_length=2), "text\nab\n")


def test_what_stands_before_a_text_is_declared_or_the_tokenisers(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    inputs, labels, learned = load_rows(tmp_path, data_of(TEXT, text="text", begin=BOT, end=EOS), "text\nab\n")
    assert inputs[0][:4] == [BOT, *tokens_of("ab"), EOS]
    assert (labels[0][:4], learned) == ([-100, *tokens_of("ab"), EOS], [3])
    write_tokenizer(tmp_path, before=["<bot>"])
    again, _, _ = load_rows(tmp_path, data_of(TEXT, text="text", begin=BOT, end=EOS), "text\nab\n")
    assert again == inputs  # once
    with pytest.raises(DataFault, match="puts token 3 before each text, and `begin` is 2") as caught:
        load_rows(tmp_path, data_of(TEXT, text="text", begin=USER), "text\nab\n")
    assert caught.value.remedy == "write begin: 3"


CONTRADICTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "no form": (TEXT, {}, "R232", ""),
    "two forms": ({**TEXT, **CHAT}, {"text": "text", "chat": "chat", "roles": ROLES}, "R232", ""),
    "no completion": (PAIR, {"prompt": "prompt"}, "R232", ""),
    "one column": (PAIR, {"prompt": "prompt", "completion": "prompt"}, "R232", ".completion"),
    "no roles": (CHAT, {"chat": "chat"}, "R232", ""),
    "no assistant": (CHAT, {"chat": "chat", "roles": {"user": ("", "")}}, "R232", ".roles"),
    "roles of a text": (TEXT, {"text": "text", "roles": ROLES}, "R232", ".roles"),
    "no such column": (TEXT, {"text": "txet"}, "R233", ".text"),
    "another kind": ({"text": {"kind": "numeric", "min": 0.0, "max": 1.0}}, {"text": "text"}, "R233", ".text"),
    "a row without an end": (TEXT, {"row": ("text",)}, "R232", ""),
    "a row of no column": (TEXT, {"row": ("txet",), "end": 0}, "R233", ".row.0"),
    "a chat in a row": (CHAT, {"row": ("chat",), "end": 0}, "R233", ".row.0"),
    "a name of two lines": ({"a\nb": {"kind": "text"}}, {"row": ("a\nb",), "end": 0}, "R233", ".row.0"),
    "a value of two lines": (
        {"a": {"kind": "category", "values": ("x\ny",)}},
        {"row": ("a",), "end": 0},
        "R233",
        ".row.0",
    ),
    "an indicator in a row": (
        {"a": {"kind": "boolean", "missing": {"fill": True, "indicator": True}}},
        {"row": ("a",), "end": 0},
        "R233",
        ".row.0",
    ),
    "a column twice": (TEXT, {"row": ("text", "text"), "end": 0}, "R202", ".row"),
    "a pair cut": (
        {**PAIR},
        {"prompt": "prompt", "completion": "completion", "max_sequences": 2},
        "R232",
        ".max_sequences",
    ),
    "too many": (TEXT, {"text": "text", "max_sequences": 6000}, "R232", ".max_sequences"),
    "no such beginning": (TEXT, {"text": "text", "begin": 99}, "R228", ".begin"),
    "no such end": (TEXT, {"text": "text", "end": 99}, "R228", ".end"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_have_a_place(name: str) -> None:
    columns, step, code, place = CONTRADICTIONS[name]
    found = [(finding.code, finding.path) for finding in check_data(data_of(columns, **step))]
    assert found == [(code, f"data.preprocess.0.sequences{place}")]


def test_label_and_step_go_together_and_nothing_else_stands_beside_them() -> None:
    data = data_of(TEXT, text="text")
    without = data.model_copy(update={"preprocess": ()})
    assert [finding.code for finding in check_data(without)][:1] == ["R231"]
    labelled = data_of(TEXT, text="text", train={"label": {"column": "kind", "classes": 2}})
    assert [(finding.code, finding.path) for finding in check_data(labelled)] == [("R231", "data.train.label")]
    content = data.model_dump(mode="python", exclude_none=True)
    content["preprocess"] = (*content["preprocess"], {"flatten": {}})
    found = [(finding.code, finding.path) for finding in check_data(Data.model_validate(content))]
    assert found == [("R234", "data.preprocess.1.flatten")]


def test_the_model_file_says_the_same() -> None:
    data = data_of(TEXT, text="text")
    file = parse_description(json.dumps(describe_file(None, data)))
    assert file.facts.target == TokenTarget(len(LETTERS))
    assert file.facts.shape == (2, 12)


def test_a_count_of_units_may_stand_beside_it_and_has_its_price() -> None:
    content = data_of(TEXT, text="text").model_dump(mode="python", exclude_none=True)
    steps = content["preprocess"]
    for index, changed in enumerate([({"dp_count": {}}, *steps), (*steps, {"dp_count": {}})]):
        free = Data.model_validate({**content, "preprocess": changed})
        assert [(finding.code, finding.path) for finding in check_data(free)] == [
            ("R223", f"data.preprocess.{index}.dp_count")
        ]
        paid = [{"dp_count": {"share": 0.1}} if "dp_count" in step else step for step in changed]
        assert check_data(Data.model_validate({**content, "preprocess": tuple(paid)})) == []


@pytest.mark.parametrize("kind", ["word_level", "unigram", "whole_words"])
def test_a_tokeniser_that_takes_special_tokens_from_texts_is_refused(tmp_path: Path, kind: str) -> None:
    """A record that spells one would end its own text early."""
    library = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    numbers = {letter: number for number, letter in enumerate(LETTERS)}
    kinds = {
        "word_level": lambda: library.models.WordLevel(numbers, unk_token="<unk>"),
        "unigram": lambda: library.models.Unigram(
            [(word, 0.0 if word[0] == "<" else -3.0) for word in LETTERS], UNKNOWN
        ),
        "whole_words": lambda: library.models.BPE(numbers, [], unk_token="<unk>", ignore_merges=True),
    }
    made = library.Tokenizer(kinds[kind]())
    made.add_special_tokens(["<eos>"])
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataFault, match=f"a record that spells special token {EOS} would hold it"):
        load_rows(tmp_path, data_of(TEXT, text="text"), "text\nhi\n")
