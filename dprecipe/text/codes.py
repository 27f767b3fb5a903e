"""The codes of the language: `Y…` for YAML, `R…` for structure. A code, once given, keeps its meaning.

Each has a page `docs/findings/<code>.md`. The privacy rules (`P…`) are in `dprecipe.planning.rules`; only
`P110` is here, because the language meets the data-dependent word before there is a recipe to check."""

from __future__ import annotations

CODES: dict[str, str] = {
    "Y101": "the file can't be read",
    "Y102": "the file is too large",
    "Y103": "the file is not plain text",
    "Y104": "the YAML can't be read",
    "Y105": "a tab where YAML needs spaces",
    "Y106": "a key stands twice in one block",
    "Y107": "anchors and aliases are not part of the language",
    "Y108": "merge keys are not part of the language",
    "Y109": "tags and directives are not part of the language",
    "Y110": "more than one document in a file",
    "Y111": "a key that is not plain text",
    "Y112": "nested too deep",
    "Y113": "too many values",
    "Y114": "a number that is not finite",
    "Y115": "the document is not a block of keys",
    "Y116": "a text that holds a forbidden character",
    "Y120": "`extends` names no recipe that can be read",
    "Y121": "recipes that extend each other in a circle",
    "Y122": "a chain of `extends` that is too long",
    "Y130": "an override that can't be read",
    "Y131": "two overrides of one value",
    "Y132": "an override of something that is not there",
    "R101": "an unknown key",
    "R102": "a missing key",
    "R103": "a value of the wrong type",
    "R104": "an unknown kind",
    "R105": "a block that does not say its kind",
    "R106": "a word that is not one of the known ones",
    "R107": "a number out of range",
    "R108": "too few or too many items",
    "R109": "a text of the wrong form",
    "R111": "an unknown version of the language",
    "R112": "the name another tool uses",
    "R113": "a secret in a recipe",
    "R120": "a declared data file is absent",
    "R199": "the value is not accepted",
    "P110": "preprocessing that would be fitted to private data",
}
