"""`dprecipe init`: a commented starter recipe that validates."""

from __future__ import annotations

from pathlib import Path

from dprecipe.faults import UsageFault
from dprecipe.recipe.starters import MECHANISMS, SOURCES, make_starter
from dprecipe.screen import write_output


def init(path: Path = Path("recipe.yaml"), mechanism: str = MECHANISMS[0], data: str = "digits") -> None:
    """Write a starter recipe; never overwrites.

    Raises:
        UsageFault: an unknown mechanism or source, or a path that exists or can't be written.
    """
    for word, known, noun in ((mechanism, MECHANISMS, "mechanism"), (data, SOURCES, "data source")):
        if word not in known:
            raise UsageFault(f"there is no starter for the {noun} {word}", f"choose one of {', '.join(known)}")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(make_starter(mechanism, data, name_from(path)))
    except FileExistsError:
        raise UsageFault(f"{path} exists already", "name another path") from None
    except OSError as error:
        raise UsageFault(f"{path} can't be written: {error.strerror}", "name another path") from None
    write_output([f"wrote {path}; next: dprecipe validate {path}"])


def name_from(path: Path) -> str:
    """A recipe's name from its file's: what a name can't hold becomes `-`."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in path.stem)
    return kept.lstrip("._-")[:100] or "recipe"
