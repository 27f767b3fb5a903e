"""Names of columns that stand in a claim: words of the recipe's author inside of the program's own sentences.

So they are one short name in quotes, which no sentence can be made of, and which breaks no line.
"""

from __future__ import annotations

import re
import unicodedata

from dprecipe.faults import Finding

MAX_NAME = 60
"""Letters."""
JOINING = "_-./:#"
_FORM = re.compile(r"[L_](?:[LN_]|M{1,3}(?!M)|[-./:#](?=[LN])| (?=[LN]))*")


def is_name(text: str) -> bool:
    """Whether a column's name may stand in a claim: letters of any script, digits and `_-./:#`, single blanks between,
    a letter or an underscore first, at most 60 characters."""
    kinds = "".join(c if c in f"{JOINING} " else unicodedata.category(c)[0] for c in text)
    return len(text) <= MAX_NAME and _FORM.fullmatch(kinds) is not None


def quote_name(name: str) -> str:
    """A name as the claim's sentences have it."""
    return f"'{name}'"


def misnamed_finding(path: str, column: str) -> Finding:
    """A column's name that can't stand in the claim's sentence."""
    return Finding(
        "R308",
        f"the column's name stands in the claim, and {column[:40]!r} is no short name",
        "rename the column in the file, and here: a letter first, then letters, digits, _ - . / : # and single blanks, "
        f"at most {MAX_NAME} of them",
        path,
    )
