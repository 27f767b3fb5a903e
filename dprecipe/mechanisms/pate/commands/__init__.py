"""The commands `dprecipe votes`, a forecast on simulated votes, and `dprecipe teachers`, which trains some teachers.

`votes` simulates, plans and draws figures. It never reads private votes, and nothing it finds enters a certificate.
`teachers` writes private files, and spends nothing: only a run puts queries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dprecipe.cli.arguments import DataRoot, Overrides, RecipePath


def forecast_votes(
    recipe: RecipePath,
    overrides: Overrides = None,
    agreement: Annotated[
        tuple[float, float],
        typer.Option(metavar="LOW HIGH", help="Shares of the teachers that agree on a query; uniform between them."),
    ] = (0.5, 1.0),
    seed: Annotated[int, typer.Option(help="Seed of the simulated votes.")] = 0,
    output: Annotated[str, typer.Option("--format", help="text or json")] = "text",
    out: Annotated[Path | None, typer.Option(help="A folder for votes.json and votes.svg; replaced there.")] = None,
) -> None:
    """Simulate votes to choose a PATE recipe's threshold and noise; reads no data."""
    from dprecipe.mechanisms.pate.commands.votes import forecast_votes

    forecast_votes(recipe, overrides or (), agreement, seed, output, out)


def train_teachers(
    recipe: RecipePath,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the votes go: private, never to be published.")],
    overrides: Overrides = None,
    shard: Annotated[str, typer.Option(metavar="I/N", help="Which part of the teachers to train.")] = "1/1",
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Only make the folder with its key, to be copied to every machine.")
    ] = False,
    data_root: DataRoot = None,
) -> None:
    """Train a shard of a PATE recipe's teachers, for `run --teachers`; spends nothing."""
    from dprecipe.mechanisms.pate.commands.teachers import train_teachers

    train_teachers(recipe, out, overrides or (), shard, prepare, data_root)


def schema_of_votes() -> dict[str, Any]:
    """The JSON Schema of `dprecipe votes --format json`."""
    from dprecipe.contract.document import schema_of
    from dprecipe.mechanisms.pate.commands.forecast_document import Forecast

    return schema_of(Forecast)


COMMANDS = {"votes": forecast_votes, "teachers": train_teachers}
SCHEMAS = {"votes.schema.json": schema_of_votes}
