"""Training code that a module from Python brings for a trainer of its own, and noisy steps would leave out in silence.

A step calls the module, and nothing else of it: the recipe names loss, optimiser and length. So a LightningModule's
own steps and hooks would never be called, nor hooks of single weights, whose gradients are taken from their layers.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from dprecipe.faults import Finding

LIGHTNING = ("lightning", "pytorch_lightning")
HELPERS = frozenset(
    {
        "all_gather",
        "clip_gradients",
        "freeze",
        "load_from_checkpoint",
        "log",
        "log_dict",
        "lr_schedulers",
        "manual_backward",
        "optimizers",
        "print",
        "remove_ignored_hparams",
        "save_hyperparameters",
        "to_onnx",
        "to_tensorrt",
        "to_torchscript",
        "toggle_optimizer",
        "toggled_optimizer",
        "unfreeze",
        "untoggle_optimizer",
    }
)
"""Methods of a LightningModule that its own code calls, and no trainer does."""
MAX_NAMED = 8


def inspect_training(module: nn.Module) -> list[Finding]:
    """Finds what the module does besides its forward pass, and no noisy step would do."""
    return [*inspect_steps(module), *_inspect_weights(module)]


def list_trainer_methods(base: type[nn.Module]) -> list[str]:
    """Returns the methods of Lightning's class that a trainer calls."""
    return sorted(
        name
        for name in set(dir(base)) - set(dir(nn.Module)) - HELPERS
        if not name.startswith("_") and callable(getattr(base, name))
    )


def detach_trainers(module: nn.Module) -> None:
    """Takes the trainers away that the module, or a part of it, was attached to before: `self.log` would show them
    values of private records, in a run and not at the probe, which sees a copy without."""
    for layer in module.modules():
        if _lightning_base(layer) is not None:
            vars(layer).update(_trainer=None, _fabric=None)


def _lightning_base(module: nn.Module) -> type[nn.Module] | None:
    """Returns Lightning's own class, of a LightningModule."""
    for kind in type(module).__mro__:
        if kind.__name__ == "LightningModule" and kind.__module__.partition(".")[0] in LIGHTNING:
            return kind
    return None


def inspect_steps(module: nn.Module) -> Iterator[Finding]:
    """Yields the steps and hooks that a LightningModule brings for its own trainer."""
    base = _lightning_base(module)
    if base is None:
        return
    kind = type(module)
    own = [
        name
        for name in list_trainer_methods(base)
        if name in vars(module) or getattr(kind, name, None) is not getattr(base, name)
    ]
    if own:
        yield Finding(
            "R345",
            f"the module ({kind.__name__}) has training code of its own, that nothing calls: {_list(own)}",
            "pass its network alone, an nn.Module with the layers and forward; the loss follows from the labels, and "
            "the recipe names optimiser and steps (training) and scores (data.test)",
            "model",
        )


def _inspect_weights(module: nn.Module) -> Iterator[Finding]:
    hooked = [
        name
        for name, parameter in module.named_parameters()
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    ]
    if hooked:
        yield Finding(
            "R345",
            f"weights of the module ({type(module).__name__}) have hooks for their gradients, which a noisy step never "
            f"calls: {_list(hooked)}",
            "remove them with the handles that register_hook gave; to keep weights fixed, set requires_grad to False; "
            "to keep some of their numbers fixed, use torch.nn.utils.parametrize",
            "model",
        )


def _list(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(ascii(name) for name in names[:MAX_NAMED]) + more
