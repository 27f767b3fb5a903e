"""Trains a small public decoder on rows of the form that `recipes/best/sms-rows.yaml` writes: a label, and a text.

The text is that of benchmarks/decoder.py: chat of students, labelled `ham`, and the Jargon File, labelled `spam`, three
times. So the decoder knows the form, and that a label says which words to expect; it has seen no advertisement. Some
words are in capitals, so that the tokeniser has them. Head and embedding are two tables.

    python benchmarks/accuracy/row_decoder.py OUT --chat chitchat_dataset-0.9.0-py3-none-any.whl --jargon FILE
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))

from decoder import build_tokenizer, read_chat, read_jargon, save_decoder

MAX_CHARACTERS, MAX_TOKENS, VOCABULARY, BATCH, STEPS, RATE = 160, 96, 2048, 64, 1600, 3e-3
UNUSED = 1000
"""Rows that are not trained on."""
CONFIG = transformers.LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=48,
    intermediate_size=129,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    tie_word_embeddings=False,
    bos_token_id=None,
    eos_token_id=0,
    pad_token_id=0,
)


def cut_text(text: str, draw: random.Random) -> list[str]:
    """Returns pieces of whole words, as long as short messages are."""
    pieces, piece, most = [], "", draw.randint(40, MAX_CHARACTERS)
    for word in text.split(" "):
        if piece and len(piece) + len(word) + 1 > most:
            pieces.append(piece)
            piece, most = "", draw.randint(40, MAX_CHARACTERS)
        piece = f"{piece} {word}".strip()
    return [each for each in [*pieces, piece] if each and len(each) <= MAX_CHARACTERS]


def change_case(text: str, draw: random.Random) -> str:
    """Returns the text, with some words in capitals once in five times."""
    which = draw.random()
    if which < 0.05:
        return text.upper()
    if which < 0.15:
        return " ".join(word.upper() if draw.random() < 0.3 else word for word in text.split(" "))
    if which < 0.22:
        return " ".join(word.capitalize() if draw.random() < 0.5 else word for word in text.split(" "))
    return text


def make_rows(chat: Sequence[str], jargon: Sequence[str], draw: random.Random) -> list[str]:
    """Returns rows in their form, shuffled."""
    ham = [piece for text in chat for piece in cut_text(text, draw) if len(piece) > 3]
    spam = [piece for text in jargon for piece in cut_text(text, draw) if len(piece) > 10]
    rows = [(label, change_case(text, draw)) for label, part in (("ham", ham), ("spam", spam)) for text in part]
    rows += [row for row in rows if row[0] == "spam"] * 2
    draw.shuffle(rows)
    return [f"label: {label}\ntext: {text}" for label, text in rows]


def train(model: torch.nn.Module, rows: Sequence[Sequence[int]]) -> None:
    """Trains the decoder on neighbouring rows. `rows`: by length, so that those of a batch are equally long."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    generator = np.random.default_rng(0)
    for step in range(1, STEPS + 1):
        cosine = 0.05 + 0.95 * (1 + math.cos(math.pi * step / STEPS)) / 2
        optimizer.param_groups[0]["lr"] = RATE * min(step / (STEPS / 25), cosine)
        first = int(generator.integers(len(rows) - BATCH))
        batch = [torch.tensor(row) for row in rows[first : first + BATCH]]
        tokens = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
        labels = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=-100)
        loss = model(input_ids=tokens, labels=labels, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} of {STEPS}: loss {loss.item():.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--chat", type=Path, required=True, help="The wheel chitchat_dataset 0.9.0.")
    parser.add_argument("--jargon", type=Path, default=Path("/usr/share/dictd/jargon.dict.dz"))
    given = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    chat, jargon = (
        [" ".join(text.split()) for document in documents for text in document]
        for documents in (read_chat(given.chat), read_jargon(given.jargon))
    )
    rows = make_rows(chat, jargon, random.Random(0))
    tokenizer = build_tokenizer([rows], VOCABULARY)
    encoded = [[*row.ids, 0] for row in tokenizer.encode_batch(rows)]
    kept = sorted([row for row in encoded if len(row) <= MAX_TOKENS][UNUSED:], key=len)
    model = transformers.LlamaForCausalLM(CONFIG)
    train(model, kept)
    save_decoder(model, tokenizer, given.out)


if __name__ == "__main__":
    main()
