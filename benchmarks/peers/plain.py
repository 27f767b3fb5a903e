"""Training without privacy, as scripts of torch are written."""

from __future__ import annotations

from pathlib import Path

import torch
from tasks import TASKS, accuracy, settings
from torch import nn
from torch.utils.data import DataLoader

given = settings()
task = TASKS[given.task](Path(given.data_root))
model = task.model
loader = DataLoader(task.train, batch_size=given.batch, shuffle=True)
optimizer = getattr(torch.optim, given.optimizer)((p for p in model.parameters() if p.requires_grad), **given.rates)
criterion = nn.CrossEntropyLoss()

model.train()
steps = 0
while steps < given.steps:
    for features, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(features), labels)
        loss.backward()
        optimizer.step()
        steps += 1
        if steps == given.steps:
            break

print(f"accuracy {accuracy(model, task.test):.2%}")
torch.save(model.state_dict(), Path(given.out) / "model.pt")
