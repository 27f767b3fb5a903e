from __future__ import annotations

import random

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


@pytest.mark.parametrize(
    ("pattern", "steps"),
    [
        ("abc", 3),
        ("a|bc", 3),
        ("(?:a|b){3}c", 2 * (1 + 2 + 4 + 8) + 8),  # each of 2³ ways is tried before c fails
        ("a?b?c", 1 + 2 * 1 + 4),
        ("ab?", 1 + 1 + 1),  # what is optional at the end fails nothing: a is found, then b
        ("a(?i)b|c", 3),  # the options hold to the end: a, then b or c
        ("a{2}{3}", 6),
        ("(?=a|b)", 2),
    ],
)
def test_the_steps_of_a_pattern(pattern: str, steps: float) -> None:
    assert steps <= count_steps(pattern) <= 2 * steps  # the last part that may fail counts twice


@pytest.mark.parametrize("seed", range(4))
def test_what_the_library_does_is_within_the_bound(seed: int) -> None:
    """Random patterns that are taken never reach the library's own limit of retries (10⁷ at a letter)."""
    library = pytest.importorskip("tokenizers")
    draw, taken = random.Random(seed), 0
    for _ in range(300):
        pattern = draw_pattern(draw, 3)
        if count_steps(pattern) > MAX_STEPS:
            continue
        try:
            split = library.pre_tokenizers.Split(library.Regex(pattern), "isolated")
        except Exception:  # the library refuses what no expression is
            continue
        taken += 1
        for text in ("a" * 300, "ab" * 150, "ab" * 100 + "c"):
            split.pre_tokenize_str(text)  # a panic at the library's limit
    assert taken > 50


def draw_pattern(draw: random.Random, depth: int) -> str:
    kind = draw.randrange(7 if depth else 2)
    inner = [draw_pattern(draw, depth - 1) for _ in range(draw.randint(1, 3))] if depth else []
    match kind:
        case 0 | 1:
            return draw.choice(["a", "b", "[ab]", ".", "[^c]"])
        case 2:
            return "".join(inner)
        case 3:
            return f"(?:{'|'.join(inner)})"
        case 4 | 5:
            return f"(?:{inner[0]}){draw.choice(['*', '+', '?', '{2}', '{0,3}', '{5,9}', '+?', '{20}'])}"
        case _:
            return f"({draw.choice(['?=', '?!', '?>'])}{inner[0]})"
