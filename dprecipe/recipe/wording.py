"""The errors of the validator, as findings for the author of the recipe.

A misspelt kind does not hide the other errors of its block. No sentence of pydantic reaches a user: each error is
worded here from the value at its place and the values that are allowed there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from collections.abc import Mapping as AnyMapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from dprecipe.faults import Finding, Place
from dprecipe.language.base import NAMES_ALIKE, Block
from dprecipe.language.words import join_with_or
from dprecipe.recipe.mismatch import (
    IN_QUOTES,
    describe_node,
    find_mismatch,
    hint_at_size,
    report_unknown_kind,
    select_kind,
)
from dprecipe.recipe.root import choose_root
from dprecipe.recipe.screening import screen_recipe
from dprecipe.recipe.suggest import find_misspelt_tag, guessable, suggest_word
from dprecipe.recipe.unknown import report_unknown_keys
from dprecipe.recipe.vocabulary import (
    Expect,
    Spot,
    describe_form,
    drop_other_forms,
    find_spot,
    find_tag,
    list_keys,
    list_kinds,
    list_offered,
    quote_word,
)
from dprecipe.text.dump import dump_inline
from dprecipe.text.spelling import nearest_word
from dprecipe.text.tree import Entry, Mapping, Node, Path, Scalar, Sequence, to_plain

ROUNDS = 5


def explain_errors(error: ValidationError, tree: Mapping) -> list[Finding]:
    """Returns every finding about a tree that did not validate.

    The validator does not look inside a block of an unknown kind. If the kind is only misspelt, the block is validated
    again as the kind that was meant."""
    findings, handled = screen_recipe(tree)
    results = [*findings, *word_error(error, tree, handled)]
    for _ in range(ROUNDS):
        repaired = _repair_blocks(error, tree)
        if not repaired:
            break
        for path, block in repaired.items():
            tree = _insert_block(tree, path, block)
        try:
            choose_root(tree).model_validate_json(json.dumps(to_plain(tree)))
            break
        except ValidationError as next_error:
            error = next_error
        # Outside the repaired blocks the errors are the same as before.
        insides = tuple(".".join(map(str, path)) + "." for path in repaired)
        results += [finding for finding in word_error(error, tree, handled) if finding.path.startswith(insides)]
    return results


def _repair_blocks(error: ValidationError, tree: Mapping) -> dict[Path, Mapping]:
    """Returns every block of a misspelt kind, with the kind that was meant."""
    repaired: dict[Path, Mapping] = {}
    for item in error.errors(include_url=False, include_input=False):
        if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
            at = find_spot(tree, item["loc"])
            block = _repair_block(at)
            if block is not None:
                repaired[at.path] = block
    return repaired


def _repair_block(at: Spot) -> Mapping | None:
    at = _take_form(at)
    tag = find_tag(at.form.blocks) if at.form is not None else None
    if tag is None or at.form is None or not isinstance(at.node, Mapping):
        return None
    written = find_misspelt_tag(at) if tag not in at.node.entries else tag
    if written is None:
        return None
    value = at.node.entries[written].value
    name = value.value if isinstance(value, Scalar) else None
    names = list_kinds(at.form.blocks)
    kind = name if name in names else suggest_word(name, list(names)) if isinstance(name, str) else None
    if kind is None:
        return None
    entries = {
        (tag if key == written else key): Entry(
            entry.place, Scalar(kind, value.place) if key == written else entry.value
        )
        for key, entry in at.node.entries.items()
    }
    return Mapping(entries, at.node.place)


def _insert_block(tree: Mapping, path: Path, block: Mapping) -> Mapping:
    inserted = _replace_node(tree, path, block)
    return inserted if isinstance(inserted, Mapping) else tree


def _replace_node(node: Node, path: Path, value: Node) -> Node:
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(node, Mapping):
        entries = dict(node.entries)
        entry = entries[str(step)]
        entries[str(step)] = Entry(entry.place, _replace_node(entry.value, rest, value))
        return Mapping(entries, node.place)
    if isinstance(node, Sequence):
        items = list(node.items)
        items[int(step)] = _replace_node(items[int(step)], rest, value)
        return Sequence(tuple(items), node.place)
    return node


Context = AnyMapping[str, Any]
Writer = Callable[[Spot, Context], Finding]


def word_error(error: ValidationError, tree: Mapping, handled: frozenset[Place]) -> list[Finding]:
    """Returns every error as a finding. Places in `handled` have a finding already."""
    spots: dict[str, list[Spot]] = {"missing": [], "extra_forbidden": []}
    findings: list[Finding] = []
    items = error.errors(include_url=False, include_input=False)
    locations = [item["loc"] for item in items]
    unquoted: dict[Path, list[Finding]] = {}
    unknown_blocks: list[tuple[str | int, ...]] = []
    for item in items:
        kind, context = item["type"], item.get("ctx", {})
        at = find_spot(tree, item["loc"], missing=kind == "missing")
        if _is_handled(at, handled) or (kind == "too_short" and _inside(item["loc"], locations)):
            continue
        if kind in spots and at.path:
            spots[kind].append(at)
            continue
        finding = _write(kind, at, context)
        if finding.remedy.startswith(IN_QUOTES) and isinstance(at.path[-1], int):
            unquoted.setdefault(at.path[:-1], []).append(finding)
            continue
        findings.append(finding)
        # The keys of a block of unknown kind are unknown, too, and those of one that was taken for another kind.
        if finding.code == "R104" and finding.remedy.replace("write ", "").replace("`", "'") not in str(context):
            unknown_blocks.append(at.path[:-1])
    findings += [_quote_all(found, find_spot(tree, path).node) for path, found in unquoted.items()]
    missing = [at for at in spots["missing"] if at.path[:-1] not in unknown_blocks]
    extra = [at for at in spots["extra_forbidden"] if at.path[:-1] not in unknown_blocks]
    named, result = report_unknown_keys(extra, missing, tree)
    findings += named
    findings += [_missing(at) for at in missing if at.path not in result]
    return findings


def _quote_all(found: list[Finding], listed: Node | None) -> Finding:
    """Returns the findings of the values of one list, which all need quotes, as one."""
    first, *others = found
    if not others or not isinstance(listed, Sequence):
        return first
    scalars = [item for item in listed.items if isinstance(item, Scalar)]
    texts = [item.value if isinstance(item.value, str) else item.text for item in scalars]
    message = f"{first.message}; so {'is' if len(others) == 1 else 'are'} {len(others)} more of the list"
    return replace(first, message=message, remedy=f"write them in quotes: {dump_inline(texts)}")


def word_document_error(error: ValidationError, tree: Mapping, document: type[Block]) -> list[Finding]:
    """Returns every error of a text that is no recipe, such as a policy, as a finding."""
    findings = []
    items = error.errors(include_url=False, include_input=False)
    locations = [item["loc"] for item in items]
    for item in items:
        kind = item["type"]
        if kind == "too_short" and _inside(item["loc"], locations):
            continue
        at = find_spot(tree, item["loc"], missing=kind == "missing", document=document)
        if kind == "missing":
            findings.append(_missing(at))
        elif kind == "extra_forbidden":
            findings.append(_unknown(at))
        elif not _is_handled(at, frozenset()):
            findings.append(_write(kind, at, item.get("ctx", {})))
    return findings


def _unknown(at: Spot) -> Finding:
    known = [key for block in at.owners for key in list_keys(block)]
    key = str(at.path[-1])
    close = nearest_word(key, guessable(key, known))
    if close is not None:
        return Finding("R101", f"unknown key; did you mean `{close}`?", f"write `{close}`", at.dotted, at.key)
    listed = ", ".join(f"`{name}`" for name in known)
    return Finding(
        "R101", f"unknown key {json.dumps(key[:60])}", f"remove it; the block can have {listed}", at.dotted, at.key
    )


def _inside(listed: Path, locations: Iterable[Path]) -> bool:
    """Returns True if items of a list are wrong: the validator counts only the valid ones."""
    return any(location != listed and location[: len(listed)] == listed for location in locations)


def _is_handled(at: Spot, handled: frozenset[Place]) -> bool:
    if at.node is None:
        return False
    return at.key in handled or at.node.place in handled or (isinstance(at.node, Scalar) and at.node.broken)


def _take_form(at: Spot) -> Spot:
    """Returns the spot with only those forms of a block that its keys allow."""
    if at.form is None or not isinstance(at.node, Mapping):
        return at
    return replace(at, form=replace(at.form, blocks=drop_other_forms(at.form.blocks, at.node)))


def _write(kind: str, at: Spot, context: Context) -> Finding:
    at = _take_form(at)
    tagged = at.form is not None and find_tag(at.form.blocks) is not None
    if kind == "union_tag_not_found" and tagged:
        return _no_kind(at)
    if kind == "union_tag_invalid" and tagged and isinstance(at.node, Mapping):
        return report_unknown_kind(select_kind(at))
    if kind == "literal_error" and at.path and at.path[-1] == find_tag(at.owners):
        return report_unknown_kind(at)
    writer = _WRITERS.get(kind)
    if writer is not None:
        return writer(at, context)
    return find_mismatch(at)


def _no_kind(at: Spot) -> Finding:
    form = at.form or Expect()
    tag, names = find_tag(form.blocks) or "kind", list_offered(list_kinds(form.blocks))
    meant = find_misspelt_tag(at)
    path = f"{at.dotted}.{tag}"
    choice = join_with_or([quote_word(name) for name in names])
    if meant is not None and isinstance(at.node, Mapping):
        place = at.node.entries[meant].place
        return Finding("R101", f"unknown key; did you mean `{tag}`?", f"write `{tag}`", f"{at.dotted}.{meant}", place)
    return Finding("R105", f"the block does not say its {tag}", f"add `{tag}`: {choice}", path, at.key)


def _missing(at: Spot) -> Finding:
    key = str(at.path[-1])
    if at.owners and key == find_tag(at.owners):
        choice = join_with_or([quote_word(word) for word in list_keys(at.owners[0])[key].words])
        return Finding("R105", f"the block does not say its {key}", f"add `{key}`: {choice}", at.dotted, at.key)
    what = describe_form(at.form) if at.form is not None else "a value"
    return Finding("R102", "the key is missing", f"add `{key}`: {what}{hint_at_size(at)}", at.dotted, at.key)


def _bound(words: str) -> Callable[[str], Writer]:
    def of(name: str) -> Writer:
        def write(at: Spot, context: Context) -> Finding:
            short, limit = f"{context[name]:g}", context[name]
            bound = f"{words} {short if float(short) == limit else limit}"
            value = describe_node(at.node) if isinstance(at.node, Scalar) else "this"
            return Finding("R107", f"{value} is not {bound}", f"write a number {bound}", at.dotted, at.place)

        return write

    return of


def _count(at: Spot, context: Context) -> Finding:
    if isinstance(at.node, Scalar):
        text = "it is empty" if at.node.value == "" else "the text has the wrong length"
        need = _describe_count(context, "character")
        return Finding("R108", f"{text}; expected {need}", f"write {need}", at.dotted, at.place)
    need = _describe_count(context, "item")
    has = len(at.node.items) if isinstance(at.node, Sequence) else context.get("actual_length", 0)
    return Finding(
        "R108", f"has {has} item{'' if has == 1 else 's'}; expected {need}", f"give it {need}", at.dotted, at.place
    )


def _describe_count(context: Context, noun: str) -> str:
    minimum, maximum = context.get("min_length"), context.get("max_length")
    number, prefix = (minimum, "at least") if minimum is not None else (maximum, "at most")
    return f"{prefix} {number} {noun}{'' if number == 1 else 's'}"


def _pattern(at: Spot, context: Context) -> Finding:
    if at.path[:1] == ("keys",):  # of a policy
        return Finding(
            "R109",
            "a key is named by the SHA-256 of its public part: 64 hexadecimal digits",
            "take it from: openssl pkey -in key.pem -pubout -outform DER | sha256sum",
            at.dotted,
            at.place,
        )
    return Finding(
        "R109",
        "a name begins with a letter or digit; it has at most 100 letters, digits, `.`, `_` and `-`",
        "write a name such as `mnist-private`",
        at.dotted,
        at.place,
    )


def _alike(at: Spot, context: Context) -> Finding:
    return Finding(
        "R202",
        f"two names look equal, and both are {context['name']!r}",
        "write each name once; blanks around a name, and the form of an accent, do not count",
        at.dotted,
        at.key,
    )


_WRITERS: dict[str, Writer] = {
    "greater_than": _bound("greater than")("gt"),
    "greater_than_equal": _bound("at least")("ge"),
    "less_than": _bound("less than")("lt"),
    "less_than_equal": _bound("at most")("le"),
    "too_short": _count,
    "too_long": _count,
    "string_too_short": _count,
    "string_too_long": _count,
    "string_pattern_mismatch": _pattern,
    NAMES_ALIKE: _alike,
}
