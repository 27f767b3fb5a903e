"""Texts that look equal, and names that differ in how they are written alone.

Two texts are compared as `normalise_text` leaves them: what no one can see makes no difference. Names of units go
further: a person whose id one file writes as 101 and another as 0101 would be two units, each with the whole ε. So
names with the same `fold_name` are taken for one name, and a source that writes one name in two ways is refused
(`dprecipe.data.collector`).

| texts | `normalise_text` | `fold_name` |
|---|---|---|
| é as one character, or as e and an accent (NFC, NFD) | equal | equal |
| blanks of any kind around the text; characters of no width anywhere | equal | equal |
| 101, 101.0, 0101, +101, 1.01e2 | differ | equal |
| digits of other scripts and widths; letters and signs of full width | differ | equal |
| several blanks, or other ones, between words; hyphens and minus signs of other kinds | differ | equal |
| P07 and p07; P07 and P7 | differ | differ |

No numpy: what reads a recipe asks this module.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

MAX_EXPONENT = 400
"""The largest exponent of a number in a name, as 1e400; a double has at most 308. A name with a larger one is none."""
_INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]+")
"""Soft hyphens, joiners, marks of direction and of byte order."""
_DASHES = frozenset("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63")
_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,3}))?", re.ASCII)
_MAY_FOLD = re.compile(r"^(?:\+|-?(?:0[0-9.eE]|\.|[0-9]+[.eE])|-0)|  |[^\S\n ]|[\x1c-\x1f]", re.ASCII | re.MULTILINE)
"""Finds every ASCII name, one a line, that `fold_name` changes; and some others."""


def normalise_text(text: str) -> str:
    """Returns a text as it is compared: composed (NFC), without characters of no width, without blanks around it."""
    if text.isascii():
        return text.strip()
    return unicodedata.normalize("NFC", _INVISIBLE.sub("", text)).strip()


def normalise_texts(texts: Sequence[str]) -> list[str]:
    """Returns `normalise_text` of each text."""
    return list(map(str.strip if "".join(texts).isascii() else normalise_text, texts))


def fold_name(name: str) -> str:
    """Returns the one name for all ways to write it: of a number its plain decimal digits. `name` is normalised."""
    if not name.isascii():
        name = unicodedata.normalize("NFC", "".join(map(_plain_character, name)))
    name = " ".join(name.split())
    number = _NUMBER.fullmatch(name)
    return name if number is None else _plain_number(number)


def fold_names(names: Sequence[str]) -> Sequence[str]:
    """Returns `fold_name` of each name; `names` itself where that changes none of them, which takes little time to
    see.
    """
    lines = "\n".join(names)
    is_plain = lines.isascii() and _MAY_FOLD.search(lines) is None and lines.count("\n") < max(len(names), 1)
    return names if is_plain else list(map(fold_name, names))


def _plain_number(number: re.Match[str]) -> str:
    sign, whole, fraction, exponent = number.group(1), number.group(2), number.group(3) or "", int(number.group(4) or 0)
    if not (whole or fraction) or abs(exponent) > MAX_EXPONENT:
        return number.group(0)
    digits, point = whole + fraction, len(whole) + exponent
    digits = "0" * -point + digits + "0" * (point - len(digits))
    whole, fraction = digits[: max(point, 0)].lstrip("0"), digits[max(point, 0) :].rstrip("0")
    if not (whole or fraction):
        return "0"
    return sign.replace("+", "") + (whole or "0") + (f".{fraction}" if fraction else "")


@lru_cache(maxsize=1 << 12)
def _plain_character(character: str) -> str:
    """Returns a digit of any script as 0 … 9, a sign or letter of full width as that of ASCII, a dash as the hyphen."""
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    if "\uff01" <= character <= "\uff5e":
        return chr(ord(character) - 0xFEE0)
    return "-" if character in _DASHES else character


CLOSE = 0.7


def nearest_word(word: str, known: Iterable[str], cutoff: float = CLOSE) -> str | None:
    """Returns the known word nearest to a misspelt one; None if none is near."""
    names = {loosen_word(name): name for name in known}
    written = loosen_word(word)
    if written in names:
        return names[written]
    matches = difflib.get_close_matches(written, names, n=1, cutoff=cutoff)
    return names[matches[0]] if matches else None


def loosen_word(word: str) -> str:
    """Returns a word in lower case, with underscores: how names are compared."""
    return word.lower().replace("-", "_").replace(" ", "_")
