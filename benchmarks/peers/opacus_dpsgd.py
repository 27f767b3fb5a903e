"""Private training with Opacus, as its documentation writes it: hooks, or ghost clipping where `mode` says so.

https://opacus.ai/tutorials/building_image_classifier, https://github.com/pytorch/opacus/blob/main/README.md
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from opacus import PrivacyEngine
from tasks import TASKS, accuracy, settings
from torch import nn
from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
given = settings()
task = TASKS[given.task](Path(given.data_root))
model = task.model
loader = DataLoader(task.train, batch_size=given.batch, shuffle=not given.full_batch)
optimizer = getattr(torch.optim, given.optimizer)((p for p in model.parameters() if p.requires_grad), **given.rates)
criterion = nn.CrossEntropyLoss()

model.train()
privacy_engine = PrivacyEngine()
if given.mode == "ghost":
    model, optimizer, criterion, loader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=given.noise,
        max_grad_norm=given.clip,
        criterion=criterion,
        grad_sample_mode="ghost",
        poisson_sampling=not given.full_batch,
    )
else:
    model, optimizer, loader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=given.noise,
        max_grad_norm=given.clip,
        poisson_sampling=not given.full_batch,
    )

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

print(f"epsilon {privacy_engine.get_epsilon(given.delta):.2f}")
print(f"accuracy {accuracy(model, task.test):.2%}")
torch.save(model._module.state_dict(), Path(given.out) / "model.pt")
