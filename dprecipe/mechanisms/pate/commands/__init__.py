"""The commands `dprecipe votes`, a forecast on simulated votes, and `dprecipe teachers`, which trains some teachers.

`votes` simulates, plans and draws figures. It never reads private votes, and nothing it finds enters a certificate.
`teachers` writes private files, and spends nothing: only a run puts queries.
"""

from __future__ import annotations

from typing import Any

from dprecipe.contract.commands import Command


def schema_of_votes() -> dict[str, Any]:
    """The JSON Schema of `dprecipe votes --format json`."""
    from dprecipe.contract.document import schema_of
    from dprecipe.mechanisms.pate.commands.forecast_document import Forecast

    return schema_of(Forecast)


COMMANDS = {
    "votes": Command(
        f"{__name__}.votes:forecast_votes",
        "Simulate votes to choose a PATE recipe's threshold and noise; reads no data.",
    ),
    "teachers": Command(
        f"{__name__}.teachers:train_teachers",
        "Train a shard of a PATE recipe's teachers, for `run --teachers`; spends nothing.",
    ),
}
SCHEMAS = {"votes.schema.json": schema_of_votes}
