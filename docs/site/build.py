"""Builds the site of this version into `site/`: `make docs`.

`build/docs/` gets a copy of the pages, the generator makes HTML of it, every link of that is followed, and the result
becomes `site/<version>/`. Versions that are there already stay, and the page offers all of them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from docs.site.check import check_site
from docs.site.pages import ROOT, Missing, copy_pages, list_sources, write
from docs.site.recipes import list_recipes, make_gallery, make_schema_list
from dprecipe import __version__

STAGE, BUILT, SITE = ROOT / "build" / "docs", ROOT / "build" / "html", ROOT / "site"
"""The folders that `zensical.toml` names, and that of all versions."""


def stage_pages() -> None:
    """Writes what the generator reads.

    Raises:
        Missing: a link leads to no file of the repository.
    """
    shutil.rmtree(STAGE, ignore_errors=True)
    copy_pages(STAGE, [*list_sources(), *list_recipes()])
    write(STAGE, "recipes.md", make_gallery())
    schemas = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "schemas").glob("*.json"))}
    write(STAGE, "reference/schemas.md", make_schema_list({name: json.loads(text) for name, text in schemas.items()}))
    for name, text in schemas.items():
        write(STAGE, f"reference/schemas/{name}", text)
    write(STAGE, "site.css", (Path(__file__).parent / "site.css").read_text(encoding="utf-8"))


def order_versions(names: list[str]) -> list[str]:
    """Returns versions, the newest first."""
    return sorted(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)


def publish(built: Path, site: Path, version: str) -> None:
    """Moves a built site to its version's folder, lists the versions, and leads a visitor of the root to the newest."""
    shutil.rmtree(site / version, ignore_errors=True)
    site.mkdir(exist_ok=True)
    shutil.move(built, site / version)
    versions = order_versions([path.parent.name for path in site.glob("*/index.html")])
    listed = [{"version": name, "title": name, "aliases": []} for name in versions]
    (site / "versions.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    (site / "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>dprecipe</title>'
        f'<meta http-equiv="refresh" content="0; url={versions[0]}/index.html">'
        f'<a href="{versions[0]}/index.html">dprecipe {versions[0]}</a>\n',
        encoding="utf-8",
    )


def main() -> None:
    """Builds, checks and publishes the site; ends the process with what is wrong."""
    try:
        stage_pages()
    except Missing as missing:
        sys.exit(str(missing))
    generator = Path(sys.executable).parent / "zensical"
    shutil.rmtree(BUILT, ignore_errors=True)
    done = subprocess.run([generator, "build", "--clean", "--strict"], cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    (BUILT / "404.html").unlink()  # its addresses are those of a server's root, where no version lies
    count, faults = check_site(BUILT)
    if faults:
        sys.exit("\n".join(faults))
    publish(BUILT, SITE, __version__)
    sys.stdout.write(f"{count} pages, every link holds: {SITE / __version__ / 'index.html'}\n")


if __name__ == "__main__":
    main()
