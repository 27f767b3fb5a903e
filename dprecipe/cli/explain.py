"""`dprecipe explain`: the page of a finding, in the terminal and without a network."""

from __future__ import annotations

import difflib
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from dprecipe.cli.completion import complete_codes
from dprecipe.faults import RunFailed, UsageFault
from dprecipe.screen import write_output

PACKAGE = Path(__file__).parents[1]
PLACES = (PACKAGE / "findings", PACKAGE.parent / "docs" / "reference" / "findings")
"""Folders of the findings' pages: in a wheel inside the package, in a checkout beside it."""
MAX_WIDTH = 100
GREEK = {"epsilon": "ε", "delta": "δ", "sigma": "σ", "mu": "μ"}
_CODE = re.compile(r"[A-Z]\d{3}")
_LINK = re.compile(r"\[([^\]]+)\]\([^)\s]+\)")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def explain(
    code: Annotated[
        str | None,
        typer.Argument(help="A finding's code, such as P108; or a word of its title.", autocompletion=complete_codes),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List all codes with their titles.")] = False,
) -> None:
    """Prints the page of `code`; or, with `listed` or without a code, each code with its title, or those whose title
    has the word `code`.

    Raises:
        UsageFault: there is no such code, and no title has such a word.
        RunFailed: the pages are not installed.
    """
    titles = read_titles()
    if listed or code is None:
        write_output(f"{name}  {title}" for name, title in titles.items())
        return
    name = code.strip().upper()
    if name in titles:
        width = min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns)
        write_output(render_terminal(_read(_folder() / f"{name}.md"), width))
        return
    word = GREEK.get(code.lower(), code.lower())
    matching = [f"{each}  {title}" for each, title in titles.items() if word in title.lower()]
    if matching and not re.search(r"\d", code):
        write_output(matching)
        return
    raise UsageFault(f"there is no finding {code}", _suggest(name, titles))


def _suggest(name: str, titles: dict[str, str]) -> str:
    digits = name[:1] + name[1:].translate(str.maketrans("LIO", "110"))
    near = [each for each in titles if each.startswith(digits) or digits.startswith(each)][:3]
    near = near or difflib.get_close_matches(digits, titles, n=4, cutoff=0.5)
    similar = "; ".join(f"{each}: {titles[each]}" for each in near)
    return f"did you mean {similar}? " * bool(near) + "`dprecipe explain --list` has all of them"


def _folder() -> Path:
    for place in PLACES:
        if place.is_dir():
            return place
    raise RunFailed("the pages of the findings are not installed", "reinstall dprecipe from a whole wheel")


def read_titles() -> dict[str, str]:
    """Returns the title of each finding by its code.

    Raises:
        RunFailed: the pages are not installed.
    """
    pages = sorted(path for path in _folder().glob("*.md") if _CODE.fullmatch(path.stem))
    return {path.stem: _read(path).partition("\n")[0].partition(": ")[2] for path in pages}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunFailed(f"{path}: can't be read: {error.strerror}", "reinstall dprecipe") from None


def render_terminal(page: str, width: int) -> list[str]:
    """Returns a page of Markdown as lines of at most `width` where they can be broken: code and tables stay as they
    are."""
    lines = [line for block in _blocks(page) for line in (*_render(block, width), "")]
    return lines[:-1]


def _blocks(page: str) -> Iterator[list[str]]:
    """Splits a page into paragraphs, lists, tables and fenced code, each as its lines; a fence begins a block of its
    own."""
    block, fenced = list[str](), False
    for line in page.splitlines():
        if line.startswith("```"):
            if not fenced and block:
                yield block
                block = []
            fenced = not fenced
            block.append(line)
        elif line.strip() or fenced:
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _render(block: Sequence[str], width: int) -> Iterator[str]:
    first = block[0]
    if first.startswith("```"):
        yield from (f"    {line}".rstrip() for line in block if not line.startswith("```"))
    elif first.startswith("#"):
        yield first.lstrip("#").strip()
        yield from _render(block[1:], width) if block[1:] else ()
    elif first.startswith("|"):
        yield from (f"  {line}" for line in map(_plain, block) if set(line) - set("|-: "))
    else:
        for text in _paragraphs(block):
            indent = "  " if _ITEM.match(text) else ""
            yield from textwrap.wrap(
                text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )


def _paragraphs(block: Sequence[str]) -> Iterator[str]:
    """Yields the items of a list, or the one paragraph."""
    texts = list[str]()
    for line in map(_plain, block):
        if texts and not _ITEM.match(line):
            texts[-1] += f" {line.strip()}"
        else:
            texts.append(line.strip())
    yield from texts


def _plain(line: str) -> str:
    return _LINK.sub(r"\1", line)
