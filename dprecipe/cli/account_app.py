"""`dprecipe account …`: the arguments of its commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dprecipe.cli.arguments import MaxMemory, MaxSeconds, Overrides, RecipePath
from dprecipe.cli.guard import guard_faults

account_app = typer.Typer(
    help="The account of a data set: what all runs on it have spent, and may still spend, together.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Address = Annotated[
    str,
    typer.Argument(metavar="ACCOUNT", help="A file, or postgresql://USER@HOST/DATABASE#NAME.", show_default=False),
]
Output = Annotated[str, typer.Option("--format", help="text or json")]


@account_app.command("create")
@guard_faults
def create_account(
    address: Address,
    epsilon: Annotated[float, typer.Option(help="The cap on everything ever released, together.")],
    delta: Annotated[float, typer.Option(help="The cap's δ.")],
    unit: Annotated[str, typer.Option(help="Who is protected, as in recipes: record, or a column of names.")],
    neighbouring: Annotated[
        str, typer.Option(help="add_or_remove_one, replace_one or zero_out_one")
    ] = "add_or_remove_one",
    max_per_run: Annotated[float | None, typer.Option(help="The largest ε that one run may claim.")] = None,
    name: Annotated[str | None, typer.Option(help="The account's name; by default that of the file.")] = None,
    slots_epsilon: Annotated[float | None, typer.Option(help="The part of --epsilon for groups of slots.")] = None,
    slots_delta: Annotated[float | None, typer.Option(help="The part of --delta for groups of slots.")] = None,
) -> None:
    """Make the account of a data set, once. Its cap is never raised, and it has no refresh."""
    from dprecipe.cli.account import create

    create(address, epsilon, delta, unit, neighbouring, max_per_run, name, (slots_epsilon, slots_delta))


@account_app.command("reserve")
@guard_faults
def reserve_slots(
    address: Address,
    slots: Annotated[str, typer.Option(metavar="NAME", help="The group's name; recipes name it in budget.slots.")],
    recipes: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RECIPE…", help="Recipes whose events become the slots.", show_default=False),
    ] = None,
    times: Annotated[int, typer.Option(min=1, help="Number of runs of each recipe.")] = 1,
    delta: Annotated[float | None, typer.Option(help="The group's δ; by default all δ left for slots.")] = None,
    gaussian: Annotated[
        float | None,
        typer.Option(metavar="E", help="Instead of recipes: Gaussian runs without sampling, up to this ε."),
    ] = None,
) -> None:
    """Reserve a group of slots: events that are fixed now, and cost less together than runs chosen one by one."""
    from dprecipe.cli.account_slots import reserve_group

    reserve_group(address, slots, recipes or (), times, delta, gaussian)


@account_app.command("show")
@guard_faults
def show_account(
    address: Address,
    output: Output = "text",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Also draw the ε spent over the runs; the file is replaced.")
    ] = None,
) -> None:
    """Show what is counted, what is left, and the latest runs."""
    from dprecipe.cli.account_show import show

    show(address, output, plot)


@account_app.command("history")
@guard_faults
def show_history(address: Address, output: Output = "text") -> None:
    """Every run of the account, in order."""
    from dprecipe.cli.account_show import history

    history(address, output)


@account_app.command("export")
@guard_faults
def export_account(
    address: Address,
    public: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the public statement to this new file.")
    ] = None,
    head: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the account's head to this file; an older head is replaced."),
    ] = None,
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY", help="Sign the head with this Ed25519 private key.")
    ] = None,
) -> None:
    """Write what strangers verify (--public), or what shows a roll-back (--head)."""
    from dprecipe.cli.account import export

    export(address, public, head, sign)


@account_app.command("verify")
@guard_faults
def verify_account(
    subject: Annotated[str, typer.Argument(metavar="ACCOUNT|STATEMENT", show_default=False)],
    head: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Require that the account extends this head.")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="Require the head's signature by this Ed25519 public key.")
    ] = None,
    max_seconds: MaxSeconds = 120,
    max_memory: MaxMemory = 4,
) -> None:
    """Recompute an account, or its public statement, from all entries."""
    from dprecipe.cli.account import verify

    verify(subject, head, public_key, max_seconds, max_memory)


@account_app.command("plan")
@guard_faults
def plan_recipe(
    recipe: RecipePath,
    overrides: Overrides = None,
    runs: Annotated[
        int | None, typer.Option(min=1, help="Solve for this number of runs; for a tenth of what is left by default.")
    ] = None,
) -> None:
    """Show what a recipe would leave of its account, how many such runs fit, and the budget for a number of runs."""
    from dprecipe.cli.account_runs import plan_in_account

    plan_in_account(recipe, overrides or (), runs)


@account_app.command("settle")
@guard_faults
def settle_run(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)],
) -> int:
    """Tell the account what a run has drawn, and write the release that waited for that; draws nothing."""
    from dprecipe.cli.account_runs import settle

    return settle(run)


@account_app.command("test")
@guard_faults
def test_account(address: Address) -> None:
    """Test the connection: read, lock, write and take back; nothing is left behind."""
    from dprecipe.cli.account import test_connection

    test_connection(address)
