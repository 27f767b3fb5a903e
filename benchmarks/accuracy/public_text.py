"""Writes a public table that a text classifier can learn from before it sees private messages.

The text is that of benchmarks/decoder.py: chat of students and the Jargon File. Each row is a text of up to 32 words
from which one frequent word was taken out everywhere; the label is that word.

    python benchmarks/accuracy/public_text.py --chat chitchat_dataset-0.9.0-py3-none-any.whl --jargon FILE --out DIR
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from decoder import read_chat, read_jargon

WORD = re.compile(r"\w+")
SKIPPED, LABELS = 20, 100
"""The most frequent words say little of a text; labels are those that follow them."""
ROWS, MIN_WORDS, MAX_WORDS = 60_000, 5, 32


def find_words(texts: Sequence[str]) -> list[str]:
    """Returns the labels: frequent words of two letters or more, in the order of their frequency."""
    counts = Counter(
        word for text in texts for word in set(WORD.findall(text.lower())) if len(word) > 1 and word.isalpha()
    )
    return [word for word, _ in counts.most_common(SKIPPED + LABELS)[SKIPPED:]]


def make_rows(texts: Sequence[str], words: Sequence[str], draw: random.Random) -> Iterator[tuple[str, str]]:
    """Yields texts without one of their words, and that word."""
    known = set(words)
    for text in texts:
        found = WORD.findall(text.lower())[:MAX_WORDS]
        choices = sorted(known & set(found))
        if len(found) >= MIN_WORDS and choices:
            label = draw.choice(choices)
            yield label, " ".join(word for word in found if word != label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chat", type=Path, required=True, help="The wheel chitchat_dataset 0.9.0.")
    parser.add_argument("--jargon", type=Path, default=Path("/usr/share/dictd/jargon.dict.dz"))
    parser.add_argument("--out", type=Path, required=True, help="The folder of data.")
    given = parser.parse_args()
    documents = [*read_chat(given.chat), *read_jargon(given.jargon)]
    draw = random.Random(0)
    texts = [" ".join(text.split()) for document in documents for text in document]
    draw.shuffle(texts)
    words = find_words(texts)
    rows = [row for row, _ in zip(make_rows(texts, words, draw), range(ROWS), strict=False)]
    if len(rows) < ROWS:
        raise SystemExit(f"the public text gives {len(rows)} rows: lower ROWS, or give more text")
    with (given.out / "public_text.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("word", "text"), *rows])
    print(json.dumps(words))


if __name__ == "__main__":
    main()
