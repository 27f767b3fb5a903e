"""The site's own pages: links rewritten, files and recipes shown, and every link of the result followed."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import dprecipe
from docs.site.build import order_versions, publish
from docs.site.check import Page, find_faults, read_page
from docs.site.pages import (
    Missing,
    adapt_tables,
    copy_pages,
    fence,
    list_sources,
    place,
    relink,
    show_file,
    show_pictures,
)
from docs.site.recipes import (
    EXPLAINED,
    Entry,
    list_recipes,
    make_schema_list,
    read_entry,
    show_gallery,
)
from dprecipe.cli.gallery import name_data, read_expected

ROOT = Path(__file__).parents[2]
MADE = {"recipes.md", "reference/schemas.md"}
"""Pages that no source has: they are made of folders."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stage")
    copy_pages(folder, [*list_sources(), *list_recipes()])
    return folder


def list_nav(nav: list[Any]) -> list[str]:
    pages = []
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            pages += list_nav(value) if isinstance(value, list) else [value]
    return pages


@pytest.mark.parametrize(
    ("source", "page"),
    [
        ("docs/README.md", "index.md"),
        ("README.md", "overview.md"),
        ("docs/how-to/tuning.md", "how-to/tuning.md"),
        ("docs/project/reproduction/README.md", "project/reproduction/index.md"),
        ("docs/images/path-dark.svg", "images/path-dark.svg"),
        ("dprecipe/mechanisms/pate/README.md", "files/dprecipe/mechanisms/pate/index.md"),
        ("recipes/quickstart.yaml", "files/recipes/quickstart.yaml.md"),
        ("LICENSE", "files/LICENSE.md"),
        ("recipes", "recipes.md"),
    ],
)
def test_each_source_has_its_page(source: str, page: str) -> None:
    assert place(source) == page


@pytest.mark.parametrize(
    ("link", "written"),
    [
        ("../reference/data.md#where-files-are", "../reference/data.md#where-files-are"),
        ("../README.md", "../index.md"),
        ("../../CONTRIBUTING.md", "../project/contributing.md"),
        ("../../recipes/tuned-digits.yaml", "../files/recipes/tuned-digits.yaml.md"),
        ("../../recipes/", "../recipes.md"),
        ("#below", "#below"),
        ("https://example.org/a.md", "https://example.org/a.md"),
    ],
)
def test_a_link_leads_to_its_page(link: str, written: str) -> None:
    text, targets = relink(f"[`words`]({link}), more", "docs/how-to/tuning.md", lambda name: True)
    assert text == f"[`words`]({written}), more"
    assert len(targets) == (not link.startswith(("#", "https")))


@pytest.mark.parametrize(
    "text", ["```\n[a](b.md)\n```\n", "`[a](b.md)`", "``a ` [a](b.md)``", "  ````text\n```\n[a](b.md)\n  ````\n"]
)
def test_code_stays_as_it_is(text: str) -> None:
    assert relink(text, "docs/page.md", lambda name: False) == (text, set())


@pytest.mark.parametrize("link", ["gone.md", "../../../elsewhere.md"])
def test_a_link_to_no_file_is_refused(link: str) -> None:
    with pytest.raises(Missing, match=f"docs/page.md: {re.escape(link)}"):
        relink(f"a ` alone\n\n```\ncode\n```\n[a]({link})", "docs/page.md", lambda name: "gone" not in name)


def test_a_folder_without_a_page_is_refused(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("[all](../docs)")
    with pytest.raises(Missing, match="docs: a folder"):
        copy_pages(tmp_path / "stage", ["docs/a.md"], tmp_path)


def test_a_picture_follows_the_colours_of_the_site() -> None:
    dark = '<source media="(prefers-color-scheme: dark)" srcset="../images/a-dark.svg">'
    picture = f'<picture>\n  {dark}\n  <img alt="A map" src="../images/a-light.svg">\n</picture>'
    assert (
        show_pictures(picture) == "![A map](../images/a-light.svg#only-light)\n![A map](../images/a-dark.svg#only-dark)"
    )


@pytest.mark.parametrize(
    ("row", "adapted"),
    [
        ("| `a\\|b` | E\\|x\\| |", "| `a|b` | E\\|x\\| |"),
        ("| known: `a`, `tran… | write `b` |", "| known: `a`, \\`tran… | write `b` |"),
        ("`a\\|b` is no table", "`a\\|b` is no table"),
    ],
)
def test_tables_are_as_the_generator_reads_them(row: str, adapted: str) -> None:
    assert adapt_tables(f"words\n{row}\n") == f"words\n{adapted}\n"


def test_a_file_is_shown_whole_whatever_it_holds() -> None:
    assert fence("a\n````\nb\n", "yaml") == "`````yaml\na\n````\nb\n`````\n"
    page = show_file("recipes/a.yaml", "recipe: dprecipe/v1\n")
    assert page == "# a.yaml\n\n`recipes/a.yaml` · [the file itself](a.yaml)\n\n```yaml\nrecipe: dprecipe/v1\n```\n"
    assert show_file("a.py", "x = 1").startswith("---\nsearch:\n  exclude: true\n---\n# a.py")
    assert "10\n…" in show_file("a.csv", "\n".join(map(str, range(1, 100))))


def test_a_notebook_is_shown_cell_by_cell() -> None:
    cells = [{"cell_type": "markdown", "source": ["# Title\n", "words"]}, {"cell_type": "code", "source": ["x = 1"]}]
    page = show_file("a.ipynb", json.dumps({"cells": cells}))
    assert page.endswith("\n\n## Title\nwords\n\n```python\nx = 1\n```\n")


def test_every_page_of_the_navigation_is_there_and_every_page_is_in_it(stage: Path) -> None:
    nav = list_nav(tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"])
    pages = {path.relative_to(stage).as_posix() for path in stage.rglob("*.md")} | MADE
    assert len(nav) == len(set(nav))
    assert set(nav) == {page for page in pages if not page.startswith(("files/", "reference/findings/"))}


def test_every_recipe_and_every_linked_file_has_a_page(stage: Path) -> None:
    for source in (*list_recipes(), "LICENSE", "dprecipe/mechanisms/pate/README.md"):
        assert (stage / place(source)).is_file()
    assert (stage / "files/recipes/quickstart.yaml").read_bytes() == (ROOT / "recipes/quickstart.yaml").read_bytes()
    listed = (stage / "reference/findings.md").read_text("utf-8")
    findings = sorted((ROOT / "docs/reference/findings").glob("[A-Z][0-9]*.md"))
    titles = [path.read_text("utf-8").splitlines()[0].removeprefix(f"# {path.stem}: ") for path in findings]
    rows = [f"- [{path.stem}](findings/{path.name}): {title}" for path, title in zip(findings, titles, strict=True)]
    assert re.findall(r"^- .*$", listed, re.MULTILINE) == rows
    assert "[All findings](../findings.md)" in (stage / "reference/findings/P108.md").read_text("utf-8")


def test_what_is_broken_in_html_is_found() -> None:
    html = (
        '<h1 id="top">a</h1><a href="b.html">b</a><a href="b.html#there">b</a><a href="#top">a</a>'
        '<a href="folder/">f</a><a href="https://example.org">elsewhere</a><link rel="canonical" href="https://example.org/a">'
        '<img src="a.svg#only-dark"><img src="data:image/png;base64,">'
    )
    pages = {"sub/a.html": read_page(html), "sub/b.html": read_page('<p id="there">')}
    files = {*pages, "sub/a.svg", "sub/folder/index.html"}
    assert find_faults(pages, files) == []
    broken = '<a href="c.html">c</a><a href="b.html#gone">b</a><script src="https://example.org/a.js"></script>'
    broken += '<link rel="stylesheet" href="//example.org/a.css"><img src="gone.svg">'
    assert find_faults({**pages, "sub/a.html": read_page(broken)}, files) == [
        "sub/a.html: fetches https://example.org/a.js",
        "sub/a.html: fetches //example.org/a.css",
        "sub/a.html: no such page: gone.svg",
        "sub/a.html: no such page: c.html",
        "sub/a.html: no such anchor: b.html#gone",
    ]


def test_a_page_without_anchors_can_be_linked() -> None:
    assert find_faults({"a.html": read_page('<a href="a.html">'), "b.html": Page()}, {"a.html", "b.html"}) == []


@pytest.mark.parametrize(
    ("recipe", "line"),
    [
        ("quickstart", ("digits", "dpsgd", "3", "1e-5", 0)),
        ("adult-pnsgd", ("adult", "pnsgd", "1", "1e-6", 1)),
        ("papers/papernot2018-mnist-lnmax", ("mnist", "pate", "2.894", "1e-5", 2)),
        ("papers/asoodeh2020-figure3", ("adult", "pnsgd", "refused: [P160](reference/findings/P160.md)", "0.001", 2)),
        ("papers/abadi2016-cifar10-public", ("cifar10", "none", "no guarantee", "", 2)),
    ],
)
def test_a_recipe_has_its_line(recipe: str, line: tuple[str, str, str, str, int]) -> None:
    entry = read_entry(ROOT / "recipes" / f"{recipe}.yaml")
    assert (entry.data, entry.mechanism, entry.epsilon, entry.delta, entry.group) == line


def test_data_have_the_name_of_their_folder() -> None:
    assert name_data({"source": "idx", "images": "mnist/a.gz"}) == "mnist"
    assert name_data({"source": "digits"}) == "digits"


def test_the_gallery_states_what_it_is_given() -> None:
    entry = Entry("recipes/papers/a.yaml", "a", "Words", "mnist", "dpsgd", "3", "1e-5")
    stated = {"a": {"accuracy": "98.2 %", "source": "docs/project/reproduction/dpsgd.md"}}
    page = show_gallery([entry], stated, ["a", "b"])
    assert "| [a](files/recipes/papers/a.yaml.md)" in page
    assert "| [98.2 %](project/reproduction/dpsgd.md) |" in page
    assert page.count("![") == 1
    assert "| – |" in show_gallery([entry], {}, [])


def test_each_accuracy_is_stated_by_its_source() -> None:
    expected = read_expected()
    assert set(expected) <= {Path(source).stem for source in list_recipes()}
    for name, stated in expected.items():
        text = (ROOT / stated["source"]).read_text("utf-8")
        assert re.search(rf"(?<![\d.]){re.escape(stated['accuracy'])}(?!\d)", text), name


def test_each_mechanism_has_its_page() -> None:
    folders = (ROOT / "dprecipe" / "mechanisms").glob("*/schema.py")
    assert set(EXPLAINED) == {path.parent.name for path in folders}
    assert all((ROOT / "docs" / page).is_file() for page in EXPLAINED.values())


def test_every_schema_has_a_line() -> None:
    page = make_schema_list({"b.json": {"title": "B"}, "a.json": {"title": "A", "description": "Words."}})
    assert page.endswith("| [a.json](schemas/a.json) | Words. |\n| [b.json](schemas/b.json) | B |\n")


def test_the_python_page_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    named = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)}
    assert set(dprecipe.__all__) - {"__version__"} <= named


def test_versions_stand_side_by_side(tmp_path: Path) -> None:
    assert order_versions(["0.9.0", "0.10.0", "0.2.1"]) == ["0.10.0", "0.9.0", "0.2.1"]
    site = tmp_path / "site"
    for version in ("0.10.0", "0.9.0", "0.9.0"):
        built = tmp_path / "html"
        built.mkdir()
        (built / "index.html").write_text(version)
        publish(built, site, version)
    assert (site / "0.9.0" / "index.html").read_text() == "0.9.0"
    assert [each["version"] for each in json.loads((site / "versions.json").read_text())] == ["0.10.0", "0.9.0"]
    assert "url=0.10.0/index.html" in (site / "index.html").read_text()
