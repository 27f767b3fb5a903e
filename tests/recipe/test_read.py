"""The whole way from text to recipe: parents, overrides, origins, places, and reading again from texts alone."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dprecipe.contract.plan import RecipeSource
from dprecipe.faults import Finding, RecipeError
from dprecipe.language.base import Block
from dprecipe.recipe.read import read, read_source, read_text
from dprecipe.recipe.starters import MECHANISMS, SOURCES, make_starter
from tests.recipe_texts import DIGITS, DPSGD
from tests.sweeps import sweep
from tests.text.reading import load, walk_nodes

FOLDER = Path(__file__).parents[1] / "golden" / "recipes"
FINE = (FOLDER / "fine.yaml").read_text("utf-8")


def findings_of(text: str, overrides: tuple[str, ...] = ()) -> tuple[Finding, ...]:
    with pytest.raises(RecipeError) as caught:
        read_text(text, "r.yaml", overrides)
    return caught.value.findings


def test_a_recipe_is_read_with_the_places_of_its_values() -> None:
    loaded = read_text(FINE, "fine.yaml")
    assert loaded.recipe.budget.delta == 1e-5
    place = loaded.place("mechanism.noise.multiplier")
    assert FINE.splitlines()[place.line - 1][place.column - 1 :][: place.width] == "auto"
    assert loaded.origin("budget.delta") == "fine.yaml:13"
    assert loaded.origin("budget.accountant") == "default"
    assert loaded.place("budget.accountant") == loaded.place("budget")


def test_findings_that_carry_a_path_get_their_place_and_order() -> None:
    loaded = read_text(FINE, "fine.yaml")
    located = loaded.located(
        [
            Finding("P1", "m", "r", "training.epochs"),
            Finding("P1", "m", "r", "data.size"),
            Finding("P1", "m", "r", "data.size"),
        ]
    )
    assert [(f.path, f.place.line if f.place else 0) for f in located] == [("data.size", 6), ("training.epochs", 15)]


def test_parents_are_laid_under_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "root.yaml").write_text(FINE)
    (tmp_path / "base" / "mid.yaml").write_text("extends: root.yaml\nbudget: {epsilon: 1.0}\nname: mid\n")
    (tmp_path / "leaf.yaml").write_text("extends: base/mid.yaml\nname: leaf\nmodel: {kind: cnn, preset: lenet}\n")
    loaded = read(tmp_path / "leaf.yaml", ["runtime.seed=9"])
    recipe = loaded.recipe
    assert (recipe.name, recipe.budget.epsilon, recipe.budget.delta, recipe.model.kind) == ("leaf", 1.0, 1e-5, "cnn")
    assert [Path(loaded.origin(path)).name for path in ("name", "budget.epsilon", "budget.delta")] == [
        "leaf.yaml:2",
        "mid.yaml:2",
        "root.yaml:13",
    ]
    assert loaded.origin("runtime.seed") == "--set #1"
    assert [name for name, _ in loaded.source.parents] == ["base/mid.yaml", "root.yaml"]
    assert loaded.source.overrides == ("runtime.seed=9",)


def test_reading_again_from_texts_alone_touches_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root.yaml").write_text(FINE)
    (tmp_path / "leaf.yaml").write_text("extends: root.yaml\nname: leaf\n")
    first = read(tmp_path / "leaf.yaml", ["budget.epsilon=2"])

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a file was touched")

    for name in ("builtins.open", "os.stat", "os.open"):
        monkeypatch.setattr(name, refuse)
    again = read_source(first.source)
    opened = read("leaf.yaml", open_text={"leaf.yaml": "extends: root.yaml", "root.yaml": FINE}.__getitem__)
    monkeypatch.undo()
    assert again.recipe == first.recipe
    assert again.source == first.source
    assert opened.recipe.name == "example"


def test_texts_that_do_not_fit_are_refused() -> None:
    child = "extends: root.yaml\nname: leaf\n"
    for parents in ((), (("other.yaml", FINE),), (("root.yaml", FINE), ("more.yaml", FINE))):
        with pytest.raises(RecipeError):
            read_text(child, parents=parents)
    with pytest.raises(RecipeError):
        read("leaf.yaml", open_text={"leaf.yaml": child}.__getitem__)
    with pytest.raises(RecipeError):
        read_source(RecipeSource("\ud800\0", "r.yaml", ("\udfff",), (("a", "b"),)))


def test_circles_and_long_chains(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: ./b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: ../" + tmp_path.name + "/a.yaml\n")
    with pytest.raises(RecipeError) as caught:
        read(tmp_path / "a.yaml")
    assert [finding.code for finding in caught.value.findings] == ["Y121"]
    for depth, fine in ((4, True), (5, False)):
        texts = {f"{k}.yaml": f"extends: {k + 1}.yaml\n" for k in range(depth)} | {f"{depth}.yaml": FINE}
        if fine:
            assert read("0.yaml", open_text=texts.__getitem__).recipe.name == "example"
        else:
            with pytest.raises(RecipeError) as caught:
                read("0.yaml", open_text=texts.__getitem__)
            assert [finding.code for finding in caught.value.findings] == ["Y122"]


def test_findings_of_every_text_are_reported_at_once() -> None:
    texts = {
        "leaf.yaml": "extends: root.yaml\nname: -bad\n",
        "root.yaml": FINE.replace("size: 1438", "size: many").replace("epochs: 20", "epochs: 20\n  epochs: 30"),
    }
    with pytest.raises(RecipeError) as caught:
        read("leaf.yaml", ["budget.epsilon=.inf"], open_text=texts.__getitem__)
    places = [(f.code, f.place.file) for f in caught.value.findings if f.place]
    assert places == [("R109", "leaf.yaml"), ("R103", "root.yaml"), ("Y106", "root.yaml"), ("Y114", "--set #1")]


def test_the_mechanisms_that_the_documents_show_are_read() -> None:
    before, after = FINE[: FINE.index("mechanism:")], FINE[FINE.index("budget:") :]
    rest = "mechanism:\n  kind: encoded\n  codebook: {source: gaussian}\n  sampling: {scheme: full_batch}\n"
    documents = Path(__file__).parents[2] / "docs"
    names = ("reference/recipe.md", "explanation/encoding.md", "explanation/pate.md")
    text = "".join((documents / name).read_text("utf-8") for name in names)
    fences = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shown = [fence for fence in fences if fence.startswith("mechanism:")]
    shown += [rest + indent(fence, "  ") for fence in fences if fence.startswith("noise:")]
    assert len(shown) >= 7
    for mechanism in shown:
        kind = next(
            (kind for kind in ("pate", "pnsgd", "dpsgd", "correlated") if f"kind: {kind}" in mechanism), "encoded"
        )
        assert read_text(before + mechanism + after).recipe.mechanism.kind == kind


DISJOINT = (
    "training.epochs=3",
    "budget.epsilon=2",
    "model.kind=mlp",
    "model.hidden=[4, 4]",
    "mechanism.noise={family: laplace, multiplier: 2}",
    "runtime.seed=5",
    "runtime.device=cpu",
)


@given(st.permutations(DISJOINT))
@settings(derandomize=True, max_examples=40, deadline=None)
def test_the_order_of_overrides_does_not_matter(overrides: list[str]) -> None:
    assert read_text(FINE, overrides=overrides).recipe == read_text(FINE, overrides=DISJOINT).recipe


STARTERS = [(mechanism, source) for mechanism in MECHANISMS for source in SOURCES]
FINE_ENCODED = (FOLDER / "fine-encoded.yaml").read_text("utf-8")
FINE_PATE = (FOLDER / "fine-pate.yaml").read_text("utf-8")
TEXTS = [FINE, FINE_ENCODED, FINE_PATE, *(make_starter(mechanism, source, "s") for mechanism, source in STARTERS)]


def keys_of(text: str) -> list[tuple[int, int, str]]:
    """Every key whose name the language fixes: (line, column, name)."""
    return [
        (place.line, place.column, str(path[-1]))
        for path, place, _ in walk_nodes(load(text, "r.yaml"))
        if isinstance(path[-1], str) and (len(path) < 2 or path[-2] != "columns")
    ]


def mutated(text: str, line: int, column: int, old: str, new: str) -> str:
    lines = text.split("\n")
    row = lines[line - 1]
    assert row[column - 1 :].startswith(old)
    lines[line - 1] = row[: column - 1] + new + row[column - 1 + len(old) :]
    return "\n".join(lines)


NAMES = ["fine", "fine-encoded", "fine-pate", *map("-".join, STARTERS)]
FEW = re.compile("fine|dpsgd|csv")
"""Every mechanism, and every source."""


@pytest.mark.parametrize(
    "text", sweep(TEXTS, [place for place, name in enumerate(NAMES) if FEW.search(name)]), ids=NAMES
)
def test_every_misspelt_key_is_one_finding_on_its_line(text: str) -> None:
    """Each key misspelt in one of four ways, in turn."""
    hold_misspelt(text, all_ways=False)


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS, ids=NAMES)
def test_every_key_misspelt_in_every_way_is_one_finding_on_its_line(text: str) -> None:
    hold_misspelt(text, all_ways=True)


def hold_misspelt(text: str, *, all_ways: bool) -> None:
    for number, (line, column, name) in enumerate(keys_of(text)):
        ways = (name + "x", name[:-1] + "q" + name[-1], "q" + name, "zzz")
        for new in ways if all_ways else (ways[number % 4],):
            findings = findings_of(mutated(text, line, column, name, new))
            assert [(f.place.line, f.place.column) for f in findings if f.place] == [(line, column)], (new, findings)
            assert findings[0].code in ("R101", "R112")


@given(st.data())
@settings(derandomize=True, max_examples=75, deadline=None)
def test_one_wrong_letter_in_a_key_is_one_finding_on_its_line(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS))
    line, column, name = data.draw(st.sampled_from(keys_of(text)))
    at = data.draw(st.integers(0, len(name)))
    new = name[:at] + data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz_")) + name[at + 1 :]
    assume(new != name)
    findings = findings_of(mutated(text, line, column, name, new))
    assert [f.place.line for f in findings if f.place] == [line], (new, findings)


@pytest.mark.parametrize(
    ("override", "path", "kept"),
    [
        ("mechanism.sampling.scheme=dealt", "mechanism.sampling", {"scheme": "dealt", "batch_size": 64}),
        ("mechanism.sampling={scheme: full_batch}", "mechanism.sampling", {"scheme": "full_batch"}),
        ("mechanism.sampling.scheme=full_batch", "mechanism.sampling", {"scheme": "full_batch"}),
        ("training.optimizer.kind=adam", "training.optimizer", {"kind": "adam", "lr": 0.5}),
        ("model.kind=mlp", "model", {"kind": "mlp"}),
    ],
)
def test_an_override_of_a_kind_keeps_what_both_kinds_have(override: str, path: str, kept: dict[str, object]) -> None:
    text = "recipe: dprecipe/v1\nname: r\n" + DIGITS + DPSGD + "model: {kind: logistic_regression}\n"
    text += "training: {steps: 20, optimizer: {kind: sgd, lr: 0.5, momentum: 0.9}}\n"
    overrides = [override, *(["model.hidden=[8]"] if "mlp" in override else [])]
    recipe = read_text(text, overrides=overrides).recipe
    block: object = recipe
    for name in path.split("."):
        block = getattr(block, name)
    assert isinstance(block, Block)
    assert {key: block.model_dump()[key] for key in kept} == kept
