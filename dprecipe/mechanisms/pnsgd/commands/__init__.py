"""The command `dprecipe positions`: the guarantee of a record by its place in the order.

It tabulates and plots what `theory` computes, beside the bounds of the papers.
"""

from __future__ import annotations

from typing import Any

from dprecipe.contract.commands import Command


def schema_of_positions() -> dict[str, Any]:
    """Returns the JSON Schema of `dprecipe positions --format json`."""
    from dprecipe.contract.document import schema_of
    from dprecipe.mechanisms.pnsgd.commands.positions import Curve

    return schema_of(Curve)


COMMANDS = {
    "positions": Command(
        f"{__name__}.positions:show_positions",
        "Show the guarantee of each position in the file, by every bound; reads no data.",
    ),
}
SCHEMAS = {"positions.schema.json": schema_of_positions}
