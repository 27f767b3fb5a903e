"""The public decoder's script: what it reads, and a folder that the library loads and a second run repeats. And the
script that measures releases: its recipes, its public stand-in, and its classifier."""

from __future__ import annotations

import gzip
import json
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from dprecipe.recipe.read import LoadedPublic, read_any

for optional in ("tokenizers", "transformers", "sklearn"):
    pytest.importorskip(optional, reason=f"the scripts need {optional}")

ROOT = Path(__file__).parents[1]


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import decoder

    return decoder


@pytest.fixture
def language(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import language_sms

    return language_sms


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A wheel of 60 conversations, two of them held out, and a Jargon File of two entries."""
    turns = [[[{"text": f" I am {i} "}, {"text": "Hello"}], [{"text": f"{i * 7} to you " * 20}]] for i in range(60)]
    conversations = {str(i): {"messages": turn} for i, turn in enumerate(turns)}
    with zipfile.ZipFile(tmp_path / "chat.whl", "w") as wheel:
        wheel.writestr("chitchat_dataset/dataset.json", json.dumps(conversations))
    entries = "blit\n  To copy\n  many bits.\n\n  See also bit.\nbogon\n  A particle.\n"
    (tmp_path / "jargon.dz").write_bytes(gzip.compress(entries.encode()))
    return tmp_path


def test_what_is_read(decoder: ModuleType, sources: Path) -> None:
    assert decoder.read_chat(sources / "chat.whl")[3] == ["I am 3\nHello", ("21 to you " * 20).strip()]
    assert decoder.read_jargon(sources / "jargon.dz") == [
        ["blit\nTo copy\nmany bits.", "See also bit."],
        ["bogon\nA particle."],
    ]


def test_the_library_loads_the_folder_and_a_second_run_repeats_it(
    decoder: ModuleType, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import transformers

    sizes = ["--vocabulary", "300", "--width", "16", "--layers", "1", "--steps", "3"]
    text = ["--chat", str(sources / "chat.whl"), "--jargon", str(sources / "jargon.dz")]
    threads = torch.get_num_threads()
    for name in ("first", "second"):
        monkeypatch.setattr(sys, "argv", ["decoder.py", str(sources / name), *text, *sizes])
        decoder.main()
    torch.set_num_threads(threads)
    facts = [json.loads((sources / name / "source.json").read_text("utf-8")) for name in ("first", "second")]
    assert facts[0] == facts[1]
    model = transformers.AutoModelForCausalLM.from_pretrained(sources / "first")
    tokenizer = transformers.AutoTokenizer.from_pretrained(sources / "first")
    message = "42 to you 🙂\nZoë"
    assert tokenizer.decode(tokenizer.encode(message)) == message
    assert max(tokenizer.encode(message)) < model.config.vocab_size
    assert tokenizer.eos_token_id == model.config.eos_token_id == 0


def test_recipes_have_no_findings(language: ModuleType, tmp_path: Path) -> None:
    for table, epsilon, settings in (("sms", "3", language.Settings()), ("fortunes", language.NONE, language.PLAIN)):
        loaded = read_any(language.write_recipe(tmp_path, table, epsilon, 1, settings))
        assert isinstance(loaded, LoadedPublic) == (epsilon == language.NONE)


def test_classifier_learns_a_word_and_not_from_one_label_alone(language: ModuleType) -> None:
    rows = (["spam", "ham"] * 40, ["win a prize", "see you later"] * 40)
    assert language.classify(rows, rows, "spam") == {"accuracy": 1.0, "f1": 1.0, "auc": 1.0}
    alone = language.classify((["ham"] * 80, rows[1]), rows, "spam")
    assert alone == {"accuracy": 0.5, "f1": 0.0, "auc": 0.5}
