"""Keys that have another place, another spelling or another name here: where their values belong.

No remedy weakens what the author has written: a value whose right place has one already never replaces a stricter one
(`stricter.py`), and no remedy changes the mechanism or declares records public."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dprecipe.faults import Finding
from dprecipe.language.words import join_with_or
from dprecipe.recipe.stricter import LARGER, SMALLER, find_exactly, settle_double, show_value
from dprecipe.recipe.suggest import generalise_path, is_read, suggest_word
from dprecipe.recipe.synonyms import Synonym
from dprecipe.recipe.vocabulary import (
    Expect,
    Known,
    Spot,
    can_hold,
    describe_form,
    find_form,
    find_tag,
    has_place,
    list_every_key,
    list_keys,
    list_kinds,
    list_offered,
    quote_word,
)
from dprecipe.text.dump import dump_inline
from dprecipe.text.tree import Mapping, Node, Scalar, to_plain
from dprecipe.text.tree import Sequence as Items

LOGGERS = ("csv", "tensorboard", "mlflow", "wandb")
MEANING = ("mechanism", "data.train", "data.test", "data.public")
"""Blocks whose kind no remedy changes: the guarantee, and where records come from."""


def report_misspelt(at: Spot, meant: str, tree: Mapping) -> Finding:
    """Returns the finding for a slip of the pen."""
    path = ".".join(map(str, (*at.path[:-1], meant)))
    double = settle_double(tree, path, at.node) if at.node is not None else None
    there = "" if double is None else ", which is already there"
    return Finding(
        "R101", f"unknown key; did you mean `{meant}`{there}?", double or f"write `{meant}`", at.dotted, at.key
    )


def report_misplaced(at: Spot, known: Sequence[Known], tree: Mapping) -> Finding:
    """Returns the finding for a key of the language that this block does not have."""
    here, key = ".".join(map(str, at.path[:-1])), str(at.path[-1])
    same = [place.kind for place in known if place.path == ".".join(generalise_path(at.path)) and place.kind]
    if same:
        kinds = join_with_or([quote_word(kind) for kind in same])
        own = _kind(at)
        remedy = f"remove it: this is {own}" if here in MEANING and own else f"remove it, or write {kinds}"
        return Finding("R101", f"unknown key; `{key}` belongs to {kinds}", remedy, at.dotted, at.key)
    block = f" of {here}" if here else ""
    places = [place for place in known if can_move(place, at, tree)]
    shaped = next((place.path for place in known if has_place(tree, place.path)), None)
    if not places and shaped is not None:
        message = f"unknown key{block}; it belongs under {quote_word(shaped.rpartition('.')[0] or 'the top')}"
        form = find_form(tree, shaped) or Expect()
        remedy = f"remove it: {shaped} takes {describe_form(form) or 'another value'}"
        return Finding("R101", message, remedy, at.dotted, at.key)
    if not places:
        whose = known[0].path.rpartition(".")[0] or "the top"
        kind = f" of {quote_word(known[0].kind)}" if known[0].kind else ""
        message = f"unknown key{block}; only {quote_word(whose)}{kind} has such a key"
        return Finding("R101", message, "remove it: this recipe has no place for it", at.dotted, at.key)
    places = [place for place in places if _has_parent(tree, place.path)] or places
    parents = " or ".join(quote_word(place.path.rpartition(".")[0] or "the top") for place in places)
    message = f"unknown key{block}; it belongs under {parents}"
    return Finding("R101", message, _move(at, [place.path for place in places], tree), at.dotted, at.key)


def _move(at: Spot, paths: Sequence[str], tree: Mapping) -> str:
    """Returns the remedy for a value that belongs elsewhere."""
    doubles = [None if at.node is None else settle_double(tree, path, at.node) for path in paths]
    free = [path for path, double in zip(paths, doubles, strict=True) if double is None]
    if not free:
        return doubles[0] or "remove it"
    return f"move it to {' or '.join(free)}"


def _kind(at: Spot) -> str:
    tag = find_tag(at.owners)
    if tag is None or not isinstance(at.owner, Mapping) or tag not in at.owner.entries:
        return ""
    return f"`{tag}: {show_value(at.owner.entries[tag].value)}`"


def can_move(place: Known, at: Spot, tree: Mapping) -> bool:
    """Returns True if a value of this shape can stand at a place of this recipe, and its mechanism reads it there."""
    steps = place.path.split(".")
    form = find_form(tree, place.path)
    above = find_exactly(tree, ".".join(steps[:-1])) if len(steps) > 1 else tree
    spot = Spot(tuple(steps), tree.place, at.node, None, tree, ())
    return (
        form is not None
        and not isinstance(above, Scalar)
        and (at.node is None or can_hold(form, at.node))
        and is_read(spot, steps[-1], tree)
    )


def _has_parent(tree: Mapping, path: str) -> bool:
    """Returns True if the recipe has the block that a path is in."""
    above = path.rpartition(".")[0]
    return not above or isinstance(find_exactly(tree, above), Mapping | Items)


def report_synonym(at: Spot, other: Synonym, known: Sequence[str], tree: Mapping) -> tuple[Finding, str]:
    """Returns the finding for another tool's name, and the path that it has here. `known`: keys that the block itself
    could have."""
    key, block = str(at.path[-1]), ".".join(map(str, at.path[:-1]))
    path, remedy = other.path, other.remedy
    if path.startswith("."):
        path, remedy = f"{block}{path}", _rename(at, other, known, tree)
    else:
        here = ".".join(filter(None, (block, path.rpartition(".")[2])))
        if other.scalar and isinstance(at.node, Scalar):
            path = other.scalar
        if path and path.rpartition(".")[2] in known and here != path:
            path, remedy = here, f"write `{path.rpartition('.')[2]}`"  # what the block itself can have is nearest
        elif path:
            remedy = _carry_over(at, other, path, tree)
    name = path.rpartition(".")[2]
    if path and key == name:
        parent = quote_word(path.rpartition(".")[0] or "the top")
        message = f"unknown key{f' of {block}' if block else ''}; it belongs under {parent}"
        return Finding("R101", message, remedy, at.dotted, at.key), path
    if not path and any(known.path.rpartition(".")[2] == key for known in list_every_key()):
        return Finding("R101", f"unknown key{f' of {block}' if block else ''}", remedy, at.dotted, at.key), path
    what = f"this is `{path}` here" if path else "a recipe has no such setting"
    ours = at.path[:-1] == ("mechanism",) and any(known.path == at.dotted for known in list_every_key())
    whose = "another mechanism's" if ours else "another tool's"
    return Finding("R112", f"`{key}` is {whose} name; {what}", remedy, at.dotted, at.key), path


def _rename(at: Spot, other: Synonym, known: Sequence[str], tree: Mapping) -> str:
    """Returns the remedy for another name of a key of the same block."""
    name = other.path[1:]
    block = ".".join(map(str, at.path[:-1]))
    if other.remedy.startswith("remove it") or at.node is None:
        return other.remedy
    if other.value == "range" and name in known:
        ends = _two_numbers(at.node)
        return f"write `min: {ends[0]}` and `max: {ends[1]}`" if ends else other.remedy
    if name not in known:
        kind = _kind(at)
        return settle_double(tree, f"{block}.{name}", at.node) or f"remove it: {kind or 'the block'} has no `{name}`"
    if other.value == "marks" and isinstance(at.node, Scalar):
        return f"write `marks: [{show_value(at.node)}]`, with `missing`, the constant that a gap counts as"
    return other.remedy


def _two_numbers(node: Node) -> tuple[str, str] | None:
    """Returns the ends of an interval as written."""
    values = list(node.items) if isinstance(node, Items) else []
    if isinstance(node, Mapping):
        values = [node.entries[name].value for name in ("min", "max") if name in node.entries]
    if len(values) != 2 or not all(isinstance(value, Scalar) and _is_number(value) for value in values):
        return None
    return show_value(values[0]), show_value(values[1])


def _is_number(node: Node) -> bool:
    return isinstance(node, Scalar) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def _carry_over(at: Spot, other: Synonym, path: str, tree: Mapping) -> str:
    """Returns the remedy that says what becomes of a value, which belongs at another path."""
    node = at.node
    if not has_place(tree, path) and not path.startswith(("meta", "extends")):
        block = re.match(r"write ([a-z_.]+):", other.remedy)
        keeps = other.mechanism or ", with " in other.remedy or (block is not None and has_place(tree, block[1]))
        return (
            other.remedy if keeps or other.remedy.startswith("remove it") else f"remove it: {_explain_lack(tree, path)}"
        )
    if node is None:
        return other.remedy
    writer = _WRITERS.get("same" if path == other.scalar and path != other.path else other.value)
    remedy = writer(at, other, path, tree) if writer is not None else None
    if remedy is not None:
        return remedy
    there = find_exactly(tree, path)
    form = find_form(tree, path)
    if there is None and at.path[-1] == path.rpartition(".")[2] and form is not None and can_hold(form, node):
        return f"move it to {path}"
    if there is None or other.remedy.startswith("remove it"):
        return other.remedy
    if path in SMALLER | LARGER and other.remedy.startswith("set "):
        return f"{other.remedy}; the {'smaller' if path in SMALLER else 'larger'} of the two"
    shown = show_value(there)
    said = f"{path} is {shown} already" if shown and isinstance(there, Scalar) else f"{path} is there already"
    return f"remove it: {said}; or {other.remedy}" if other.remedy != f"set {path}" else f"remove it: {said}"


def _explain_lack(tree: Mapping, path: str) -> str:
    """Says which block of this recipe has no such key."""
    steps = path.split(".")
    count = next(
        count for count in range(len(steps) - 1, -1, -1) if not count or has_place(tree, ".".join(steps[:count]))
    )
    return f"this {'.'.join(steps[:count]) or 'recipe'} has no `{steps[count]}`"


def _write_same(at: Spot, other: Synonym, path: str, tree: Mapping) -> str | None:
    """Writes the value as it is, or our word for it."""
    form, node = find_form(tree, path), at.node
    if form is None or node is None:
        return None
    shown = show_value(node)
    if isinstance(node, Scalar) and isinstance(node.value, str) and not form.text:
        word = suggest_word(node.value, _words_at(tree, path, form))
        if word is None:
            return settle_double(tree, path, node)
        node, shown = Scalar(word, node.place), word
        if find_exactly(tree, path) is None:
            return f"set {path} to {word}"
    if not shown or not (can_hold(form, node) or node is not at.node):
        return None
    double = settle_double(tree, path, node)
    if double is not None:
        return double
    start = f"set {path}"
    rest = other.remedy.removeprefix(start) if other.remedy.startswith(start) else ""
    more = rest if rest.startswith((":", ",")) else ""
    return f"{start} to {shown}" + ("" if more.startswith(", or `auto`") else more)


def _words_at(tree: Mapping, path: str, form: Expect) -> list[str]:
    """Returns the words that can stand at a path: of a block's kind, those of all kinds."""
    above = find_form(tree, path.rpartition(".")[0])
    if above is not None and find_tag(above.blocks) == path.rpartition(".")[2]:
        return [str(word) for word in list_offered(list_kinds(above.blocks))]
    return [quote_word(word).strip("`") for word in list_offered(form.words)]


def _write_switch(at: Spot, other: Synonym, path: str, tree: Mapping) -> str | None:
    off = isinstance(at.node, Scalar) and (at.node.value in (False, None) or str(at.node.value).lower() in OFF)
    if off:
        return f"remove it: it is off unless {path} says otherwise"
    there = find_exactly(tree, path)
    return None if there is None else f"remove it: {path} is {show_value(there)} already"


OFF = frozenset({"no", "none", "off", "32", "32.0", "fp32", "float32", "32-true", "false"})


def _write_share(at: Spot, other: Synonym, path: str, tree: Mapping) -> str | None:
    """Writes the share of records to hold out."""
    share = _find_share(at.node)
    if find_exactly(tree, path) is not None:
        return f"remove it: {path} says what is held out"
    if not share:
        return None
    return f"write {path}: {{split: {{by: unit, share: {share}}}}}, or declare records of another file as {path}"


SHARES = ("test", "test_size", "share", "size", "fraction", "ratio", "split", "percent", "proportion", "probabilities")


def _find_share(node: Node | None) -> str:
    """Returns the share that is held out, as written: the last of a list, which is the test set's."""
    if isinstance(node, Items) and node.items:
        return _find_share(node.items[-1])
    if isinstance(node, Mapping):
        return next((_find_share(node.entries[key].value) for key in SHARES if key in node.entries), "")
    if isinstance(node, Scalar) and isinstance(node.value, float) and 0 < node.value < 1:
        return show_value(node)
    return ""


def _write_label(at: Spot, other: Synonym, path: str, tree: Mapping) -> str | None:
    if find_exactly(tree, path) is not None:
        return f"remove it: {path} is there already"
    name = _find_name(at.node)
    return (
        f"write {path}: {{column: {name}, values: […]}}, with the values in the order of the classes" if name else None
    )


def _find_name(node: Node | None) -> str:
    """Returns the column that a value names."""
    if isinstance(node, Items) and len(node.items) == 1:
        return _find_name(node.items[0])
    if isinstance(node, Mapping):
        return next((_find_name(node.entries[key].value) for key in ("column", "name") if key in node.entries), "")
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return show_value(node)
    return ""


def _write_unit(at: Spot, other: Synonym, path: str, tree: Mapping) -> str | None:
    """Writes the column of whom a run protects; never `record` instead of a person."""
    node, there = at.node, find_exactly(tree, path)
    name = _find_name(node)
    if there is not None and to_plain(there) != "record":
        return f"remove it: {path} says who is protected"
    if name and suggest_word(name, ["record"]) != "record":
        instead = "" if there is None else ", instead of `record`, which protects less"
        return f"write {path}: {{column: {name}, max_records: …}}{instead}"
    return (
        None
        if node is None
        else settle_double(tree, path, node) or (None if name != "record" else f"move it to {path}")
    )


def _write_betas(at: Spot, other: Synonym, path: str, tree: Mapping) -> str | None:
    ends = _two_numbers(at.node) if at.node is not None else None
    if ends is None:
        return None
    if not has_place(tree, path):
        return "remove it: beta1 and beta2 are of `kind: adam`"
    return f"write `beta1: {ends[0]}` and `beta2: {ends[1]}`"


def _write_loggers(at: Spot, other: Synonym, path: str, tree: Mapping) -> str | None:
    if find_exactly(tree, path) is not None:
        return f"remove it: {path} is there already"
    named = [str(at.path[-1]), *_words(at.node)]
    kinds = [word.lower() for word in named if word.lower() in LOGGERS]
    if any(word.lower() in (*OFF, "all") for word in named) or not kinds:
        return f"remove it, or {other.remedy}"
    more = ""
    if kinds[0] == "wandb" and isinstance(at.node, Mapping) and "project" in at.node.entries:
        more = f", project: {show_value(at.node.entries['project'].value)}"
    if _hides_units(tree):
        return "remove it: the time of a logged step would reveal how many units train, which this recipe keeps secret"
    return f"write {path}: [{{kind: {kinds[0]}{more}}}]; only numbers that the guarantee covers are logged"


def _hides_units(tree: Mapping) -> bool:
    """Returns True if the number of training units is secret (P195)."""
    split, bound = find_exactly(tree, "data.test.split"), find_exactly(tree, "data.size.max")
    return isinstance(split, Mapping) or bound is not None


def _words(node: Node | None) -> list[str]:
    if isinstance(node, Items):
        return [word for item in node.items for word in _words(item)]
    return [node.value] if isinstance(node, Scalar) and isinstance(node.value, str) else []


def _write_said(at: Spot, other: Synonym, path: str, tree: Mapping) -> str | None:
    there = find_exactly(tree, path)
    return None if there is None else f"remove it: {path} is {show_value(there)}"


def _write_meta(at: Spot, other: Synonym, path: str, tree: Mapping) -> str | None:
    return f"move it to {path}.{at.path[-1]}, where anything may stand"


def _write_file(at: Spot, other: Synonym, path: str, tree: Mapping) -> str | None:
    names = [word for word in _words(at.node) if word != "_self_"]
    if len(names) != 1 or find_exactly(tree, path) is not None:
        return f"remove it; {other.remedy}"
    file = names[0] if names[0].endswith((".yaml", ".yml")) else f"{names[0]}.yaml"
    return f"remove it; to lay this recipe over another one, write `extends: {dump_inline(file)}`"


_WRITERS: dict[str, Callable[[Spot, Synonym, str, Mapping], str | None]] = {
    "same": _write_same,
    "switch": _write_switch,
    "share": _write_share,
    "label": _write_label,
    "unit": _write_unit,
    "betas": _write_betas,
    "logger": _write_loggers,
    "said": _write_said,
    "meta": _write_meta,
    "file": _write_file,
}


def remaining_keys(at: Spot) -> list[str]:
    """Returns the keys the block could still have."""
    names = [key for block in at.owners for key in list_keys(block)]
    if at.path[:-1] == ():
        names.append("extends")
    written = written_keys(at)
    return [name for name in dict.fromkeys(names) if name not in written]


def written_keys(at: Spot) -> list[str]:
    """Returns the keys of the language the block has already."""
    names = {key for block in at.owners for key in list_keys(block)}
    return [key for key in at.owner.entries if key in names] if isinstance(at.owner, Mapping) else []
