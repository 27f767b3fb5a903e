"""Checks of the model block against the shape and the labels of the data. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.data.facts import DataFacts
from dprecipe.data.targets import ClassTarget, NumberTarget, TokenTarget
from dprecipe.faults import Finding
from dprecipe.models.layout import MIN_WIDE_RESNET_SIZE, find_unknown_layers, layer_shapes, smallest_size
from dprecipe.models.prior_checks import find_unusable_prior
from dprecipe.models.schema import (
    CausalLm,
    Cnn,
    Convex,
    Hub,
    HuberSvm,
    LogisticRegression,
    Model,
    Networks,
    NoModel,
    Pretrained,
    Regression,
    Timm,
    TrainedLayers,
    Transformer,
    Transformers,
    WideResNet,
)

WEIGHTS = ".safetensors"
"""The suffix of weight files. Files in torch's own format can run code when they are read."""


def check_data(model: Model, facts: DataFacts) -> list[Finding]:
    """Explains why this model can't read these features or learn these labels (R25x), with paths but without places."""
    if isinstance(model, NoModel):
        return []
    prior = find_unusable_prior(model, facts) if isinstance(model, Pretrained) else ()
    findings = [*_labels(model, facts), *_features(model, facts), *_start(model), *prior]
    return findings or list(_layers(model, facts))


def find_unsupported(model: Model, mechanism: str, *, fitted: bool, convex: str = "") -> Iterator[Finding]:
    """Models and keys that only mechanisms for convex losses support (R280), for any other mechanism.

    `fitted`: the model is fitted directly, without steps. `convex`: the names of the convex mechanisms, as text.
    """
    if isinstance(model, Convex):
        choice = [f"choose model.kind {'linear' if isinstance(model, Regression) else 'logistic_regression'}"]
        yield Finding(
            "R280",
            f"a {model.kind} is trained by {convex or 'a convex mechanism'}, which needs its constants; {mechanism} "
            "does not support it",
            ", or ".join([*([f"use mechanism.kind {convex}"] if convex else []), *choice])
            or "choose another model.kind",
            "model.kind",
        )
    if not isinstance(model, LogisticRegression):
        return
    if model.l2:
        yield Finding(
            "R280",
            f"l2 is the regulariser of {convex or 'a convex mechanism'}; {mechanism} does not use it",
            "remove model.l2; with optimizer sgd or adam, training.optimizer.weight_decay shrinks the weights",
            "model.l2",
        )
    if fitted and not model.bias:
        yield Finding(
            "R280",
            "a logistic_regression that is fitted directly needs a bias, which keeps a class without records low",
            "remove model.bias, or train the model by steps",
            "model.bias",
        )


def _labels(model: Model, facts: DataFacts) -> Iterator[Finding]:
    target = facts.target
    if isinstance(model, Regression) and not isinstance(target, NumberTarget):
        yield Finding(
            "R252",
            f"{model.kind} predicts a number, and the label is {target.describe()}",
            "declare the label as a number, `range: [lowest, highest]`, or choose model.kind linear",
            "model.kind",
        )
    elif not isinstance(model, Regression | Networks) and not isinstance(target, ClassTarget):
        convex = " (where the loss has to be convex: least_squares, huber_regression or location)"
        yield Finding(
            "R253",
            f"{model.kind} predicts classes, and the label is {target.describe()}",
            f"choose model.kind linear or mlp{convex if isinstance(target, NumberTarget) else ''}, or declare the "
            "classes of the label",
            "model.kind",
        )
    elif isinstance(model, HuberSvm) and facts.outputs != 2:
        yield Finding(
            "R254",
            f"huber_svm predicts one of two classes, and there are {facts.outputs}",
            "choose model.kind softmax_regression",
            "model.kind",
        )


def _features(model: Model, facts: DataFacts) -> list[Finding]:
    if isinstance(facts.target, TokenTarget) or isinstance(model, CausalLm):
        return list(_next_tokens(model, facts))
    if isinstance(model, Transformer):
        return list(_tokens(model, facts))
    if isinstance(model, Transformers):
        return list(_numbered(model, facts))
    if facts.vocabulary is not None:
        return list(_quantities(model))
    return _images(model, facts) if isinstance(model, Cnn | WideResNet | Timm) else []


def _next_tokens(model: Model, facts: DataFacts) -> Iterator[Finding]:
    """Yields a finding where a model that is no decoder learns next tokens, or a decoder learns anything else."""
    if not isinstance(model, CausalLm):
        yield Finding(
            "R255",
            f"a {model.kind} does not learn the next token of a text",
            "choose model.kind causal_lm; or replace `sequences` by `tokenize`, and declare in data.train.label what "
            "is learned",
            "model.kind",
        )
    elif not isinstance(facts.target, TokenTarget):
        yield Finding(
            "R255",
            f"a causal_lm learns the next token of a text, and the label is {facts.target.describe()}",
            "write label: next_token, and `sequences` in data.preprocess; or choose model.kind transformers, which "
            "learns labels of texts",
            "model.kind",
        )


def _quantities(model: Model) -> Iterator[Finding]:
    """Yields a finding where a model reads token numbers as quantities: they are names, and their order has no
    meaning.
    """
    yield Finding(
        "R255",
        f"a {model.kind} would read token numbers as quantities",
        "choose model.kind transformer, or replace `tokenize` by `hash`, which counts words",
        "model.kind",
    )


def _numbered(model: Transformers, facts: DataFacts) -> Iterator[Finding]:
    """Yields a finding where a `transformers` model's features are not tokens of its own vocabulary."""
    if len(facts.shape) != 1 or (facts.vocabulary is not None and facts.tokenizer is None):
        subject = "×".join(map(str, facts.shape)) if facts.vocabulary is None else "hashed words, which are not in it"
        yield Finding(
            "R255",
            f"a model of transformers reads the numbers of its own tokens, and the features are {subject}",
            "name the model's own tokeniser in `tokenize`, or store the tokens in an npz source; use no other "
            "preprocessing",
            "model.kind",
        )


def _tokens(model: Transformer, facts: DataFacts) -> Iterator[Finding]:
    if len(facts.shape) != 1:
        yield Finding(
            "R255",
            f"a transformer reads tokens, and the features are {'×'.join(map(str, facts.shape))}",
            "choose model.kind cnn or wide_resnet, or add `tokenize` to data.preprocess",
            "model.kind",
        )
    elif facts.vocabulary is None and model.vocabulary is None:
        yield Finding(
            "R255",
            "a transformer reads tokens, and their number is not declared",
            "add `tokenize` to data.preprocess or, for a source that contains tokens, set model.vocabulary",
            "model",
        )
    elif facts.vocabulary is not None and model.vocabulary not in (None, facts.vocabulary):
        yield Finding(
            "R255",
            f"model.vocabulary is {model.vocabulary:,}, and `tokenize` makes {facts.vocabulary:,} tokens",
            "remove model.vocabulary",
            "model.vocabulary",
        )
    if facts.tokenizer is not None and facts.tokenizer.padding:
        yield Finding(
            "R228",
            f"a transformer takes token 0 for padding, and the tokeniser pads with {facts.tokenizer.padding}",
            "name a tokeniser that pads with 0, or choose model.kind transformers",
            "data.preprocess",
        )
    if model.width % model.heads:
        yield Finding(
            "R256",
            f"{model.heads} heads can't share a width of {model.width}",
            f"set model.width to {-(-model.width // model.heads) * model.heads}, or choose other model.heads",
            "model.heads",
        )


def _start(model: Model) -> Iterator[Finding]:
    """Weights that are not trained need a source, and the trained layers are chosen once (R257 to R259)."""
    adapted = isinstance(model, Transformer | Hub) and model.lora is not None
    if not isinstance(model, Pretrained):
        return
    if isinstance(model, Transformers | CausalLm) and (model.init is None) == (model.hub is None):
        yield Finding(
            "R258",
            "the model has no source" if model.hub is None else "the model has two sources, a folder and the hub",
            "set either model.init to a folder with config.json and model.safetensors, or model.hub to a name and a "
            "revision",
            "model",
        )
    if model.init is not None and not isinstance(model, Transformers | CausalLm) and not model.init.endswith(WEIGHTS):
        yield Finding(
            "R259",
            f"initial weights are read only from safetensors files, not from {model.init}",
            "save the weights with safetensors.torch.save_file(module.state_dict(), path), and set model.init to a "
            f"file that ends in {WEIGHTS}",
            "model.init",
        )
    if isinstance(model.train, TrainedLayers) and (model.train.from_ is None) == (model.train.only is None):
        both = model.train.only is not None
        yield Finding(
            "R257",
            "model.train says twice which layers are trained" if both else "model.train names no layers",
            "remove model.train.from or model.train.only" if both else "write {from: layer} or {only: [layers]}",
            "model.train",
        )
    if model.train != "all" and adapted:
        yield Finding(
            "R257",
            "model.train leaves layers alone that lora adapts",
            "remove model.lora, or model.train: lora itself says what is trained",
            "model.lora",
        )
    elif model.starts_elsewhere:
        return
    elif model.train != "all":
        below = "below the last layer" if model.train == "head" else "of the other layers"
        yield Finding(
            "R257",
            f"the weights {below} are neither trained nor given",
            "set model.init to a file of public weights, or remove model.train",
            "model.train",
        )
    elif adapted:
        yield Finding(
            "R257",
            "lora adapts given weights, and none are given",
            "set model.init to a file of public weights, or remove model.lora",
            "model.lora",
        )


def _layers(model: Model, facts: DataFacts) -> Iterator[Finding]:
    """Yields findings for trained layers that the network does not have. Those of other libraries are known once
    they are built.
    """
    if not isinstance(model, Pretrained) or not isinstance(model.train, TrainedLayers):
        return
    shapes = layer_shapes(model, facts.shape, facts.outputs, facts.vocabulary)
    if shapes is not None:
        yield from find_unknown_layers(model.train, list(shapes))


def _images(model: Cnn | WideResNet | Timm, facts: DataFacts) -> list[Finding]:
    shape = "×".join(map(str, facts.shape))
    if len(facts.shape) != 3:
        return [
            Finding(
                "R250",
                f"a {model.kind} reads images, and the features are a vector of {shape}",
                "choose model.kind mlp or logistic_regression"
                + (", or remove data.preprocess flatten" if len(facts.source_shape) == 3 else ""),
                "model.kind",
            )
        ]
    if isinstance(model, Timm):
        return []  # only the library knows
    if isinstance(model, WideResNet):
        if min(facts.shape[1:]) >= MIN_WIDE_RESNET_SIZE:
            return []
        return [
            Finding(
                "R251",
                f"a wide_resnet needs images of {MIN_WIDE_RESNET_SIZE}×{MIN_WIDE_RESNET_SIZE} or more, and these are "
                f"{shape} (channels×height×width)",
                "choose model.kind mlp",
                "model.kind",
            )
        ]
    needed = smallest_size(model.preset)
    if min(facts.shape[1:]) < needed:
        fits = [p for p in ("tempered-cifar", "lenet") if smallest_size(p) <= min(facts.shape[1:])]
        return [
            Finding(
                "R251",
                f"preset {model.preset} needs images of {needed}×{needed} or more, and these are {shape} "
                "(channels×height×width)",
                f"choose {' or '.join(f'preset {p}' for p in fits) or 'model.kind mlp'}",
                "model.preset",
            )
        ]
    return []
