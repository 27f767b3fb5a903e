"""The tasks of the comparison: each reads its files and builds its model as a script of torch would."""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


class Task(NamedTuple):
    model: nn.Module
    train: TensorDataset
    test: TensorDataset


def digits(root: Path) -> Task:
    """`recipes/quickstart.yaml`. The records are scikit-learn's, and come with it."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32) / 16 - 0.3
    x = 5 * x / x.norm(dim=1, keepdim=True)
    y = torch.tensor(labels)
    model = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 10))
    return Task(model, TensorDataset(x[:1438], y[:1438]), TensorDataset(x[1438:], y[1438:]))


def adult(root: Path) -> Task:
    """`recipes/adult-dpsgd.yaml`."""
    (x, y), (x_test, y_test) = read_adult(root)
    train = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return Task(nn.Linear(x.shape[1], 2), train, TensorDataset(torch.from_numpy(x_test), torch.from_numpy(y_test)))


def read_adult(root: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test records: numbers to [0, 1], a column for each category, countries hashed; at most 3 long."""
    numeric = {
        "age": (17, 90), "education-num": (1, 16), "capital-gain": (0, 20000), "capital-loss": (0, 5000),
        "hours-per-week": (0, 80),
    }  # fmt: skip
    categories = ["workclass", "education", "marital-status", "occupation", "relationship", "race", "sex"]
    values: dict[str, list[str]] = {}
    result = []
    for name in ("train", "test"):
        with gzip.open(root / "adult" / f"{name}.csv.gz", "rt", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        columns = [
            np.array([[(float(row[column]) - low) / (high - low)] for row in rows], np.float32).clip(0, 1)
            for column, (low, high) in numeric.items()
        ]
        for column in categories:
            known = values.setdefault(column, sorted({row[column] for row in rows}))
            columns.append(np.array([[row[column] == value for value in known] for row in rows], np.float32))
        countries = np.zeros((len(rows), 64), np.float32)
        countries[np.arange(len(rows)), [bucket(row["native-country"], 64) for row in rows]] = 1
        x = np.hstack([*columns, countries])
        x *= np.minimum(1, 3 / np.linalg.norm(x, axis=1, keepdims=True))
        result.append((x, np.array([row["income"] == ">50K" for row in rows], np.int64)))
    return result


def mnist(root: Path) -> Task:
    """`recipes/mnist-dpsgd.yaml`: the tempered network of Papernot et al. 2021."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip
    return Task(model, read_mnist(root, "train"), read_mnist(root, "t10k"))


def read_mnist(root: Path, part: str) -> TensorDataset:
    with gzip.open(root / "mnist" / f"{part}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(root / "mnist" / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    x = (torch.from_numpy(images.astype(np.float32)) / 255 - 0.1307) / 0.3081
    return TensorDataset(x, torch.from_numpy(labels.astype(np.int64)))


def cifar(root: Path) -> Task:
    """`recipes/cifar10-dpsgd.yaml`: the tempered network for photos, images flipped at random."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        channels = width
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))
    return Task(model, FlippedImages(*read_cifar(root, "train")), TensorDataset(*read_cifar(root, "test")))


class FlippedImages(TensorDataset):
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        image, label = super().__getitem__(index)
        return (image.flip(-1) if torch.rand(()) < 0.5 else image), label


def read_cifar(root: Path, part: str) -> tuple[Tensor, Tensor]:
    import pyarrow.parquet
    from PIL import Image

    content = pyarrow.parquet.read_table(root / "cifar10" / f"{part}.parquet")
    files = content.column("img").to_pylist()
    images = np.stack([np.asarray(Image.open(io.BytesIO(file["bytes"])).convert("RGB")) for file in files])
    x = torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32)) / 255
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.247, 0.2435, 0.2616])
    x = (x - mean[:, None, None]) / std[:, None, None]
    return x, torch.tensor(content.column("label").to_pylist())


def sms(root: Path) -> Task:
    """`recipes/sms-transformer.yaml`: hashed words, a transformer of one layer."""
    with (root / "sms_spam" / "sms.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    x = torch.zeros(len(rows), 32, dtype=torch.int64)
    for number, row in enumerate(rows):
        words = re.findall(r"\w+", row["text"].lower())[:32]
        x[number, : len(words)] = torch.tensor([1 + bucket(word, 2048) for word in words], dtype=torch.int64)
    y = torch.tensor([row["label"] == "spam" for row in rows]).long()
    return Task(
        TextClassifier(2049, 32, 64, 4, 2), TensorDataset(x[:4574], y[:4574]), TensorDataset(x[4574:], y[4574:])
    )


class TextClassifier(nn.Module):
    """One layer of attention and one of a perceptron, normalised before each; the mean of all tokens is classified.

    The attention is made of linear layers, since Opacus takes no `nn.MultiheadAttention`.
    """

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, classes: int) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions = nn.Embedding(length, width)
        self.norm_1, self.norm_2, self.norm_3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix_in, self.mix_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, classes)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        with torch.no_grad():
            self.tokens.weight[0].zero_()

    def forward(self, tokens: Tensor) -> Tensor:
        counts = (tokens != 0).float()
        counts[:, 0] = 1
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens).contiguous()
        x = self.tokens(tokens) + self.positions(positions)
        parts = self.mix_in(self.norm_1(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(counts[:, None, None, :] == 0, -math.inf)
        x = x + self.mix_out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        x = x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))
        mean = (self.norm_3(x) * counts[..., None]).sum(1) / counts.sum(1, keepdim=True)
        return self.head(mean)


def lora(root: Path) -> Task:
    """A small encoder of `transformers` from a folder, with the adapters of `peft` in all linear layers."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(root / "encoder", attn_implementation="eager")
    config = LoraConfig(
        r=8, lora_alpha=16,
        target_modules=["q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"],
        modules_to_save=["pre_classifier", "classifier"],
    )  # fmt: skip
    model = get_peft_model(model, config)
    sets = [np.load(root / f"{part}.npz") for part in ("train", "test")]
    train, test = (
        TensorDataset(torch.from_numpy(each["features"]).long(), torch.from_numpy(each["labels"]).long())
        for each in sets
    )
    return Task(LogitsOf(model), train, test)


class LogitsOf(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        return self.network(input_ids=tokens, attention_mask=(tokens != 0).long()).logits


def bucket(text: str, buckets: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % buckets


TASKS: dict[str, Callable[[Path], Task]] = {task.__name__: task for task in (digits, adult, mnist, cifar, sms, lora)}


def settings() -> argparse.Namespace:
    """What `endtoend.py` passes: the same for all programs that are compared."""
    given = argparse.ArgumentParser()
    given.add_argument("settings", type=json.loads, help="a JSON object")
    return argparse.Namespace(**given.parse_args().settings)


def accuracy(model: nn.Module, test: TensorDataset) -> float:
    model.eval()
    correct = 0
    with torch.no_grad():
        for features, labels in torch.utils.data.DataLoader(test, batch_size=256):
            correct += (model(features).argmax(1) == labels).sum().item()
    return correct / len(test)
