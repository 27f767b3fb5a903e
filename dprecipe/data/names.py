"""Names of columns and units that stand in a claim: words of the recipe's author inside of the program's own sentences.

So they are one short name in quotes, which no sentence can be made of, and which breaks no line.
"""

from __future__ import annotations

import re
import unicodedata

from dprecipe.faults import Finding

MAX_NAME = 60
"""Letters."""
MAX_NOUN = 30
"""Characters."""
JOINING = "_-./:#"
_FORM = re.compile(r"[L_](?:[LN_]|M{1,3}(?!M)|[-./:#](?=[LN])| (?=[LN]))*")
_NOUN = re.compile(r"L(?:L|M{1,3}(?!M)|-(?=L))*")
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U00016fe4\U000e0100-\U000e01ef]"
)
"""Letters and marks that a reader does not see: fillers, a joiner, selectors of variants."""
_RECORD = re.compile("(column )*record")
_TAKEN = frozenset({"record", "records"})


def is_name(text: str) -> bool:
    """Returns True if a column's name may stand in a claim.

    It has at most 60 characters: letters of any script, digits, `_-./:#` and single blanks between them, with a letter
    or an underscore first."""
    kinds = "".join(c if c in f"{JOINING} " else _classify(c) for c in text)
    return len(text) <= MAX_NAME and _FORM.fullmatch(kinds) is not None


def is_noun(text: str) -> bool:
    """Returns True if a recipe may call one unit so: a single word of letters and hyphens, at most 30 characters, that
    is not `record`. Two words could say more than one person: "adding or removing one person and all others"."""
    kinds = "".join(c if c == "-" else _classify(c) for c in text)
    folded = unicodedata.normalize("NFKC", text).casefold()
    return len(text) <= MAX_NOUN and _NOUN.fullmatch(kinds) is not None and folded not in _TAKEN


def _classify(character: str) -> str:
    """Returns the first letter of its category; C, as of control characters, for letters and marks that no reader
    sees.
    """
    return "C" if _INVISIBLE.fullmatch(character) else unicodedata.category(character)[0]


def quote_name(name: str) -> str:
    """Returns a name as the claim's sentences have it."""
    return f"'{name}'"


def name_unit(column: str | None, noun: str | None = None) -> str:
    """Returns the name of one unit in sentences, after `one` or `each`. `column`: whose value its records share; None:
    every record is a unit of its own. `noun`: what the recipe calls it.
    """
    if column is None:
        return "record"
    return noun or f"group of records with the same {quote_name(column)}"


def write_unit_key(column: str | None) -> str:
    """Returns the protected unit as accounts and policies write it: `record`, or the column's name.

    A column that is itself named `record` is written `column record`."""
    if column is None:
        return "record"
    return f"column {column}" if _RECORD.fullmatch(column) else column


def read_unit_key(key: str) -> str | None:
    """Returns the column that `write_unit_key` wrote."""
    if key == "record":
        return None
    return key.removeprefix("column ") if _RECORD.fullmatch(key) else key


def unfit_noun_finding(path: str, noun: str) -> Finding:
    """Returns the finding for a unit's name that can't stand in the claim's sentence."""
    return Finding(
        "R308",
        f"the unit's name stands in the claim, and {noun[:40]!r} is not one word for it",
        f"write one word of letters and hyphens, such as patient or household, at most {MAX_NOUN} characters and not "
        "record; or remove it",
        path,
    )


def misnamed_finding(path: str, column: str) -> Finding:
    """Returns the finding for a column's name that can't stand in the claim's sentence."""
    return Finding(
        "R308",
        f"the column's name stands in the claim, and {column[:40]!r} is no short name",
        "rename the column in the file, and here: a letter first, then letters, digits, _ - . / : # and single blanks, "
        f"at most {MAX_NAME} of them",
        path,
    )
