"""`dprecipe init`: a commented starter recipe that validates."""

from __future__ import annotations

from pathlib import Path

from dprecipe.faults import UsageFault
from dprecipe.recipe.starters import MECHANISMS, SOURCES, make_starter
from dprecipe.screen import write_output


def init(path: Path = Path("recipe.yaml"), mechanism: str = MECHANISMS[0], data: str = "digits") -> None:
    """Write a starter recipe; never overwrites.

    Raises:
        UsageFault: the mechanism or the source is unknown, or the path exists or can't be written.
    """
    for value, known, noun in ((mechanism, MECHANISMS, "mechanism"), (data, SOURCES, "data source")):
        if value not in known:
            raise UsageFault(f"there is no starter for the {noun} {value}", f"choose one of {', '.join(known)}")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(make_starter(mechanism, data, make_name(path)))
    except FileExistsError:
        raise UsageFault(f"{path} already exists", "name another path") from None
    except OSError as error:
        raise UsageFault(f"{path} can't be written: {error.strerror}", "name another path") from None
    write_output([f"wrote {path}; next: dprecipe validate {path}"])


def make_name(path: Path) -> str:
    """A recipe's name from its file's name: characters that a name can't have become `-`."""
    cleaned = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in path.stem)
    return cleaned.lstrip("._-")[:100] or "recipe"
