"""Measures a spam classifier that learned from synthetic rows alone: F1 of spam on true rows that nothing saw.

Each run trains `recipes/best/sms-rows.yaml`, writes rows of its release, half of each label, and fits a logistic
regression on logarithms of counts: of words, single digits and signs, hashed. Classes weigh as their shares, which are
declared public (`SHARE`). `--choose` holds out a sixth of the training rows and tests on them; else the last 1,000 rows
are the test. Results are appended to `results-rows.jsonl`.

    python benchmarks/accuracy/row_decoder.py runs/row_decoder --chat WHEEL   # its tokenizer.json into DIR/row_decoder
    python benchmarks/accuracy/sms_rows.py --data-root DIR [--choose] [--epsilon E …] [--seed N …] [--set KEY=VALUE …]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score

sys.path.insert(0, str(Path(__file__).parents[1]))

from lab import HELD_OUT, hold_out
from language_sms import TRAINED, read_rows, share_of

import dprecipe
from dprecipe.data.records import Records
from dprecipe.models.synthetic import RecordWriter
from dprecipe.training.program.gather import gather_records

RECIPE = Path(__file__).parents[2] / "recipes/best/sms-rows.yaml"
SHARE = 0.13
"""Share of spam among messages: declared public. A noisy count of labels would tell as much for little budget."""
RESULTS = Path(__file__).with_name("results-rows.jsonl")
TOKEN = r"[a-z]+|\d|[^\sa-z\d]"
"""A token of a text in small letters. A number is as many tokens as it has digits, so that a new one still counts."""
Rows = tuple[list[str], list[str]]
"""Labels and texts."""


def count_tokens(texts: Sequence[str]) -> csr_matrix:
    """Returns logarithms of counts, a row for each text."""
    hashed = HashingVectorizer(n_features=2**16, alternate_sign=False, norm=None, token_pattern=TOKEN)
    return hashed.transform(texts).log1p()


def classify(train: Rows, test: Rows) -> dict[str, float]:
    """Returns F1 of spam and AUC."""
    said, truth = (np.array([label == "spam" for label in rows[0]]) for rows in (train, test))
    weights = np.where(said, SHARE / said.mean(), (1 - SHARE) / (1 - said.mean()))
    model = LogisticRegression(C=0.1, max_iter=1000).fit(count_tokens(train[1]), said, sample_weight=weights)
    chances = model.predict_proba(count_tokens(test[1]))[:, 1]
    return {"f1": float(f1_score(truth, chances > 0.5)), "auc": float(roc_auc_score(truth, chances))}


def split_rows(path: Path, *, choose: bool) -> tuple[Rows, Rows]:
    """Returns true rows to train on and to test by. `choose`: those of `hold_out`, by which settings are chosen."""
    labels, texts = read_rows(path)
    order = np.random.default_rng(0).permutation(TRAINED)
    held = np.sort(order[: TRAINED // HELD_OUT]) if choose else np.arange(TRAINED, len(labels))
    kept = np.setdiff1d(np.arange(TRAINED), held)
    first, second = (([labels[i] for i in part], [texts[i] for i in part]) for part in (kept, held))
    return first, second


def run_one(root: Path, settings: Mapping[str, object], rows: int, *, choose: bool) -> dict[str, object]:
    """Trains a decoder, writes rows, learns from them, and tests. `rows`: how many, of both labels together."""
    began = time.process_time()
    plan = dprecipe.plan(dprecipe.load(RECIPE, settings))
    train = gather_records(plan, root).prepared("train")
    assert isinstance(train, Records)
    if choose:
        train, _ = hold_out(train)
        size = {"data.size": len(train), "data.train.records": [0, len(train)]}
        plan = dprecipe.plan(dprecipe.load(RECIPE, {**settings, **size}))
    with tempfile.TemporaryDirectory() as folder:
        done = dprecipe.run(plan, Path(folder) / "run", data_root=root, train=train)
        assert done.verified
        assert done.release is not None
        writer = RecordWriter(dprecipe.load_language_model(done.release))
        generator = torch.Generator().manual_seed(int(str(settings["runtime.seed"])))
        written = [
            row for label in ("ham", "spam") for row in writer.write(rows // 2, (None, 1.0, 1.0), generator, label)
        ]
        share = share_of(done.release, "spam") / (share_of(done.release, "spam") + share_of(done.release, "ham"))
    synthetic = [str(row["label"]) for row in written], [str(row["text"]) for row in written]
    _, test = split_rows(root / "sms_spam/sms.csv", choose=choose)
    return {
        "settings": dict(settings),
        "role": "choice" if choose else "report",
        "epsilon": done.epsilon,
        "tokens": TOKEN,
        **classify(synthetic, test),
        "share": share,
        "rows": len(written),
        "malformed": 1 - writer.tally.rate,
        "reasons": dict(writer.tally.rejected),
        "seconds": round(time.process_time() - began, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[3.0, 1.0, 8.0])
    parser.add_argument("--seed", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--set", dest="settings", nargs="*", default=[], metavar="KEY=VALUE", help="VALUE in JSON.")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    changed = {key: json.loads(value) for key, _, value in (each.partition("=") for each in given.settings)}
    true, test = split_rows(given.data_root / "sms_spam/sms.csv", choose=given.choose)
    print(json.dumps({"true rows": classify(true, test)}), flush=True)
    for seed in given.seed:
        for epsilon in given.epsilon:
            settings = {**changed, "budget.epsilon": epsilon, "runtime.seed": seed}
            line = json.dumps(run_one(given.data_root, settings, given.rows, choose=given.choose))
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            print(line, flush=True)


if __name__ == "__main__":
    main()
