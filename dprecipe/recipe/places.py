"""Search for the key or value that a validator's location is about."""

from __future__ import annotations

from dataclasses import dataclass

from dprecipe.faults import Place
from dprecipe.language.base import Block
from dprecipe.recipe.root import choose_root
from dprecipe.recipe.vocabulary import Expect, choose_block, expect_below
from dprecipe.text.tree import Mapping, Node, Path, Scalar, child_node, key_place


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
