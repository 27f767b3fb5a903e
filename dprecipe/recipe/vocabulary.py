"""The keys and values that a recipe may have, read from its models, and the search for the one that an error is about.

Messages never lag behind the models.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from dprecipe.faults import Place
from dprecipe.language.base import Block
from dprecipe.language.words import join_with_or
from dprecipe.recipe.root import Recipe, choose_root
from dprecipe.text.merge import TAGS
from dprecipe.text.tree import Mapping, Node, Path, Scalar, Sequence, child_node, key_place

Word = str | int | bool

REFUSED = frozenset({"gradients", "position", "clean_sum", "realised_batch", "released", "plain"})
"""Words that are refused with a reason; no message suggests them."""


@dataclass(frozen=True, slots=True)
class Expect:
    """Every form a value may take at one place of a recipe."""

    words: tuple[Word, ...] = ()
    number: bool = False
    whole: bool = False
    text: bool = False
    day: bool = False
    boolean: bool = False
    nothing: bool = False
    anything: bool = False
    blocks: tuple[type[Block], ...] = ()
    items: Expect | None = None
    values: Expect | None = None

    @property
    def is_scalar(self) -> bool:
        """True if a single value can stand here."""
        return bool(self.words) or self.number or self.whole or self.text or self.day or self.boolean


@dataclass(frozen=True, slots=True)
class Known:
    """A key of the language: its dotted path, and the kind of block it belongs to (`family: student_t`)."""

    path: str
    kind: str


def expect_form(annotation: Any) -> Expect:
    """Returns the forms an annotation of a recipe's model allows."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return expect_form(args[0])
    if origin is Literal:
        return Expect(words=args)
    if origin in (Union, types.UnionType):
        return _either([expect_form(arg) for arg in args])
    if origin is tuple:
        return Expect(items=expect_form(args[0]))
    if origin is dict:
        return Expect(values=expect_form(args[1]))
    if annotation is Any:
        return Expect(anything=True)
    if isinstance(annotation, type) and issubclass(annotation, Block):
        return Expect(blocks=(annotation,))
    simple = {
        float: Expect(number=True),
        int: Expect(whole=True),
        str: Expect(text=True),
        date: Expect(day=True),
        bool: Expect(boolean=True),
        type(None): Expect(nothing=True),
    }
    if annotation not in simple:
        raise TypeError(f"no recipe can hold {annotation!r}")
    return simple[annotation]


def _either(forms: list[Expect]) -> Expect:
    return Expect(
        words=tuple(word for form in forms for word in form.words),
        number=any(form.number for form in forms),
        whole=any(form.whole for form in forms),
        text=any(form.text for form in forms),
        day=any(form.day for form in forms),
        boolean=any(form.boolean for form in forms),
        nothing=any(form.nothing for form in forms),
        anything=any(form.anything for form in forms),
        blocks=tuple(block for form in forms for block in form.blocks),
        items=next((form.items for form in forms if form.items), None),
        values=next((form.values for form in forms if form.values), None),
    )


@cache
def list_keys(block: type[Block]) -> dict[str, Expect]:
    """Returns the keys of a block, as they are written."""
    return {field.alias or name: expect_form(field.annotation) for name, field in block.model_fields.items()}


@cache
def list_required(block: type[Block]) -> frozenset[str]:
    """Returns the required keys of a block."""
    return frozenset(field.alias or name for name, field in block.model_fields.items() if field.is_required())


def find_tag(blocks: tuple[type[Block], ...]) -> str | None:
    """Returns the key that says which of the blocks is meant (`kind`, `family`, …); None for a block without one."""
    for tag in TAGS:
        if blocks and all(tag in list_keys(block) and list_keys(block)[tag].words for block in blocks):
            return tag
    return None


def list_kinds(blocks: tuple[type[Block], ...]) -> dict[str, type[Block]]:
    """Returns the blocks by their kind."""
    tag = find_tag(blocks)
    if tag is None:
        return {}
    return {str(word): block for block in blocks for word in list_keys(block)[tag].words}


def choose_block(blocks: tuple[type[Block], ...], node: Node | None) -> tuple[type[Block], ...]:
    """Returns the blocks a node can be, by the kind it states; all of them where it states none that is known."""
    blocks = drop_other_forms(blocks, node)
    tag = find_tag(blocks)
    if tag is None or not isinstance(node, Mapping) or tag not in node.entries:
        return blocks
    value = node.entries[tag].value
    block = list_kinds(blocks).get(str(value.value)) if isinstance(value, Scalar) else None
    return blocks if block is None else (block,)


def drop_other_forms(blocks: tuple[type[Block], ...], node: Node | None) -> tuple[type[Block], ...]:
    """Returns the blocks with kinds, or those without, where there are both (sources, and a split).

    A node with a block under a required key of those without is one of them.
    """
    kinds = [block for block in blocks if find_tag((block,)) is not None]
    if not 0 < len(kinds) < len(blocks):
        return blocks
    others = tuple(block for block in blocks if block not in kinds)
    keys = {key for block in others for key in list_required(block) if list_keys(block)[key].blocks}
    entries = node.entries if isinstance(node, Mapping) else {}
    stated = any(key in entries and not _is_word(entries[key].value) for key in keys)
    return others if stated else tuple(kinds)


def _is_word(node: Node) -> bool:
    return isinstance(node, Scalar) and isinstance(node.value, str)


def expect_below(form: Expect | None, node: Node | None, step: str | int) -> Expect | None:
    """Returns what can stand under a key or a position of a node of this form; None if nothing can."""
    if form is None:
        return None
    for block in choose_block(form.blocks, node):
        if step in list_keys(block):
            return list_keys(block)[str(step)]
    return form.values if isinstance(step, str) else form.items


def has_place(tree: Mapping, dotted: str) -> bool:
    """Returns True if a path of the language can stand in a recipe, by the kinds that its blocks state."""
    return find_form(tree, dotted) is not None


def find_form(tree: Mapping, dotted: str) -> Expect | None:
    """Returns what can stand at a path of the language, by the kinds that the recipe's blocks state; None: nothing."""
    form: Expect | None = Expect(blocks=(choose_root(tree),))
    node: Node | None = tree
    for name in dotted.split("."):
        step = int(name) if name.isdecimal() else name
        if isinstance(node, Mapping if isinstance(step, int) else Sequence):
            return None
        form = expect_below(form, node, step)
        node = None if node is None else child_node(node, step)
    return form


def list_shared_keys(tree: Mapping, path: tuple[str, ...], over: Mapping) -> frozenset[str]:
    """Returns the keys of the block at a path that the kind stated by an override takes as well, with values of their
    form.
    """
    form: Expect | None = Expect(blocks=(choose_root(tree),))
    node: Node | None = tree
    for name in path:
        step = int(name) if isinstance(node, Sequence) else name
        form, node = expect_below(form, node, step), None if node is None else child_node(node, step)
    blocks = () if form is None else choose_block(form.blocks, over)
    if len(blocks) != 1 or not isinstance(node, Mapping):
        return frozenset()
    fresh = list_keys(blocks[0])
    return frozenset(
        key for key, entry in node.entries.items() if key in fresh.keys() - set(TAGS) and _fits(entry.value, fresh[key])
    )


def can_hold(form: Expect, node: Node) -> bool:
    """Returns True if a form takes a value of this shape: a block, a list, a number, a word or text."""
    if form.anything:
        return True
    if isinstance(node, Mapping):
        return bool(form.blocks or form.values)
    if isinstance(node, Sequence):
        return form.items is not None
    if isinstance(node.value, str):
        return form.text or form.day or bool(form.words)
    if isinstance(node.value, bool):
        return form.boolean or node.value in form.words
    return form.number or form.whole or node.value in form.words


def _fits(node: Node, form: Expect) -> bool:
    if isinstance(node, Mapping):
        return bool(form.blocks or form.values)
    return form.items is not None if isinstance(node, Sequence) else form.is_scalar


@cache
def list_every_key() -> tuple[Known, ...]:
    """Returns all keys of the language, in the order of the models."""
    return tuple(_keys_below(Expect(blocks=(Recipe,)), "", 0))


def _keys_below(form: Expect, prefix: str, depth: int) -> Iterator[Known]:
    if depth > 10:  # a block that holds itself
        return
    for block in form.blocks:
        tag = find_tag((block,))
        kind = f"{tag}: {list_keys(block)[tag].words[0]}" if tag and len(form.blocks) > 1 else ""
        for key, value in list_keys(block).items():
            yield Known(f"{prefix}{key}", kind)
            yield from _keys_below(value, f"{prefix}{key}.", depth + 1)
    if form.items:
        yield from _keys_below(form.items, f"{prefix}0.", depth + 1)
    if form.values:
        yield from _keys_below(form.values, f"{prefix}<name>.", depth + 1)


def describe_form(form: Expect) -> str:
    """Returns the forms in words: "a number or `auto`"."""
    parts = []
    if form.number or form.whole:
        parts.append("a number" if form.number else "a whole number")
    if form.boolean:
        parts.append("true or false")
    if form.text:
        parts.append("text")
    if form.day:
        parts.append("a day, such as 2024-05-17")
    parts += [quote_word(word) for word in list_offered(form.words)]
    if form.blocks or form.values:
        parts.append(_describe_block(form))
    if form.items:
        parts.append(f"a list of {_plural(form.items)}")
    return join_with_or(parts)


def _plural(form: Expect) -> str:
    if form.blocks or form.values:
        return "blocks"
    return "numbers" if form.number else "whole numbers" if form.whole and not form.text else describe_form(form)


def _describe_block(form: Expect) -> str:
    tag = find_tag(form.blocks)
    if tag is not None:
        return f"a block with a `{tag}`"
    if len(form.blocks) == 1:
        return "a block with " + ", ".join(quote_word(key) for key in list_keys(form.blocks[0]))
    return "a block"


def list_offered(words: Iterable[Word]) -> list[Word]:
    """Returns the words that a message may suggest."""
    return [word for word in words if word not in REFUSED]


def quote_word(word: Word) -> str:
    """Returns a word of the language in backticks."""
    return f"`{str(word).lower() if isinstance(word, bool) else word}`"


@dataclass(frozen=True, slots=True)
class Spot:
    """One place of a recipe: what stands there, what could, and the block around it.

    `node` is None for a key that is missing; `key` is then the key of the block that misses it.
    """

    path: Path
    key: Place
    node: Node | None
    form: Expect | None
    owner: Node
    owners: tuple[type[Block], ...]

    @property
    def dotted(self) -> str:
        return ".".join(map(str, self.path))

    @property
    def place(self) -> Place:
        """The value where it is a single one, else its key."""
        return self.node.place if isinstance(self.node, Scalar) and self.node.value is not None else self.key


def find_spot(tree: Mapping, location: Path, *, missing: bool = False, document: type[Block] | None = None) -> Spot:
    """Returns the spot of a location, whose last step is a key that is not there if `missing`. `document`: what the
    text is, if it is no recipe.

    A location also holds the tags of the unions it went through; a step that is no key of the node at hand is
    such a tag and is skipped (no tag of a recipe equals a sibling's key).
    """
    path: Path = ()
    node: Node = tree
    root = choose_root(tree) if document is None else document
    form: Expect | None = Expect(blocks=(root,))
    here = Spot(path, tree.place, node, form, tree, (root,))
    for position, step in enumerate(location):
        under = child_node(node, step)
        last = position == len(location) - 1
        if under is None and not (missing and last and isinstance(node, Mapping)):
            continue
        inside = expect_below(form, node, step)
        owners = choose_block(form.blocks, node) if form is not None else ()
        place = key_place(node, step) or here.key
        path = (*path, step)
        here = Spot(path, place, under, inside, node, owners)
        if under is not None:
            node, form = under, inside
    return here
