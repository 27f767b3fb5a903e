"""The commands `dprecipe noise` and `dprecipe codebook`.

They compare noise families at a recipe's budget, and make codebooks from public gradients. They use the accounting of
the mechanism and change nothing in it.
"""

from __future__ import annotations

from typing import Any

from dprecipe.contract.commands import Command


def schema_of_noise() -> dict[str, Any]:
    """Returns the JSON Schema of `dprecipe noise --format json`."""
    from dprecipe.contract.document import schema_of
    from dprecipe.mechanisms.encoded.commands.noise_document import Comparison

    return schema_of(Comparison)


COMMANDS = {
    "noise": Command(
        f"{__name__}.noise:compare_noise", "Compare all noise families at the recipe's budget; reads no data."
    ),
    "codebook": Command(
        f"{__name__}.codebook:write_codebook", "Make a codebook from the gradients of public held-out records."
    ),
}
SCHEMAS = {"noise.schema.json": schema_of_noise}
