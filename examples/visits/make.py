"""Synthetic hospital visits: this script writes `visits.csv` beside itself. No row is of a real person.

    python examples/visits/make.py

Every value is drawn from a fixed seed with `random.random` alone, whose sequence is the same in every Python version.
A readmission within 30 days is likelier after a long stay, after an emergency, with earlier visits, at a higher age and
with a low haemoglobin.
"""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

PATIENTS = 900
COLUMNS = (
    "patient_id",
    "age",
    "ward",
    "emergency",
    "days_in_hospital",
    "earlier_visits",
    "haemoglobin",
    "discharged_to",
    "readmitted",
)
WARDS = ("cardiology", "geriatrics", "internal", "surgery")
VISITS = (0.4, 0.7, 0.9, 1.0)
"""The shares of patients with at most one, two, three and four visits."""


def make_rows(seed: int = 20) -> list[tuple[object, ...]]:
    """Returns a row for each visit, the visits of one patient in their order."""
    draw = random.Random(seed).random
    rows: list[tuple[object, ...]] = []
    for patient in range(PATIENTS):
        age = 20 + int(75 * max(draw(), draw()))
        frail = draw() * age / 95
        past = int(6 * draw() * frail)
        share = draw()
        for visit in range(1 + sum(share > limit for limit in VISITS)):
            emergency = draw() < 0.2 + 0.5 * frail
            days = 1 + int(-(2 + 10 * frail) * math.log(1 - draw()))
            haemoglobin = 14.5 - 4 * frail + 3 * (draw() + draw() - 1)
            ward = "geriatrics" if age > 70 and draw() < 0.5 else WARDS[int(4 * draw())]
            home = draw() < 1.1 - 0.7 * frail
            earlier = past + visit
            score = 0.6 * earlier + 0.12 * days + 1.2 * emergency - 0.5 * (haemoglobin - 12.5) + 0.02 * (age - 60) - 3.0
            readmitted = draw() < 1 / (1 + math.exp(-1.5 * score))
            rows.append(
                (
                    f"P{patient + 1:04d}",
                    age,
                    ward,
                    "yes" if emergency else "no",
                    min(days, 60),
                    earlier,
                    f"{haemoglobin:.1f}",
                    "home" if home else "care",
                    "yes" if readmitted else "no",
                )
            )
    return rows


def write(path: Path) -> None:
    """Writes the rows as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(make_rows())


if __name__ == "__main__":
    write(Path(__file__).parent / "visits.csv")
