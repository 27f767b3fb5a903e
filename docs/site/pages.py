"""Copies of the repository's pages as the site shows them: links lead to pages, and files have pages of their own.

A source is a path from the root of the repository; a page is a path from the root of the site. Links in the sources are
those of the repository, so they work there too.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
FINDINGS = "docs/reference/findings/README.md"
HOMES = {
    "docs/README.md": "index.md",
    "README.md": "overview.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    FINDINGS: "reference/findings.md",
    "recipes": "recipes.md",
    "schemas": "reference/schemas.md",
}
"""Pages of sources that are not placed by the rule; `recipes` and `schemas` are folders."""
PICTURES = {".svg", ".png"}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}
FENCED = re.compile(r"^( {0,3}(`{3,}).*?^ {0,3}\2`*[ ]*$)", re.MULTILINE | re.DOTALL)
CODE_OR_LINK = re.compile(r"(`+)(?!`)(?:(?!\n\n).)+?(?<!`)\1(?!`)|\]\(([^)\s]+)\)", re.DOTALL)
PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img alt="([^"]+)" src="([^"]+)"[^>]*>\s*</picture>'
)


class Missing(Exception):
    """A link to a file that the repository lacks."""


def place(source: str) -> str:
    """Returns the page that shows a source; for a picture, its file on the site."""
    if source in HOMES:
        return HOMES[source]
    page = source.removeprefix("docs/") if source.startswith("docs/") else f"files/{source}"
    folder, name = posixpath.split(page)
    if name == "README.md":
        return posixpath.join(folder, "index.md")
    return page if name.endswith(".md") or Path(name).suffix in PICTURES else f"{page}.md"


def show_pictures(text: str) -> str:
    """Returns the text with each `<picture>` as two images, for the colours that the reader has chosen on the site."""
    return PICTURE.sub(r"![\2](\3#only-light)\n![\2](\1#only-dark)", text)


def adapt_tables(text: str) -> str:
    """Returns the text with its tables as the generator reads them: a bar in code stands as it is, and a tick without
    a second one in its cell is escaped."""

    def adapt(row: re.Match[str]) -> str:
        cells = re.split(r"(?<!\\)\|", row[0])
        closed = [re.sub(r"`(?=[^`]*$)", r"\`", cell) if cell.count("`") % 2 else cell for cell in cells]
        return re.sub(r"(?<!\\)`[^`]+`", lambda code: code[0].replace(r"\|", "|"), "|".join(closed))

    return re.sub(r"^\|.*$", adapt, text, flags=re.MULTILINE)


def relink(text: str, source: str, exists: Callable[[str], bool]) -> tuple[str, set[str]]:
    """Returns a page's text with its relative links as they are on the site, and the sources that they lead to.

    Raises:
        Missing: a link leads to no file of the repository.
    """
    targets: set[str] = set()
    start = posixpath.dirname(place(source))

    def replace(match: re.Match[str]) -> str:
        link = match[2]
        if link is None or re.match(r"[a-z]+:|#", link):
            return match[0]
        path, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if target.startswith("..") or not exists(target):
            raise Missing(f"{source}: {link} leads to no file")
        targets.add(target)
        return f"]({posixpath.relpath(place(target), start or '.')}{'#' if anchor else ''}{anchor})"

    parts = FENCED.split(text)  # text, fence with its content, its ticks, text, …
    for index in range(0, len(parts), 3):
        parts[index] = CODE_OR_LINK.sub(replace, parts[index])
    return "".join(part for index, part in enumerate(parts) if index % 3 != 2), targets


def fence(text: str, language: str) -> str:
    """Returns a block of code that shows the text as it is."""
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}\n"


def show_file(source: str, text: str) -> str:
    """Returns the page of a file that is no Markdown: its text, the cells of a notebook or the first lines of a table,
    and a link to the file. A search finds recipes and notebooks, and no other files."""
    name = posixpath.basename(source)
    head = f"# {name}\n\n`{source}` · [the file itself]({name})\n\n"
    if not name.endswith((".ipynb", ".yaml")):
        head = f"---\nsearch:\n  exclude: true\n---\n{head}"
    if name.endswith(".csv"):
        return head + fence("\n".join([*text.splitlines()[:10], "…"]), "text")
    if not name.endswith(".ipynb"):
        return head + fence(text, LANGUAGES.get(Path(name).suffix, "text"))
    cells = ((cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"])
    return head + "\n\n".join(
        re.sub(r"^#", "##", body, flags=re.MULTILINE) if kind == "markdown" else fence(body, "python")
        for kind, body in cells
    )


def list_sources(root: Path = ROOT) -> list[str]:
    """Returns the pages and pictures of `docs/` and the pages of the root, which the site has whether or not a link
    leads there."""
    files = (path for path in (root / "docs").rglob("*") if path.suffix in PICTURES | {".md"})
    return sorted([path.relative_to(root).as_posix() for path in files] + [name for name in HOMES if "." in name])


def list_findings(folder: Path) -> str:
    """Returns the last section of the findings' first page: each code with a link and the title of its page."""
    lines = ["", "## All findings", ""]
    for path in sorted(folder.glob("[A-Z][0-9]*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].partition(": ")[2]
        lines.append(f"- [{path.stem}]({path.name}): {title}")
    return "\n".join(lines) + "\n"


def write(stage: Path, page: str, text: str) -> None:
    """Writes a page for the generator."""
    path = stage / page
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def copy_pages(stage: Path, sources: Iterable[str], root: Path = ROOT) -> None:
    """Writes the page of each source, and of each file that a page links to.

    Raises:
        Missing: a link leads to no file of the repository.
    """
    waiting, done = list(sources), {"recipes", "schemas"}
    while waiting:
        source = waiting.pop()
        if source in done:
            continue
        done.add(source)
        path, page = root / source, place(source)
        if path.is_dir():
            raise Missing(f"{source}: a folder without a page; link to a file in it")
        if path.suffix in PICTURES:
            (stage / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, stage / page)
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            if source == FINDINGS:
                text += list_findings(path.parent)
            text, targets = relink(adapt_tables(show_pictures(text)), source, lambda name: (root / name).exists())
            waiting += targets
            if page.startswith("reference/findings/"):
                text += "\n[All findings](../findings.md)\n"
        else:
            (stage / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, stage / page.removesuffix(".md"))
            text = show_file(source, text)
        write(stage, page, text)
