"""What a language model learns of the SMS messages at ε = 1, 3 and 8 and without privacy, in one Markdown table.

Each row of the table (`label: spam`, `text: …`) is a record. The first 4,574 messages train adapters of the small
public decoder of benchmarks/decoder.py; the last 1,000 are public. Two questions are asked of each release: how well it
predicts the public messages, and what a spam classifier that learned from the release's synthetic rows alone gets right
on them, beside one that learned from the true rows. Half of the synthetic rows are asked for by each label: a model
that draws the labels itself writes the rarer one as seldom as its noisy steps taught it, which the table also has.

`--table fortunes` asks the same of a public table of the same size and shape, which Debian's fortunes give (packages
fortunes-min and fortunes): the settings below were chosen on it and never on the messages. Finished runs are kept and
not run again, so an interrupted table goes on.

Run: python benchmarks/language_sms.py DECODER OUT --sms DIR/sms_spam/sms.csv [--epsilons 1 3 8 none] [--seeds 3]
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import torch
import transformers
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score

TRAINED, HELD_OUT = 4574, 1000
MAX_LENGTH = 96
"""Tokens: a message has 160 characters at most, a token has three of words and one of digits."""
MAX_CHARACTERS = 160
NONE = "none"
FORTUNES = Path("/usr/share/games/fortunes")
COMPUTING = {"computers", "linux", "perl", "knghtbrd", "debian", "linuxcookie", "bofh-excuses", "science"}
"""The files whose short entries have the rarer label."""
VALUES = {"sms": ("ham", "spam"), "fortunes": ("other", "computing")}

RECIPE = """\
recipe: dprecipe/v1
name: {table}-language-model
data:
  train:
    source: csv
    path: {table}.csv
    columns: {{label: {{kind: category, values: [{values}]}}, text: {{kind: text}}}}
    label: next_token
    records: [0, {trained}]
{access}  test:
    source: csv
    path: {table}.csv
    records: [{trained}, {total}]
    access: public
  size: {trained}
  unit: record
  preprocess:
    - sequences:
        row: [label, text]
        tokenizer: {{path: decoder/tokenizer.json, vocabulary: 2048, padding: 0}}
        end: 0
        max_length: {max_length}
model:
  kind: causal_lm
  init: decoder/
  lora: {{rank: 8, alpha: 16}}
{mechanism}training:
  epochs: {epochs}
  optimizer: {{kind: adam, lr: {{schedule: cosine, from: {lr}, to: 0.001}}}}
{plain}runtime: {{device: cpu, seed: {seed}{physical}}}
"""
PRIVATE = """\
mechanism:
  kind: dpsgd
  clip: {{norm: {clip}}}
  noise: {{family: gaussian, multiplier: auto}}
  sampling: {{scheme: poisson, batch_size: {batch}}}
budget: {{epsilon: {epsilon}, delta: 1e-5, neighbouring: zero_out_one}}
"""


class Settings(NamedTuple):
    """Chosen on the fortunes."""

    epochs: float = 3
    batch: int = 512
    clip: float = 1.0
    lr: float = 0.01


PLAIN = Settings(epochs=3, batch=64, lr=0.003)
"""Without privacy."""


def write_recipe(folder: Path, table: str, epsilon: str, seed: int, settings: Settings) -> Path:
    private = epsilon != NONE
    fields = settings._asdict()
    text = RECIPE.format(
        table=table,
        values=", ".join(VALUES[table]),
        trained=TRAINED,
        total=TRAINED + HELD_OUT,
        max_length=MAX_LENGTH,
        access="" if private else "    access: public\n",
        mechanism=PRIVATE.format(epsilon=epsilon, **fields) if private else "mechanism: {kind: none}\n",
        plain="" if private else f"  batch_size: {settings.batch}\n",
        physical=", physical_batch: 64" if private else "",
        seed=seed,
        **fields,
    )
    path = folder / f"{table}-{epsilon}-{seed}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def write_fortunes(path: Path) -> None:
    """Short entries, in the order of their digests; the label says whether their file is about computing."""
    rows = {}
    for file in sorted(FORTUNES.iterdir()):
        if file.suffix or file.name.startswith("mario") or not file.is_file():
            continue
        for entry in re.split(r"^%\s*$", file.read_text("utf-8", "replace"), flags=re.MULTILINE):
            text = " ".join(entry.split())
            if 20 <= len(text) <= MAX_CHARACTERS:
                rows[text] = VALUES["fortunes"][file.name in COMPUTING]
    kept = sorted(rows, key=lambda text: hashlib.sha256(text.encode()).digest())[: TRAINED + HELD_OUT]
    if len(kept) < TRAINED + HELD_OUT:
        raise SystemExit(f"{FORTUNES} has {len(kept)} short entries: install the packages fortunes-min and fortunes")
    with path.open("w", encoding="utf-8", newline="") as file_out:
        csv.writer(file_out).writerows([("label", "text"), *((rows[text], text) for text in kept)])


def read_rows(path: Path) -> tuple[list[str], list[str]]:
    """Labels and texts."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["label"] for row in rows], [row["text"] for row in rows]


def call(*arguments: str | Path) -> float:
    """One command of dprecipe; the wall-clock seconds that it took."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "dprecipe", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"dprecipe {' '.join(map(str, arguments))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.monotonic() - began


@torch.no_grad()
def perplexities(folder: Path, labels: Sequence[str], texts: Sequence[str]) -> tuple[float, float]:
    """By token, as `transformers` computes them: of whole rows but their first token, and of the texts behind their
    labels alone, where what the fixed form adds is not counted."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()  # type: ignore[no-untyped-call]
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    losses, counts = [0.0, 0.0], [0, 0]
    for label, text in zip(labels, texts, strict=True):
        form = f"label: {label}\ntext:"
        ids = torch.tensor([[*tokenizer.encode(f"{form} {' '.join(text.split())}").ids, 0][:MAX_LENGTH]])
        scores = model(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1)
        each = scores.gather(1, ids[0, 1:, None]).flatten().tolist()
        for which, first in enumerate((0, len(tokenizer.encode(form).ids) - 1)):
            losses[which] -= sum(each[first:])
            counts[which] += len(each) - first
    row, alone = (math.exp(loss / count) for loss, count in zip(losses, counts, strict=True))
    return row, alone


@torch.no_grad()
def share_of(folder: Path, value: str) -> float:
    """The probability with which the model itself begins a row with this label."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()  # type: ignore[no-untyped-call]
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids, known = torch.tensor([tokenizer.encode(f"label: {value}").ids]), len(tokenizer.encode("label:").ids)
    scores = model(input_ids=ids, use_cache=False).logits[0, known - 1 : -1].log_softmax(-1)
    return math.exp(scores.gather(1, ids[0, known:, None]).sum().item())


def classify(train: tuple[list[str], list[str]], test: tuple[list[str], list[str]], rare: str) -> dict[str, float]:
    """Accuracy, F1 of the rarer label and AUC of a logistic regression on hashed words and pairs of words."""
    hashed = HashingVectorizer(n_features=2**16, ngram_range=(1, 2), alternate_sign=False)
    (labels, texts), (true_labels, true_texts) = train, test
    truth = [label == rare for label in true_labels]
    if len(set(labels)) < 2:
        return {"accuracy": 1 - statistics.mean(truth), "f1": 0.0, "auc": 0.5}
    model = LogisticRegression(C=10.0, max_iter=1000).fit(hashed.transform(texts), [label == rare for label in labels])
    chances = model.predict_proba(hashed.transform(true_texts))[:, 1]
    said = chances > 0.5
    return {
        "accuracy": float((said == truth).mean()),
        "f1": float(f1_score(truth, said)),
        "auc": float(roc_auc_score(truth, chances)),
    }


def run_one(out: Path, table: str, epsilon: str, seed: int, settings: Settings) -> dict[str, Any]:
    """Train, synthesise as many rows as were trained on, learn from them, and test on the public rows."""
    recipe = write_recipe(out, table, epsilon, seed, settings)
    folder, seconds = out / recipe.stem, out / f"{recipe.stem}.seconds"
    if not seconds.exists():
        shutil.rmtree(folder, ignore_errors=True)
        seconds.write_text(f"{call('run', recipe, '--out', folder)}\n", encoding="utf-8")
    release = folder / ("weights" if epsilon == NONE else "release")
    rows = out / f"{recipe.stem}.csv"
    for old in out.glob(f"{rows.name}*"):
        old.unlink()
    common, rare = VALUES[table]
    counts = ["--count", f"{common}={TRAINED // 2}", "--count", f"{rare}={TRAINED - TRAINED // 2}", "--seed", str(seed)]
    plain = ["--no-verify"] if epsilon == NONE else []
    synthesis = call("synthesize", release, *counts, "--out", rows, *plain)
    if epsilon == NONE:  # its folder is no release, and has no configuration for the library
        for name in ("config.json", "generation_config.json"):
            shutil.copyfile(out / "decoder" / name, release / name)
    labels, texts = read_rows(out / f"{table}.csv")
    public = labels[TRAINED:], texts[TRAINED:]
    statement = json.loads(rows.with_name(rows.name + ".synthetic.json").read_text("utf-8"))["generation"]
    return {
        "epsilon": epsilon,
        "seed": seed,
        "settings": settings._asdict(),
        "perplexities": perplexities(release, *public),
        "classifier": classify(read_rows(rows), public, rare),
        "share": share_of(release, rare),
        "accepted": statement["accepted"] / statement["texts"],
        "seconds": {"run": float(seconds.read_text("utf-8")), "synthesize": synthesis},
    }


def print_table(results: Sequence[dict[str, Any]], base: Sequence[float], real: dict[str, float], table: str) -> None:
    """Mean of the seeds, and the range where there are several. `base`: perplexities before training."""
    rare = VALUES[table][1]
    print(f"| ε | perplexity of a row | of its text | rows accepted | P({rare}) | accuracy | F1 | AUC | minutes |")
    print("|---|---|---|---|---|---|---|---|---|")
    print(f"| base model | {base[0]:.1f} | {base[1]:.1f} | | | | | | |")
    for epsilon in dict.fromkeys(result["epsilon"] for result in results):
        runs = [result for result in results if result["epsilon"] == epsilon]
        cells = [
            spread([run["perplexities"][0] for run in runs], 1),
            spread([run["perplexities"][1] for run in runs], 1),
            spread([100 * run["accepted"] for run in runs], 1) + " %",
            spread([100 * run["share"] for run in runs], 2) + " %",
            spread([100 * run["classifier"]["accuracy"] for run in runs], 1) + " %",
            spread([run["classifier"]["f1"] for run in runs], 3),
            spread([run["classifier"]["auc"] for run in runs], 3),
            spread([sum(run["seconds"].values()) / 60 for run in runs], 1),
        ]
        print(f"| {'no privacy' if epsilon == NONE else epsilon} | {' | '.join(cells)} |")
    score = f"{100 * real['accuracy']:.1f} % | {real['f1']:.3f} | {real['auc']:.3f}"
    print(f"| classifier of the true rows | | | | {100 * real['share']:.1f} % | {score} | |")


def spread(values: Sequence[float], digits: int) -> str:
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    out, table = arguments.out, arguments.table
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "decoder").exists():
        shutil.copytree(arguments.decoder, out / "decoder")
    if table == "fortunes":
        write_fortunes(out / "fortunes.csv")
    else:
        shutil.copyfile(arguments.sms, out / "sms.csv")
    results = []
    for seed in range(arguments.seeds):
        for epsilon in arguments.epsilons:
            changes = {name: value for name in Settings._fields if (value := getattr(arguments, name)) is not None}
            settings = (PLAIN if epsilon == NONE else Settings())._replace(**changes)
            result = out / f"{table}-{epsilon}-{seed}.json"
            if not result.exists():
                result.write_text(json.dumps(run_one(out, table, epsilon, seed, settings)), encoding="utf-8")
            results.append(json.loads(result.read_text("utf-8")))
            print(result.name, json.dumps(results[-1]), file=sys.stderr, flush=True)
    labels, texts = read_rows(out / f"{table}.csv")
    public = labels[TRAINED:], texts[TRAINED:]
    real = classify((labels[:TRAINED], texts[:TRAINED]), public, VALUES[table][1])
    real["share"] = labels[:TRAINED].count(VALUES[table][1]) / TRAINED
    print_table(results, perplexities(out / "decoder", *public), real, table)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("decoder", type=Path, help="the folder that benchmarks/decoder.py wrote")
    parser.add_argument("out", type=Path)
    parser.add_argument("--sms", type=Path, help="sms_spam/sms.csv of the folder of data")
    parser.add_argument("--table", choices=tuple(VALUES), default="sms")
    parser.add_argument("--epsilons", nargs="+", default=["1", "3", "8", NONE])
    parser.add_argument("--seeds", type=int, default=3)
    for name in Settings._fields:
        parser.add_argument(f"--{name}", type=type(getattr(Settings(), name)), help="instead of the setting chosen")
    arguments = parser.parse_args()
    if arguments.table == "sms" and arguments.sms is None:
        parser.error("--sms says where the messages are")
    return arguments


if __name__ == "__main__":
    main()
