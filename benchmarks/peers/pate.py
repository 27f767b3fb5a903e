"""PATE as a bare loop: teachers one after the other, GNMax in numpy (Papernot et al. 2018), a student."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tasks import accuracy, read_mnist, settings
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def network() -> nn.Module:
    """After LeNet-5."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 10),
    )  # fmt: skip


def train(records: TensorDataset | Subset, steps: int, batch: int, rate: float) -> nn.Module:
    model = network()
    loader = DataLoader(records, batch_size=batch, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    criterion = nn.CrossEntropyLoss()
    done = 0
    while done < steps:
        for features, labels in loader:
            optimizer.zero_grad()
            criterion(model(features), labels).backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    return model


given = settings()
root = Path(given.data_root)
private, public = read_mnist(root, "train"), read_mnist(root, "t10k")
queries = public.tensors[0][: given.queries]

order = torch.randperm(len(private))
votes = np.zeros((given.queries, 10))
for part in order.tensor_split(given.teachers):
    teacher = train(Subset(private, part.tolist()), given.teacher_steps, given.teacher_batch, given.teacher_rate)
    with torch.no_grad():
        votes[np.arange(given.queries), teacher(queries).argmax(1).numpy()] += 1

answers = (votes + np.random.default_rng().normal(0, given.noise, votes.shape)).argmax(1)

student = train(TensorDataset(queries, torch.from_numpy(answers)), given.steps, given.batch, given.rate)
print(f"accuracy {accuracy(student, TensorDataset(*(each[9000:] for each in public.tensors))):.2%}")
torch.save(student.state_dict(), Path(given.out) / "model.pt")
