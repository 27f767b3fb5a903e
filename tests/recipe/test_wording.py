"""No sentence of the validator reaches a user, whatever it complains about."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from pydantic_core import ErrorDetails, ValidationError
from pydantic_core.core_schema import ErrorType

from dprecipe.cli.schema import schema_text
from dprecipe.contract.table import MECHANISMS
from dprecipe.faults import CODES, RecipeError
from dprecipe.recipe.read import read_text
from dprecipe.recipe.starters import make_starter
from dprecipe.recipe.synonyms import PLACES, read_synonyms
from dprecipe.recipe.vocabulary import REFUSED, list_every_key, list_keys
from dprecipe.recipe.wording import word_error
from tests.text.reading import load

ROOT = Path(__file__).parents[1]
FINE = (ROOT / "golden" / "recipes" / "fine.yaml").read_text("utf-8")
ENCODED = FINE.replace("  kind: dpsgd\n  clip: {norm: 1.0}\n", "  kind: encoded\n  codebook: {source: gaussian}\n")
PATE = (ROOT / "golden" / "recipes" / "fine-pate.yaml").read_text("utf-8")
KNOWN_PATHS = {known.path for known in list_every_key()}
ERRORS = get_args(ErrorType)
PACKAGE = ROOT.parent / "dprecipe"
NAMES, PLACED_NAMES = read_synonyms().names, read_synonyms().placed
IN_NOISE = {
    name: entries
    for name, entries in PLACED_NAMES["in_a_noise_block"].items()
    if entries[-1].path.startswith("mechanism.noise.") and name != "mechanism"
}
ALL = [*NAMES.items(), *(item for table in PLACED_NAMES.values() for item in table.items())]
USERS = {
    *("opacus", "tf_privacy", "jax_privacy", "lightning", "hugging_face", "papers", "symbols", "sklearn", "keras"),
    *("ludwig", "hydra"),
    *PLACES,
}
"""Whose names the tables give."""
RAW = re.compile(r"Input should|Field required|not permitted|valid (?:dictionary|integer|number|string|tuple)|pydantic")
LOCATIONS = [
    (),
    ("recipe",),
    ("name",),
    ("data", "size"),
    ("data", "unit", "word"),
    ("data", "preprocess"),
    ("model", "mlp", "hidden", 0),
    ("mechanism", "kind"),
    ("mechanism", "noise", "gaussian", "multiplier", "number"),
    ("training", "optimizer"),
    ("runtime", "seed"),
    ("meta", "x"),
    ("nowhere", "at", "all"),
]


class Raised:
    """An error of any type at any location, as the validator would report it."""

    def __init__(self, kind: str, location: tuple[str | int, ...], context: dict[str, object]) -> None:
        self.item = ErrorDetails(type=kind, loc=location, msg="Input should be pydantic", input=None, ctx=context)

    def errors(self, *, include_url: bool, include_input: bool) -> list[ErrorDetails]:
        return [self.item]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_type_is_worded(kind: str) -> None:
    context = {"gt": 0, "ge": 0, "lt": 1, "le": 1, "min_length": 1, "actual_length": 0, "discriminator": "form()"}
    for location in LOCATIONS:
        error: ValidationError = Raised(kind, location, context)  # type: ignore[assignment]
        (finding,) = word_error(error, load(FINE, "r.yaml"), frozenset())
        assert finding.code in CODES
        assert finding.message
        assert finding.remedy
        assert finding.place is not None
        assert not RAW.search(finding.message + finding.remedy), finding


@pytest.mark.parametrize(
    ("rate", "codes"),
    [
        ("{schedule: cosin, from: 1.0, to: 0.1}", ["R104"]),
        ("{schedule: onecycle, peak: 1.0}", ["R104"]),
        ("{schedule: stp, from: 1.0, factor: 0.5, every: 2}", ["R104"]),
        ("{schedule: exponential, gamma: 0.5}", ["R104"]),
        ("{schedule: cosin}", ["R102", "R102", "R104"]),
    ],
)
def test_a_misspelt_schedule_is_the_only_finding(rate: str, codes: list[str]) -> None:
    """But where it is the schedule that its keys were compared with, what these lack is told, too."""
    text = make_starter("dpsgd", "digits", "s")
    with pytest.raises(RecipeError) as caught:
        read_text(re.sub("lr: [0-9.]+", f"lr: {rate}", text))
    assert sorted(finding.code for finding in caught.value.findings) == codes


def test_a_value_that_cannot_be_placed_has_a_code_too() -> None:
    error: ValidationError = Raised("finite_number", ("meta", "x"), {})  # type: ignore[assignment]
    text = FINE + "meta: {x: 1}\n"
    assert [finding.code for finding in word_error(error, load(text, "r.yaml"), frozenset())] == ["R199"]


def test_every_synonym_leads_to_a_key_of_the_language() -> None:
    assert len(ALL) >= 500
    for name, entries in ALL:
        assert entries, name
        assert name == name.lower()
        assert len({entry.mechanism for entry in entries}) == len(entries), f"a mechanism says one thing of {name}"
        for synonym in entries:
            assert synonym.remedy
            assert synonym.value in VALUES
            for path in (synonym.path, synonym.scalar):
                assert not path or path.startswith(".") or path in KNOWN_PATHS | {"extends"}, path
            for path in re.findall(
                r"\b(?:data|mechanism|budget|training|runtime)\.[a-z_0-9.]*[a-z0-9]", synonym.remedy
            ):
                assert path in KNOWN_PATHS, path


@pytest.mark.parametrize("kind", ["", *MECHANISMS])
def test_every_idea_that_is_answered_has_a_name(kind: str) -> None:
    general = tomllib.loads((PACKAGE / "recipe" / "synonyms.toml").read_text("utf-8"))
    tables = tomllib.loads(MECHANISMS[kind].synonyms) if kind else general
    ideas = {i for title, table in tables.items() if title != "words" for i in table.get("ideas", [title])}
    named = {title for part in (general, tables) for title, t in part.items() if title != "words" and USERS & t.keys()}
    assert len(ideas) >= 10
    assert ideas <= named
    used = {user for title, t in tables.items() if title != "words" for user in t} - FIELDS
    assert used <= USERS


VALUES = {
    *("", "same", "switch", "share", "label", "unit", "range", "betas", "marks", "open"),
    *("logger", "said", "meta", "file"),
}
FIELDS = {"path", "remedy", "ideas", "value", "scalar"}
BASES = {"dpsgd": FINE, "encoded": ENCODED, "pate": PATE}
PLACED = [
    pytest.param(name, kind, marks=() if index % 10 == 0 and kind == "dpsgd" else pytest.mark.slow)
    for index, name in enumerate(sorted(set(NAMES) - {known.path.rpartition(".")[2] for known in list_every_key()}))
    for kind in BASES
]
"""Names in recipes of each mechanism."""


@pytest.mark.parametrize(("name", "kind"), PLACED)
def test_a_synonym_is_answered_wherever_it_stands(name: str, kind: str) -> None:
    base = BASES[kind]
    for text in (f"{base}{name}: 1\n", re.sub(r"(  kind: \w+)", rf"\1\n  {name}: 1", base, count=1)):
        with pytest.raises(RecipeError) as caught:
            read_text(text)
        (finding,) = caught.value.findings
        assert finding.code == "R112", finding
        assert "the block can also have" not in finding.remedy


def test_what_a_mechanism_says_of_a_name_comes_first() -> None:
    for name, kind in (("max_grad_norm", "pate"), ("microbatch_size", "encoded")):
        own = next(entry for entry in NAMES[name] if entry.mechanism == kind)
        with pytest.raises(RecipeError) as caught:
            read_text(f"{BASES[kind]}{name}: 1\n")
        (finding,) = caught.value.findings
        assert own.path in finding.message or own.remedy == finding.remedy, finding


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [("pnsgd", "model.l2"), ("pnsgdd", "model.l2"), ("magic", "training.optimizer.weight_decay")],
)
def test_a_synonym_is_that_of_the_mechanism_that_is_meant(kind: str, remedy: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_text(FINE.replace("kind: dpsgd", f"kind: {kind}").replace("training:", "training:\n  l2_reg: 3"))
    assert any(f.path == "training.l2_reg" and f.remedy.startswith(f"set {remedy}") for f in caught.value.findings)


@pytest.mark.parametrize("name", IN_NOISE)
def test_a_name_of_noise_is_answered_in_every_noise_block(name: str) -> None:
    meant = IN_NOISE[name][-1].path.rpartition(".")[2]
    keys = {"student_t": ["df", "multiplier"], "variance_gamma": ["shape", "multiplier"]}
    family = next(family for family in keys if meant in keys[family])
    others = "".join(f", {key}: 2" for key in keys[family] if key != meant)
    block = f"{{family: {family}, {name}: 1{others}}}"
    for noise in (block, f"[{block}]"):
        with pytest.raises(RecipeError) as caught:
            read_text(re.sub(r"noise: .*", f"noise: {noise}", ENCODED))
        (finding,) = caught.value.findings
        assert finding.path.rpartition(".")[2] == name
        assert meant in finding.remedy


@pytest.mark.parametrize("name", ["std", "scale"])
@pytest.mark.parametrize(
    "block", ["noise: {family: gaussian, multiplier: 20}", "noise: {family: gaussian, multiplier: 40}"]
)
def test_so_it_is_in_the_noise_of_votes(name: str, block: str) -> None:
    assert block in PATE
    with pytest.raises(RecipeError) as caught:
        read_text(PATE.replace(block, block.replace("multiplier", name)))
    (finding,) = caught.value.findings
    assert (finding.code, finding.path.rpartition(".")[2]) == ("R112", name)
    assert "multiplier" in finding.remedy


def test_what_is_known_only_to_be_refused_is_never_offered() -> None:
    assert words_of_the_language() >= REFUSED
    for path in (ROOT / "golden" / "recipes").glob("*.out"):
        assert not re.search(rf"`({'|'.join(REFUSED)})`", path.read_text("utf-8")), path.name


def words_of_the_language() -> set[str]:
    enums = re.findall(r'"(?:const|enum)": (\[[^\]]*\]|"[^"]*")', schema_text("recipe.schema.json"))
    return set(re.findall(r'"([^"]*)"', " ".join(enums)))


def test_every_translated_word_is_a_word_of_the_language() -> None:
    words = {word for ours in read_synonyms().words.values() for word in ours}
    assert len(words) >= 40
    assert words <= words_of_the_language()


def test_keys_of_the_table_are_not_keys_at_the_same_place() -> None:
    from dprecipe.recipe.root import Recipe

    assert not set(NAMES) & set(list_keys(Recipe))


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        ("10.000", "write 10 or 10000, whichever is meant: the point may stand between thousands"),
        ('"10.000"', "write 10 or 10000, whichever is meant: the point may stand between thousands"),
        ("12.345", "write 12345 if the point stands between thousands, and else a whole number"),
        ("1.234.567", "write 1234567"),
        ('"1.234.567"', "write 1234567"),
        ("60.0", "write 60"),
        ('"60.0"', "write 60"),
        ("1.0000", "write 1"),  # no thousands
        ('"12.5"', "write a whole number or a block with `max`"),
        ('"1438"', "remove the quotes"),
    ],
)
def test_no_digits_of_a_whole_number_are_dropped(written: str, remedy: str) -> None:
    text = (ROOT / "golden" / "recipes" / "r103-quoted-number.yaml").read_text("utf-8").replace('"1438"', written)
    with pytest.raises(RecipeError) as caught:
        read_text(text)
    (finding,) = [finding for finding in caught.value.findings if finding.path == "data.size"]
    assert finding.remedy == remedy
