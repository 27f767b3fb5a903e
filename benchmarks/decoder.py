"""Trains a small decoder on public text: a folder that `transformers` loads, for language models to start from.

The text is chat of students (MIT licence; `pip download --no-deps chitchat_dataset==0.9.0`) and the Jargon File (public
domain; Debian's package dict-jargon, which installs /usr/share/dictd/jargon.dict.dz). Short messages are neither, but
both are closer to them than other free text of this size. Debian's fortunes are left out on purpose: they are the
public set on which benchmarks/language_sms.py chooses its settings. Nothing here is private.

The tokeniser is a byte-level BPE whose digits stand alone; token 0 ends each text and pads. The model has the form
of Llama: RMSNorm, rotary positions, half as many heads of keys and values as of queries, a head tied to the embedding.
The seed and one thread fix every number on one machine; source.json has the digests of text and outcome.

Run: python benchmarks/decoder.py OUT --chat chitchat_dataset-0.9.0-py3-none-any.whl [--jargon FILE] [--steps N]
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import os
import re
import time
import zipfile
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers

END = "<|end|>"
LENGTH = 128
"""Tokens of a sequence in training, and the positions the model knows."""
BATCH = 32
HELD_OUT = 50
"""One conversation or entry of so many is not trained on: its perplexity is told."""
CHAT_MEMBER = "chitchat_dataset/dataset.json"


def read_chat(wheel: Path) -> list[list[str]]:
    """Conversations, each a list of turns; what one side sent in a turn stands on lines of its own."""
    with zipfile.ZipFile(wheel) as archive:
        conversations = json.loads(archive.read(CHAT_MEMBER))
    turns = (["\n".join(m["text"].strip() for m in turn) for turn in c["messages"]] for c in conversations.values())
    return [[text for turn in each if (text := turn.strip())] for each in turns]


def read_jargon(path: Path) -> list[list[str]]:
    """Entries, each a list of its paragraphs, with their line breaks."""
    entries = re.split(r"\n(?=\S)", gzip.decompress(path.read_bytes()).decode("utf-8", "replace"))
    paragraphs = ([re.sub(r"\n\s+", "\n", p.strip()) for p in re.split(r"\n\s*\n", entry)] for entry in entries)
    return [[p for p in entry if p] for entry in paragraphs]


def build_tokenizer(documents: list[list[str]], vocabulary: int) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((message for document in documents for message in document), trainer)
    return tokenizer


def encode(tokenizer: tokenizers.Tokenizer, documents: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """All tokens in a row, each message ended by token 0; and where messages begin."""
    messages = tokenizer.encode_batch([message for document in documents for message in document])
    rows = [[*message.ids, 0] for message in messages]
    starts = np.cumsum([0, *(len(row) for row in rows[:-1])])
    return np.array([token for row in rows for token in row], dtype=np.int64), starts


def build_model(vocabulary: int, width: int, layers: int) -> transformers.PreTrainedModel:
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width * 27 // 10,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


def draw_batch(tokens: np.ndarray, starts: np.ndarray, generator: np.random.Generator) -> torch.Tensor:
    """Sequences that begin where a message begins, as a record of a fine-tuning set does."""
    places = generator.choice(starts[starts <= len(tokens) - LENGTH], BATCH)
    return torch.from_numpy(np.stack([tokens[p : p + LENGTH] for p in places]))


def train(model: torch.nn.Module, tokens: np.ndarray, starts: np.ndarray, steps: int, seed: int) -> None:
    rate, warm_up = 3e-3, max(1, steps // 25)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    generator, began = np.random.default_rng(seed), time.perf_counter()
    recent = 0.0
    for step in range(1, steps + 1):
        cosine = 0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.param_groups[0]["lr"] = rate * min(step / warm_up, cosine)
        batch = draw_batch(tokens, starts, generator)
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent += loss.item()
        if step % 100 == 0:
            print(f"step {step}: loss {recent / 100:.3f}, {time.perf_counter() - began:.0f} s", flush=True)
            recent = 0.0


@torch.no_grad()
def perplexity_of(model: torch.nn.Module, tokens: np.ndarray) -> float:
    """By token, in sequences of LENGTH that follow each other."""
    rows = torch.from_numpy(tokens[: len(tokens) // LENGTH * LENGTH]).view(-1, LENGTH)
    parts = torch.split(rows, 64)
    losses = [model(input_ids=part, labels=part, use_cache=False).loss.item() * len(part) for part in parts]
    return math.exp(sum(losses) / len(rows))


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save_decoder(model: transformers.PreTrainedModel, tokenizer: tokenizers.Tokenizer, folder: Path) -> None:
    """Writes a decoder and its tokeniser as recipes read them."""
    generation = transformers.GenerationConfig(eos_token_id=0, pad_token_id=0)  # type: ignore[no-untyped-call]
    model.generation_config = generation
    model.save_pretrained(folder, safe_serialization=True)
    fast = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END, pad_token=END
    )
    fast.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--chat", type=Path, required=True, help="the wheel chitchat_dataset 0.9.0")
    parser.add_argument("--jargon", type=Path, default=Path("/usr/share/dictd/jargon.dict.dz"))
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)

    documents = [*read_chat(args.chat), *read_jargon(args.jargon)]
    kept = [document for i, document in enumerate(documents) if i % HELD_OUT]
    held_out = documents[::HELD_OUT]
    tokenizer = build_tokenizer(kept, args.vocabulary)
    tokens, starts = encode(tokenizer, kept)
    model = build_model(args.vocabulary, args.width, args.layers)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {len(tokens):,} tokens of {len(starts):,} messages", flush=True)
    train(model, tokens, starts, args.steps, args.seed)

    save_decoder(model, tokenizer, args.out)
    model.eval()  # type: ignore[no-untyped-call]
    facts = {
        "text": {path.name: digest_of(path) for path in (args.chat, args.jargon)},
        "arguments": {name: getattr(args, name) for name in ("vocabulary", "width", "layers", "steps", "seed")},
        "parameters": parameters,
        "tokens": len(tokens),
        "held_out_perplexity": round(perplexity_of(model, encode(tokenizer, held_out)[0]), 2),
        "files": {name: digest_of(args.out / name) for name in ("model.safetensors", "tokenizer.json")},
        "versions": {module.__name__: module.__version__ for module in (torch, transformers, tokenizers)},
    }
    (args.out / "source.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
