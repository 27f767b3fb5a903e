"""The worked example of docs/how-to/account.md: a year of a hospital's data set, three teams, one account. Nobody's
records: all is drawn from a seed.

    python examples/account/year.py FOLDER

writes into the folder, which must be new: `admissions.csv`, the account, the runs of the year, and the account's public
statement; and prints the table of the page.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

import dprecipe
from dprecipe.account.facts import new_facts
from dprecipe.account.faults import AccountRefused
from dprecipe.account.opening import create_account, open_account
from dprecipe.account.statement import export_statement
from dprecipe.privacy.adjacency import Neighbouring

HERE = Path(__file__).parent
YEAR = [
    ("readmission", 1.0),
    ("stay", 1.0),
    ("triage", 1.5),
    ("readmission", 0.5),
    ("stay", 1.0),
    ("triage", 1.0),
    ("readmission", 1.0),
    ("triage", 1.5),
    ("stay", 0.5),
    ("readmission", 1.5),
    ("triage", 1.5),
    ("stay", 0.25),
]
"""Who asks for what, in order. Each looks at what the runs before have released."""


def make_admissions(path: Path, patients: int = 3000) -> None:
    """Up to three admissions of a patient."""
    random = np.random.default_rng(19)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["patient_id", "age", "emergency", "troponin", "readmitted", "long_stay", "intensive_care"])
        for patient in range(patients):
            age = float(random.uniform(18, 95))
            for _ in range(int(random.integers(1, 4))):
                emergency, troponin = random.random() < 0.3, float(min(random.gamma(1.5, 4.0), 30))
                risk = 0.05 * (age - 60) + 0.2 * (troponin - 6) + emergency
                labels = ["yes" if risk + random.normal() > at else "no" for at in (0, 0.5, 1.5)]
                writer.writerow(
                    [f"P{patient:05d}", round(age), "yes" if emergency else "no", f"{troponin:.1f}", *labels]
                )


def live(folder: Path) -> Iterator[tuple[str, ...]]:
    """The year: a row for each request, what became of it and what the account counts after it."""
    folder.mkdir(parents=True)
    for file in HERE.glob("*.yaml"):
        shutil.copy(file, folder)
    make_admissions(folder / "admissions.csv")
    facts = new_facts("admissions", 3.6, 1e-5, "patient_id", Neighbouring.ADD_OR_REMOVE_ONE, max_epsilon_per_run=1.5)
    create_account(folder / "admissions.db", facts).close()
    for number, (team, epsilon) in enumerate(YEAR, 1):
        plan = dprecipe.plan(dprecipe.load(folder / f"{team}.yaml", {"budget.epsilon": epsilon}))
        try:
            done = dprecipe.run(plan, folder / "runs" / str(number), data_root=folder)
            dprecipe.verify(done.release)
            verdict = done.stop_reason
        except AccountRefused as refused:
            verdict = f"refused: {refused.remedy.partition(':')[0]}"
        with closing(open_account(folder / "admissions.db")) as account:
            state = account.state()
        yield str(number), team, f"{epsilon:g}", verdict, f"{state.epsilon:.2f}", f"{state.odometer:.2f}"
    with closing(open_account(folder / "admissions.db")) as account, account.snapshot() as books:
        (folder / "statement.json").write_text(json.dumps(export_statement(books)), encoding="utf-8")


def main(folder: str) -> None:
    head = ("run", "team", "asks for ε", "what becomes of it", "ε counted", "odometer")
    for row in (head, ("---",) * len(head), *live(Path(folder))):
        sys.stdout.write(f"| {' | '.join(row)} |\n")


if __name__ == "__main__":
    main(sys.argv[1])
