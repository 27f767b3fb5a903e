"""The synthetic data of docs/tutorials/first-days.md, written into the folder where this is called:

    python examples/first_days/make.py [hospital] [transactions] [images] [reviews]

Nobody's records: all is drawn from a seed. Each set has what real ones have: gaps, several rows a person, odd names.
"""

from __future__ import annotations

import csv
import sys
from datetime import date, timedelta
from pathlib import Path

import numpy as np

WARDS = ["Chirurgie", "Innere Medizin", "Geburtshilfe", "HNO", "Kinder- und Jugendmedizin"]
TRADES = ["grocery", "fuel", "travel", "electronics", "restaurant", "pharmacy"]
PRAISE, BLAME = ["wonderful", "loved", "great", "moving", "sharp"], ["dull", "boring", "awful", "clumsy", "wasted"]
OTHERS = ["the film", "its plot", "an actor", "the music", "this evening", "we saw", "after all", "on Sunday"]


def make_hospital(folder: Path, rows: int = 6000) -> None:
    """`visits.csv`: several visits of a patient, dates, German wards; gaps as `NA`, as `<0.5` and empty."""
    random = np.random.default_rng(1)
    with (folder / "visits.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(["patient", "geboren", "aufnahme", "station", "notfall", "troponin", "hb", "wiederaufnahme"])
        for patient, times in enumerate(random.choice([1, 2, 3, 4], size=rows // 2, p=[0.4, 0.3, 0.2, 0.1])):
            born = date(1930, 1, 1) + timedelta(days=int(random.integers(0, 30000)))
            for _ in range(times):
                admitted = date(2022, 1, 1) + timedelta(days=int(random.integers(0, 730)))
                troponin = float(random.gamma(1.5, 4.0))
                emergency = random.random() < 0.3
                years = (admitted - born).days / 365
                risk = 0.06 * (years - 55) + 0.25 * (troponin - 6) + emergency + random.normal()
                told = f"{troponin:.1f}" if troponin >= 0.5 else "<0.5"
                writer.writerow(
                    [
                        f"P{patient:05d}",
                        born.strftime("%d.%m.%Y"),
                        admitted.strftime("%d.%m.%Y"),
                        random.choice(WARDS),
                        "ja" if emergency else "nein",
                        "NA" if random.random() < 0.1 else told,
                        "" if random.random() < 0.15 else f"{random.normal(13.5, 1.5):.1f}",
                        "ja" if risk > 0 else "nein",
                    ]
                )


def make_transactions(folder: Path, rows: int = 500_000) -> None:
    """`transactions/part-0.parquet` …: amounts, times, booleans and a column of text, several of an account."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(2)
    (folder / "transactions").mkdir(exist_ok=True)
    parts = 5
    for part in range(parts):
        count = rows // parts
        amount = random.lognormal(3.0, 1.2, count)
        trade = random.integers(0, len(TRADES), count)
        online = random.random(count) < 0.4
        fraud = (np.log(amount) + 1.5 * online + (trade == 3) + random.normal(0, 1.0, count)) > 5.5
        texts = np.char.add(np.array(TRADES)[trade], np.char.add(" shop ", random.integers(0, 40, count).astype(str)))
        table = {
            "account": part * 4000 + random.integers(0, 4000, count),
            "booked": np.datetime64("2024-01-01", "s")
            + random.integers(0, 365 * 86400, count).astype("timedelta64[s]"),
            "amount": amount.round(2),
            "online": online,
            "purpose": texts,
            "fraud": fraud,
        }
        pq.write_table(pa.table(table), folder / "transactions" / f"part-{part}.parquet")


def make_images(folder: Path) -> None:
    """`numerals/train/zero/0001.png` …: class folders of handwritten numerals."""
    from PIL import Image
    from sklearn.datasets import load_digits

    images, labels = load_digits(n_class=3, return_X_y=True)
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / "numerals" / ("train" if number < 420 else "test") / ["zero", "one", "two"][label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels.reshape(8, 8) * 15.9).astype(np.uint8)).resize((16, 16)).save(
            place / f"{number:04d}.png"
        )


def make_reviews(folder: Path, rows: int = 4000) -> None:
    """`reviews/data/train-00000-of-00001.parquet` …: as a snapshot of a Hugging Face data set lies on a disk."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(3)
    (folder / "reviews" / "data").mkdir(parents=True, exist_ok=True)
    for split, count in (("train", rows), ("test", rows // 4)):
        labels = random.integers(0, 2, count)
        texts = [
            " ".join(random.permutation([*random.choice(OTHERS, 5), *random.choice(PRAISE if label else BLAME, 2)]))
            for label in labels
        ]
        table = pa.table({"text": texts, "label": labels})
        pq.write_table(table, folder / "reviews" / "data" / f"{split}-00000-of-00001.parquet")


MAKERS = {"hospital": make_hospital, "transactions": make_transactions, "images": make_images, "reviews": make_reviews}

if __name__ == "__main__":
    for name in sys.argv[1:] or MAKERS:
        MAKERS[name](Path.cwd())
