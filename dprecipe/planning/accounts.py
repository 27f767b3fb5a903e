"""Checks of the account that a run is charged to (`budget.account`), and of how the recipe fits that account.

`check_account` needs the recipe alone, `check_file` looks at an account that is a file, without changing it; a run
applies the others to the account that it opened, wherever that is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from dprecipe.contract.plan import Plan
from dprecipe.data.schema import AnySource
from dprecipe.faults import Fault, Finding, PlanRefused, Severity
from dprecipe.planning.paths import VARIABLE
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.recipe.read import read_source
from dprecipe.recipe.root import Recipe

if TYPE_CHECKING:
    from dprecipe.account.facts import AccountFacts

KEY = "budget.account"


def check_account(recipe: Recipe) -> Iterator[Finding]:
    """Checks that an account is a file or the address of a server (passwords: R113), that fixed noise is charged to
    none, and that a paid score reads only people whom the account counts (P230)."""
    name = recipe.budget.account
    if name is None:
        return
    yield from _check_name(name)
    if recipe.runtime.insecure is not None:
        yield Finding(
            "P206",
            "runtime.insecure fixes sampling and noise: nothing that such a run draws protects anybody, so no account "
            "can hold what it costs",
            "remove runtime.insecure; or remove budget.account, and train on records that need no protection",
            "runtime.insecure",
        )
    yield from _check_score(recipe)


def _check_score(recipe: Recipe) -> Iterator[Finding]:
    """Checks that a paid score reads records of the account's people, whose data are identified by whole training
    files."""
    train, test = recipe.data.train, recipe.data.test_source
    if recipe.tuning is None or recipe.tuning.score.noise_multiplier is None or test is None:
        return
    if test.access == "public" or _list_files(test) <= _list_files(train):
        return
    yield Finding(
        "P230",
        "every run pays for a score on data.test, which is not read from the files of data.train: the account is that "
        "of the people in data.train, and the account of those in data.test is not charged",
        "take data.test from the files of data.train: data.test: {split: …}, or other records of the same path; or "
        "leave out budget.account, and keep count of both yourself",
        "tuning.score.noise_multiplier",
    )


def _list_files(source: AnySource) -> set[tuple[str, str]]:
    """Returns the files and tables that a source reads, whichever part of a file it takes."""
    return {(origin, "" if source.part else table) for origin, table in source.origins}


def _check_name(name: str) -> Iterator[Finding]:
    from dprecipe.account.address import SCHEMES, split_scheme

    remedy = "write the path of a file, relative to the recipe, or postgresql://USER@HOST/DATABASE"
    try:
        scheme, _ = split_scheme(name)
    except ValueError:  # its text may quote a password
        yield Finding("R321", "this address can't be read", remedy, KEY)
        return
    variable = VARIABLE.search(name)
    if "://" in name and scheme not in SCHEMES:
        yield Finding("R321", f"an account is a file or at postgresql://…, not at {scheme}://", remedy, KEY)
    elif variable is not None:
        yield Finding("R321", f"`{variable[0]}` is not replaced: recipes have no variables", remedy, KEY)


def check_facts(recipe: Recipe, facts: AccountFacts) -> Iterator[Finding]:
    """Checks that the account is for the recipe's unit and relation, and large enough for its budget."""
    from dprecipe.privacy.filters.cost import NotInAccount, check_relation

    budget, unit = recipe.budget, recipe.data.unit_name
    if unit != facts.unit:
        yield Finding(
            "P200",
            f"account {facts.name} protects each {facts.unit}, and this recipe each {unit}: neither implies the other",
            f"name an account of this unit, or set data.unit so that it is {facts.unit}, if each is to be protected",
            "data.unit" if "unit" in recipe.data.model_fields_set else KEY,
        )
    elif _makes_unit(recipe):
        yield Finding(
            "P200",
            f"account {facts.name} protects each {facts.unit}, and the query makes that column from others: another "
            "thing may be protected under the same name",
            f"select the column as it is, by its own name: SELECT {recipe.data.unit_column}, …; or declare "
            f"data.train.rows: declared, if each row of the result depends on rows of one {unit} alone",
            "data.train.query",
        )
    try:
        check_relation(Neighbouring(budget.neighbouring), facts.neighbouring)
    except NotInAccount:
        yield Finding(
            "P201",
            f"account {facts.name} is for {facts.neighbouring.value}, and this recipe's guarantee is for "
            f"{budget.neighbouring}: that bounds nothing under the account's relation",
            f"name an account for {budget.neighbouring}, or set budget.neighbouring to {facts.neighbouring.value}",
            "budget.neighbouring" if "neighbouring" in budget.model_fields_set else KEY,
        )
    if budget.epsilon != "auto" and budget.epsilon > facts.epsilon:
        yield Finding(
            "P202",
            f"the budget of ε = {budget.epsilon:g} is more than account {facts.name} has for all its runs together: "
            f"{facts.epsilon:g}",
            f"set budget.epsilon below {facts.epsilon:g}; dprecipe account plan shows what is left",
            "budget.epsilon",
        )
    limit = facts.max_epsilon_per_run
    if limit is not None and budget.epsilon != "auto" and budget.epsilon > limit:
        yield Finding(
            "P203",
            f"account {facts.name} allows a run at most ε = {limit:g}, and the budget is {budget.epsilon:g}",
            f"set budget.epsilon to at most {limit:g}",
            "budget.epsilon",
        )


def _makes_unit(recipe: Recipe) -> bool:
    """Returns True if a query may make the unit's column from others, and no author declares what its rows are."""
    column, train = recipe.data.unit_column, recipe.data.train
    if column is None or train.keeps_column(column):
        return False
    return train.selection is None or not train.selection.declared


def check_solved(plan: Plan, facts: AccountFacts) -> Iterator[Finding]:
    """Checks a solved plan: its events have a cost under the account's relation, and a run whose ε is `auto` fits the
    account's limits."""
    from dprecipe.privacy.filters.cost import NotInAccount, cost_of

    try:
        cost = cost_of(plan.events, facts.neighbouring, facts.cap.orders)
        if all(map(math.isinf, cost.rdp)):
            raise NotInAccount("its cost is infinite at every order of the account", "Plan more noise.")
    except NotInAccount as refused:
        yield Finding("P204", f"account {facts.name} can't hold this run: {refused.message}", refused.remedy, KEY)
    limit = facts.epsilon if facts.max_epsilon_per_run is None else facts.max_epsilon_per_run
    if plan.guarantee.epsilon > limit:
        yield Finding(
            "P203" if facts.max_epsilon_per_run is not None else "P202",
            f"this plan spends ε = {plan.guarantee.epsilon:g}, and account {facts.name} allows a run at most {limit:g}",
            "raise the noise, or shorten the run",
            KEY,
        )


def check_plan(plan: Plan, facts: AccountFacts) -> None:
    """Checks that the plan fits the account, whatever was spent.

    Raises:
        PlanRefused: it does not; each finding is at its place in the recipe.
    """
    loaded = read_source(plan.source)
    findings = [*check_facts(loaded.recipe, facts)] or [*check_solved(plan, facts)]
    if findings:
        raise PlanRefused(loaded.located(findings))


def check_file(recipe: Recipe, file: str | Path) -> list[Finding]:
    """Checks that the recipe in `file` fits an account that is a file. Finds nothing for an account on a server, which
    is not asked, or where the recipe's own text is wrong."""
    name = recipe.budget.account
    if name is None or "://" in name or any(True for _ in check_account(recipe)):
        return []
    folder = Path(file).resolve().parent
    if not (folder / name).exists():
        return [_missing(name)]
    from dprecipe.account.opening import open_account

    try:
        with closing(open_account(name, folder, read_only=True)) as account:
            return [*check_facts(recipe, account.facts)]
    except Fault as fault:
        return [Finding("R323", f"the account can't be read: {fault.message}", fault.remedy or "restore it", KEY)]


def _missing(name: str) -> Finding:
    return Finding(
        "R322",
        f"there is no account at {name}",
        "correct the path, or create it: dprecipe account create",
        KEY,
        severity=Severity.WARNING,
    )
