"""Values of the wrong type, and unknown words."""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation

from dprecipe.data.schema import UNKNOWN_SIZE
from dprecipe.faults import Finding
from dprecipe.language.base import Block
from dprecipe.language.words import join_with_or
from dprecipe.recipe.suggest import suggest_word
from dprecipe.recipe.vocabulary import (
    Expect,
    Spot,
    describe_form,
    find_tag,
    list_keys,
    list_kinds,
    list_offered,
    list_required,
    quote_word,
)
from dprecipe.text.dump import dump_inline
from dprecipe.text.tree import Mapping, Node, NotFiniteError, Scalar, Sequence, resolve_scalar, to_plain

_NUMBER_LIKE: tuple[tuple[str, str], ...] = (
    (
        "[-+]?[0-9]{1,3},[0-9]{3}",
        "write the number without a comma, or with a decimal point: the comma could be either",
    ),
    ("[-+]?[0-9]+(?:[_, '\u00a0\u2009\u202f][0-9]{3})+(?:\\.[0-9]+)?", "write the number without separators"),
    (r"[-+]?0[xob][0-9A-Fa-f]+", "write the number in decimal digits"),
    (r"[-+]?0[0-9]+(?:\.[0-9]*)?", "write the number without the leading zero"),
    (r"\+.*[0-9].*", "write the number without the `+`"),
    (r"-?\.[0-9]+(?:[eE][-+]?[0-9]+)?", "write a digit before the point, as in 0.5"),
    (r"-?[0-9]+\.(?:[eE][-+]?[0-9]+)?", "write a digit after the point, as in 1.0"),
    (r"-?[0-9]+(?:\.[0-9]+)?\s*%", "write the number as a fraction, as in 0.05"),
    (r"-?[0-9]+,[0-9]+", "write a decimal point, not a comma"),
    (r"-?[0-9.]+\s*(?:\^|\*\*)\s*.*", "write the number out, as in 1e-5"),
    (r"(?i)[-+]?(?:inf|infinity|nan)", "write a finite number"),
)

IN_QUOTES = "write it in quotes:"
"""Start of a remedy for a value that is no text."""
BLANK = "FILL_IN"
"""Mark of values that `dprecipe init --private` leaves to be declared."""


def describe_node(node: Node | None) -> str:
    """Returns a value in words; long texts are cut."""
    if isinstance(node, Mapping):
        return "a block"
    if isinstance(node, Sequence):
        return "a list"
    value = node.value if isinstance(node, Scalar) else None
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return "the text " + json.dumps(value if len(value) <= 60 else value[:57] + "…", ensure_ascii=False)
    if isinstance(node, Scalar) and node.text:
        return node.text
    return str(value).lower() if isinstance(value, bool) else str(value)


def find_mismatch(at: Spot) -> Finding:
    """Returns the finding for a value that is none of the forms its place allows."""
    form, node = at.form, at.node
    if form is None or form.anything:
        return Finding(
            "R199", "the value is not accepted here", "compare it with docs/reference/recipe.md", at.dotted, at.place
        )
    if at.path == ("recipe",):
        remedy = f"write `recipe: {form.words[0]}`, or use the version of dprecipe the recipe was written for"
        return Finding(
            "R111", f"this dprecipe reads {form.words[0]}, not {describe_node(node)}", remedy, at.dotted, at.place
        )
    if isinstance(node, Scalar) and node.value == BLANK:
        return Finding(
            "R103",
            f"left open: expected {describe_form(form)}",
            f"write {describe_form(form)}, from what is known of the subject and not measured on private records"
            + hint_at_size(at),
            at.dotted,
            at.place,
        )
    words_only = bool(form.words) and not (form.number or form.whole or form.text or form.boolean)
    if words_only and isinstance(node, Scalar) and node.value is not None:
        code_, message = "R106", f"expected {describe_form(form)}, got {describe_node(node)}"
    else:
        code_, message = "R103", f"expected {describe_form(form)}, got {describe_node(node)}"
    return Finding(code_, message, _remedy(at, form, node) + hint_at_size(at), at.dotted, at.place)


def hint_at_size(at: Spot) -> str:
    """Returns how to do without `data.size`, for its remedy, where its value names no number."""
    value = at.node.value if isinstance(at.node, Scalar) else None
    is_number = isinstance(at.node, Mapping | Sequence) or re.search("[0-9]", str(value))
    return "" if at.path != ("data", "size") or is_number else f"; if it is not known: {UNKNOWN_SIZE}"


def _remedy(at: Spot, form: Expect, node: Node | None) -> str:
    if isinstance(node, Scalar):
        return _scalar_remedy(at, form, node)
    if form.is_scalar and isinstance(node, Sequence) and len(node.items) == 1:
        return "remove the brackets"
    if form.blocks and isinstance(node, Sequence):
        inside = list_keys(form.blocks[0]) if len(form.blocks) == 1 else {}
        listed = [key for key, value in inside.items() if value.items is not None]
        if not listed or listed != list(inside):
            return "write its keys, not a list"
        whole = dump_inline(to_plain(node)) if all(isinstance(item, Scalar) for item in node.items) else "[…]"
        return f"write `{{{listed[0]}: {whole if len(whole) <= 60 else '[…]'}}}`"
    if form.items is not None and isinstance(node, Mapping):
        return "write a list: `[…]`, or one `- ` line for each item"
    return f"write {describe_form(form)}"


def _scalar_remedy(at: Spot, form: Expect, node: Scalar) -> str:
    value = node.value
    block = _write_block(at, form, node)
    if block is not None:
        return f"write a block: {block}"
    if at.path[-1:] == ("access",):
        return "write `private_internal`; `public` is for records whose publication harms nobody"
    if "none" in form.words and not value and not isinstance(value, str):
        return "write `none`"
    if value is None and node.text and form.text and isinstance(at.path[-1], int):
        return f'{IN_QUOTES} "{node.text}"'
    if value is None:
        if not form.is_scalar and form.blocks and not any(map(list_required, form.blocks)):
            return "write `{}` for its defaults, or remove the line"
        needed = any(str(at.path[-1]) in list_required(block) for block in at.owners)
        return f"give it a value: {describe_form(form)}" if needed else "give it a value, or remove the line"
    if isinstance(value, str):
        return _text_remedy(at, form, node, value)
    if isinstance(value, float) and form.whole and not form.number:
        whole = _write_whole(node.text, value)
        if whole:
            return f"write {whole}"
    written = node.text or str(value).lower()
    if form.text and (isinstance(at.path[-1], int) or not isinstance(value, bool)):
        return f'{IN_QUOTES} "{written}"'
    if form.items is not None and form.items.is_scalar and not form.is_scalar:
        quoted = form.items.text and not (form.items.number or form.items.whole)
        shown = f'"{written}"' if quoted else written
        return f"write it in brackets: [{shown}]"
    if isinstance(value, int) and not isinstance(value, bool) and form.boolean and value in (0, 1):
        return f"write {'true' if value else 'false'}"
    return f"write {describe_form(form)}"


_GROUPED = re.compile(r"[-+]?[1-9][0-9]{0,2}\.[0-9]{3}")
"""Digits that are a number with a fraction to YAML, and thousands to many people."""


def describe_readings(text: str) -> str:
    """Returns both readings of a whole number such as 10.000, whose point may stand between thousands; "" of others."""
    if not _GROUPED.fullmatch(text) or not float(text).is_integer():
        return ""
    whole, grouped = text.partition(".")[0], text.replace(".", "")
    return f"{whole} or {grouped}, whichever is meant: the point may stand between thousands"


def _write_whole(text: str, value: float) -> str:
    """Returns the whole number that was meant, with every digit that was written: a float holds 16 of them. Empty if
    there is none."""
    if readings := describe_readings(text):
        return readings
    if not value.is_integer():
        thousands = f"{text.replace('.', '')} if the point stands between thousands, and else a whole number"
        return thousands if _GROUPED.fullmatch(text) else ""
    try:
        return str(int(Decimal(text)))
    except (InvalidOperation, ValueError):
        return str(int(value))


def _write_block(at: Spot, form: Expect, node: Scalar) -> str | None:
    """Returns the block that a single value was meant as; None if that can't be known. A value that names a person's
    column never becomes `record`."""
    path, value, text = ".".join(map(str, at.path)), node.value, dump_inline(node.value)
    text = node.text if node.text and not isinstance(value, str) else text
    if form.number or form.whole or isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        if value in (*form.words, *list_kinds(form.blocks), "none") or suggest_word(value, list(map(str, form.words))):
            return None
        shape = _OF_TEXT.get(re.sub(r"^data\.(?:train|test|public)\.label$", "label", path))
        return None if shape is None or len(text) > 40 else shape.format(text)
    if path in ("data.test", "data.test.split") and not 0 < value < 1:
        return None
    shape = _OF_NUMBER.get(path)
    return None if shape is None else shape.format(text)


_OF_TEXT = {
    "data.unit": "{{column: {}, max_records: …}}",
    "data.test": "{{source: …, path: {}}}",
    "label": "{{column: {}, values: […]}}",
}
_OF_NUMBER = {
    "mechanism.clip": "{{norm: {}}}",
    "mechanism.noise": "{{family: gaussian, multiplier: {}}}",
    "mechanism.sampling": "{{scheme: poisson, batch_size: {}}}",
    "budget": "{{epsilon: {}, delta: …}}",
    "data.test": "{{split: {{by: unit, share: {}}}}}",
    "data.test.split": "{{by: unit, share: {}}}",
    "training.optimizer": "{{kind: sgd, lr: {}}}",
    "model.lora": "{{rank: {}}}",
}
"""The blocks that a single value was meant as, by path."""


def _text_remedy(at: Spot, form: Expect, node: Scalar, value: str) -> str:
    if form.number or form.whole:
        number = _read_number(value) if node.quoted else None
        if isinstance(number, float) and form.whole and not form.number:
            whole = _write_whole(value, number)
            return f"write {whole}" if whole else f"write {describe_form(form)}"
        if number is not None:
            return "remove the quotes"
        if form.whole and re.fullmatch(r"[-+]?[1-9][0-9]{0,2}(?:\.[0-9]{3}){2,}", value):
            return f"write {value.replace('.', '')}"
        for pattern, remedy in _NUMBER_LIKE if form.number else _NUMBER_LIKE[1:]:
            if re.fullmatch(pattern, value):
                return remedy
    unspaced = re.fullmatch(r"(?P<key>[A-Za-z_]\w*):(?P<value>\S.*)", value)
    if unspaced is not None and not node.quoted and any(unspaced["key"] in list_keys(block) for block in form.blocks):
        return f"write `{unspaced['key']}: {unspaced['value']}`, with a space after the colon"
    if form.boolean and value.lower() in ("yes", "on", "true", "y", "1"):
        return "write true"
    if form.boolean and value.lower() in ("no", "off", "false", "n", "0"):
        return "write false"
    words = [quote_word(word).strip("`") for word in list_offered(form.words)]
    close = suggest_word(value, words)
    if close is not None:
        return f"write `{close}`" + (", without quotes" if close == value and node.quoted else "")
    names = list_kinds(form.blocks)
    kind = value if value in names else None if form.number else suggest_word(value, list(names))
    if kind is not None:
        return f"write a block: {_example(names[kind], kind)}"
    if form.items is not None and form.items.text and not form.is_scalar:
        return f"write it in brackets: {dump_inline([value])}" if len(value) < 40 else "write a list"
    steps = list_keys(form.blocks[0]) if at.path[:2] == ("data", "preprocess") and form.blocks else {}
    name = value if value in steps else suggest_word(value, list(steps))
    if name is not None:
        step = steps[name]
        return f"write `- {name}: {{{'…' if any(map(list_required, step.blocks)) else ''}}}`"
    if form.blocks and words:
        return f"write {join_with_or([quote_word(word) for word in words])}, or the keys {_join_keys(form)}"
    if form.blocks and not form.is_scalar:
        tag = find_tag(form.blocks)
        known = f"; known: {', '.join(names)}" if names else ""
        return f"write a block with a `{tag}`{known}" if tag else f"write its keys: {_join_keys(form)}"
    return f"write {describe_form(form)}"


def _join_keys(form: Expect) -> str:
    return ", ".join(quote_word(key) for key in list_keys(form.blocks[0]))


def _example(block: type[Block], kind: str) -> str:
    form = Expect(blocks=(block,))
    more = ", …" if len(list_keys(form.blocks[0])) > 1 else ""
    return f"{{{find_tag(form.blocks)}: {kind}{more}}}"


def _read_number(text: str) -> int | float | None:
    try:
        number = resolve_scalar(text)
    except NotFiniteError:
        return None
    return number if isinstance(number, int | float) and not isinstance(number, bool) else None


def select_kind(at: Spot) -> Spot:
    """Returns the spot of a block's kind."""
    tag = find_tag(at.form.blocks) if at.form is not None else None
    if tag is None or not isinstance(at.node, Mapping) or tag not in at.node.entries:
        return at
    entry = at.node.entries[tag]
    blocks = at.form.blocks if at.form is not None else ()
    return Spot((*at.path, tag), entry.place, entry.value, None, at.node, blocks)


def report_unknown_kind(at: Spot) -> Finding:
    """Returns the finding for a block whose kind is not one of the known ones; all of them are listed."""
    tag, names = str(at.path[-1]), [str(word) for word in list_offered(list_kinds(at.owners))]
    known = ", ".join(quote_word(name) for name in names)
    value = at.node.value if isinstance(at.node, Scalar) else None
    if not isinstance(value, str):
        return Finding(
            "R104",
            f"expected the name of a {tag}, got {describe_node(at.node)}",
            f"choose one of {known}",
            at.dotted,
            at.place,
        )
    close = suggest_word(value, names)
    remedy = f"write `{close}`" if close else f"choose one of {known}"
    shown = json.dumps(value if len(value) <= 60 else value[:57] + "…", ensure_ascii=False)[1:-1]
    return Finding("R104", f"unknown {tag} `{shown}`; known: {known}", remedy, at.dotted, at.place)
