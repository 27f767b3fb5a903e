"""Follows every link of the built site, whatever wrote it: Markdown, HTML, a template, the API reference."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADING = {"img", "script", "iframe", "source", "video", "audio"}
"""Elements whose address a browser fetches without a click; of `link`, all but relations such as `canonical`."""
FETCHED = {"stylesheet", "icon", "preload", "preconnect", "manifest"}


@dataclass
class Page(HTMLParser):
    """The anchors and addresses of a page."""

    anchors: set[str] = field(default_factory=lambda: {""})
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes the anchor and the addresses of an element."""
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values[name] for name in ("id", "name") if name in values and (name == "id" or tag == "a")}
        addresses = [values[name] for name in ("href", "src") if name in values]
        loads = tag in LOADING or (tag == "link" and not FETCHED.isdisjoint(values.get("rel", "").split()))
        (self.fetched if loads else self.links).extend(addresses)


def read_page(text: str) -> Page:
    """Returns the anchors and addresses of a page of HTML."""
    page = Page()
    page.feed(text)
    page.close()
    return page


def find_faults(pages: dict[str, Page], files: set[str]) -> list[str]:
    """Returns what is wrong with the links of a site: a page or an anchor is missing, or a browser would fetch
    something from elsewhere.

    `files` are the paths of all files of the site, `pages` those that are HTML.
    """
    faults = []
    for name, page in sorted(pages.items()):
        for address in page.fetched:
            if urlsplit(address).scheme not in ("", "data") or urlsplit(address).netloc:
                faults.append(f"{name}: fetches {address}")
        for address in page.fetched + page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path)))
            target = target if parts.path else name
            if target not in files:
                target = posixpath.normpath(posixpath.join(target, "index.html"))
            if target not in files:
                faults.append(f"{name}: no such page: {address}")
            elif address in page.links and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                faults.append(f"{name}: no such anchor: {address}")
    return faults


def check_site(folder: Path) -> tuple[int, list[str]]:
    """Returns the number of pages of a built site, and what is wrong with their links."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    names = {name for name in files if name.endswith(".html")}
    pages = {name: read_page((folder / name).read_text(encoding="utf-8")) for name in names}
    return len(pages), find_faults(pages, files)
