from __future__ import annotations

import pytest

from dprecipe.data.token_patterns import MAX_STEPS, count_steps, grows_texts, list_patterns, take_long

PUBLISHED = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",  # Llama 3
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",  # o200k
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",  # CLIP
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",  # DeepSeek
    r"[一-龥぀-ゟ゠-ヿ]+",
    r" {2,}",
    r"\s+",
    r"[[:alpha:]]+|[\[a]+",
    r"\(+[)(|*]+\)*",
    r"(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}"
    r"\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?=(\d{3})+(?!\d))",
    r"\x{3000}+",
]
HANGING = [
    "(a+)+$", "(a*)*", "(a|aa)+$", "((a)|b+){2,}", "(?:a+){64}", "(?:(?:a+)b?)*c", r"(a)\1", r"(?<n>a)\k<n>+",
    r"(?<n>a)\g<n>", "([x[y])]a+)+", "(?x)(a+ # )\n)+", "(?#()(a+)+", "(?ix:(a+ # )\n)+)", r"(\c)a+)+", "(a+",
    "([[:alpha:]]+)+",
    "([a]+)*", r"(\w+\s?)*$", "(?~a)", "(?i:a+|b)*",
    r"(?:[a-z ]|[a-z ]){20}(?![a-z ])[^a-z ]?(?!.)", "(?:a?){30}b", "a?" * 25 + "a" * 25, "(a|a)" * 20 + "b",
    "(?=(a|a){20}b)", "(?>(a|a){20}b)", "(?:(?:a|a){4}){5}b", "(?:a{1,60}){3}b", r"\w+\w+!", r"[a-z]*[a-z]*[a-z]*(?!.)",
    "a+*b", "(?:|a)+b", "(?:|a)*b", "(" * 60 + "a" + ")" * 60, "a(?i)(a|a){20}|b", "(?:a++a++)+b",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_patterns_of_checkpoints_are_taken(pattern: str) -> None:
    assert not take_long({"Regex": pattern})
    assert count_steps(pattern) < MAX_STEPS / 2


@pytest.mark.parametrize("pattern", HANGING)
def test_patterns_that_may_take_for_ever_are_not(pattern: str) -> None:
    assert take_long({"Regex": pattern})


def test_the_work_of_all_patterns_is_bounded_together() -> None:
    assert not take_long([{"Regex": PUBLISHED[2]}] * 3)
    assert take_long([{"Regex": PUBLISHED[2]}] * 4)
    assert take_long({"Regex": "a" * (MAX_STEPS + 1)})
    assert take_long([{"Regex": "()"}] * MAX_STEPS)  # what takes no step is read, too


def test_patterns_are_found_wherever_they_stand() -> None:
    inside = {"pretokenizers": [{"pattern": {"Regex": "a"}}, {"pattern": {"String": "b"}}]}
    assert list(list_patterns({"pre_tokenizer": inside, "normalizer": {"pattern": {"Regex": "c"}}})) == ["a", "c"]


def replace(pattern: dict[str, str], content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def test_replacements_that_double_a_text_again_and_again_are_not_taken() -> None:
    doubling = [replace({"String": "a"}, "aa")] * 40
    assert grows_texts({"normalizer": {"type": "Sequence", "normalizers": doubling}})
    assert grows_texts({"decoder": replace({"Regex": "."}, "a" * 5000)})
    usual = [replace({"String": "``"}, '"'), replace({"String": " "}, "\u2581"), replace({"Regex": " {2,}"}, " ")]
    assert not grows_texts({"normalizer": {"normalizers": usual}, "decoder": {"decoders": usual}, "version": "1.0"})
