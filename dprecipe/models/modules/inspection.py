"""Inspection of a module before noisy steps train it: layers that can't be private, code of a trainer, random draws.

A clipped gradient bounds what a record does through the loss. A running mean or variance is a second way out
of the data that no clipping sees, whether its layer is trained, frozen, or has no parameters at all; and a
layer that normalises over the batch makes every record's output depend on the others.

A step calls the module, and its own loss and optimiser where the recipe leaves these to it. A LightningModule's other
steps and hooks would never be called, nor hooks of single weights, whose gradients are taken from their layers.

A module that draws no random numbers needs no seed for its steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import isroutine

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.module import _has_any_global_hook as has_hooks_for_all

from dprecipe.faults import Finding
from dprecipe.language.training import Training
from dprecipe.models.lora import LowRankLayer
from dprecipe.models.zoo.cnn import ResidualBlock
from dprecipe.models.zoo.layers import StandardisedConv2d
from dprecipe.models.zoo.linear import LocationModel
from dprecipe.models.zoo.transformer import Layer, TextTransformer

RUNNING = ("running_", "moving_", "num_batches_tracked")
"""Prefixes of buffers that follow the data, in torch and in the libraries built on it."""
MAX_GROUPS = 16


def inspect_module(module: nn.Module) -> list[Finding]:
    """Returns the layers of a module, at any depth, that can't be trained privately; each with its replacement.

    Every submodule is looked at, by `isinstance` and not by exact type, trainable or not. Dropout is fine: it
    draws for each record on its own. What no list can know is caught by `dprecipe.training.probe.program`.
    """
    return [finding for name, layer in module.named_modules() for finding in _layer(name, layer)]


def _layer(name: str, layer: nn.Module) -> Iterator[Finding]:
    layer_text = f"layer {name!r} ({type(layer).__name__})" if name else f"the module ({type(layer).__name__})"
    if isinstance(layer, _InstanceNorm):  # a _NormBase too, and fine without running statistics
        if layer.track_running_stats:
            yield Finding(
                "P121",
                f"{layer_text} keeps running statistics of private records",
                "build it with track_running_stats=False",
                "model",
            )
    elif isinstance(layer, _BatchNorm):
        yield Finding(
            "P120",
            f"{layer_text} normalises over the batch: it mixes records, and its running statistics "
            f"follow private data, "
            "frozen or not",
            f"replace it by {_group_norm(layer.num_features)}, which looks at one record at a time",
            "model",
        )
    elif isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        yield Finding(
            "P123",
            f"{layer_text} has max_norm={layer.max_norm:g}: it shortens the rows that records look up, so that weights "
            "move without noise",
            "build it with max_norm=None; to bound its rows, divide them by their norm in forward",
            "model",
        )
    else:
        buffers = [n for n, _ in layer.named_buffers(recurse=False) if n.startswith(RUNNING)]
        if buffers:
            yield Finding(
                "P122",
                f"{layer_text} keeps running statistics: {', '.join(buffers)}",
                "replace it by a layer that looks at one record at a time, such as torch.nn.GroupNorm or LayerNorm",
                "model",
            )


def _group_norm(features: int) -> str:
    # Lazy layers do not know their width yet.
    groups = next((g for g in range(MAX_GROUPS, 0, -1) if features % g == 0), 1)
    return f"torch.nn.GroupNorm({groups}, {features})" if features > 0 else "torch.nn.GroupNorm"


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
STEP, LOSS, OPTIMIZERS = "training_step", "loss", "configure_optimizers"
VALIDATION = "validation_step"
KEYS = {
    STEP: "training.loss: {kind: python}",
    LOSS: "training.loss: {kind: python}",
    OPTIMIZERS: "training.optimizer: {kind: python}",
}
"""The keys that leave these methods to a module."""
MAX_NAMED = 8


def inspect_training(module: nn.Module, training: Training, *, public_test: bool = False) -> list[Finding]:
    """Finds what the module does besides its forward pass, and no noisy step would do; and what `training` leaves to
    it, and it does not do. `public_test`: held-out records are declared public, for a `validation_step`."""
    steps = inspect_steps(module, training, public_test=public_test)
    return [*steps, *_inspect_missing(module, training), *_inspect_weights(module)]


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


def list_own_methods(module: nn.Module) -> list[str]:
    """Returns the methods that a LightningModule brings for its own trainer."""
    base, kind = _lightning_base(module), type(module)
    if base is None:
        return []
    return [
        name
        for name in list_trainer_methods(base)
        if name in vars(module) or getattr(kind, name, None) is not getattr(base, name)
    ]


def find_loss(module: nn.Module) -> str:
    """Returns the method of a LightningModule that is its loss: `training_step`, else `loss`; empty if there is
    none."""
    base, kind = _lightning_base(module), type(module)
    own = () if base is None else [name for name in (STEP, LOSS) if isroutine(getattr(kind, name, None))]
    return next((name for name in own if getattr(kind, name) is not getattr(base, name, None)), "")


def inspect_steps(
    module: nn.Module, training: Training | None = None, *, public_test: bool = False
) -> Iterator[Finding]:
    """Yields the steps and hooks that a LightningModule brings for its own trainer, and `training` does not leave to
    it; without `training`, nothing is left to it."""
    kind, own = type(module).__name__, list_own_methods(module)
    if training is not None:
        left = {STEP: training.own_loss, LOSS: training.own_loss, OPTIMIZERS: training.own_optimizer}
        brought = dict.fromkeys(sorted((*own, find_loss(module))))
        named = [name for name in brought if not left.get(name, True)]
        own = [name for name in own if name not in left and not (public_test and name == VALIDATION)]
        if named:
            yield Finding(
                "R345",
                f"the module ({kind}) has what the recipe does not leave to it: {_list(named)}",
                f"write {' and '.join(dict.fromkeys(KEYS[name] for name in named))}; or pass its network alone, an "
                "nn.Module with the layers and forward",
                "model",
            )
    if own:
        public = "declare data.test public, which validation_step scores, or " if own == [VALIDATION] else ""
        yield Finding(
            "R345",
            f"the module ({kind}) has training code of its own, that nothing calls: {_list(own)}",
            f"{public if training is not None else ''}remove it; or pass its network alone, an nn.Module with the "
            "layers and forward: the loss follows from the labels, and the recipe names optimiser and steps "
            "(training) and scores (data.test)",
            "model",
        )


def _inspect_missing(module: nn.Module, training: Training) -> Iterator[Finding]:
    kind, own = type(module).__name__, list_own_methods(module)
    missing = []
    if training.own_loss and not find_loss(module):
        missing.append(f"training.loss: python, and it has neither {STEP} nor {LOSS}(outputs, batch)")
    if training.own_optimizer and OPTIMIZERS not in own:
        missing.append(f"training.optimizer: python, and it has no {OPTIMIZERS}")
    if missing:
        yield Finding(
            "R345",
            f"the module ({kind}) lacks what the recipe leaves to it: {'; '.join(missing)}",
            "pass a LightningModule that has it, or let the recipe name its own",
            "model",
        )
    if STEP in own and not getattr(module, "automatic_optimization", True):
        yield Finding(
            "R345",
            f"the module ({kind}) optimises by itself (automatic_optimization = False)",
            f"let {STEP} return the losses, and {OPTIMIZERS} the optimiser",
            "model",
        )


def _inspect_weights(module: nn.Module) -> Iterator[Finding]:
    hooked = [name for name, parameter in module.named_parameters() if is_hooked(parameter)]
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


DRAW_FREE = frozenset(
    {
        *(nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity, nn.Flatten, nn.Unflatten),
        *(nn.Linear, nn.Bilinear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d),
        *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        *(nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
        *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus),
        *(nn.Sigmoid, nn.Tanh, nn.Hardtanh, nn.Softmax, nn.LogSoftmax),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
        *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
        *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
        *(StandardisedConv2d, ResidualBlock, TextTransformer, Layer, LowRankLayer, LocationModel),
    }
)
"""Layers that never draw, by exact type: a subclass may."""
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
HOOKS_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def is_draw_free(module: nn.Module) -> bool:
    """Returns True if no call of the module, nor its backward pass, can draw a random number.

    Guarantees: True only if every submodule is of a type in `DRAW_FREE`, has all methods of its type, and neither it
    nor a parameter nor all modules have hooks. Everything else counts as drawing, whether it does or not.
    """
    return (
        not has_hooks_for_all()  # type: ignore[no-untyped-call]
        and all(type(layer) in DRAW_FREE and not _is_altered(layer) for layer in module.modules())
        and not any(map(is_hooked, module.parameters()))
    )


def is_hooked(parameter: nn.Parameter) -> bool:
    """Returns True if something is called with the gradient of a weight."""
    return any(getattr(parameter, hooks) for hooks in HOOKS_OF_PARAMETERS)


def _is_altered(layer: nn.Module) -> bool:
    """Returns True if a layer has hooks, or methods other than those of its type."""
    own = any(callable(getattr(type(layer), name, None)) for name in vars(layer))
    return own or any(getattr(layer, hooks) for hooks in HOOKS)
