"""A model block to a torch module with its initial weights."""

from __future__ import annotations

import math

import torch
from torch import nn

from dprecipe.models.hub_config import Config
from dprecipe.models.schema import (
    CausalLm,
    Cnn,
    GradientBoosting,
    HuberRegression,
    HuberSvm,
    LeastSquares,
    Linear,
    Location,
    LogisticRegression,
    Mlp,
    Model,
    NoModel,
    RandomForest,
    SoftmaxRegression,
    Timm,
    Transformer,
    Transformers,
    WideResNet,
)
from dprecipe.models.zoo.causal_lm import causal_model
from dprecipe.models.zoo.cnn import build_cnn, build_wide_resnet
from dprecipe.models.zoo.forest import Forest
from dprecipe.models.zoo.hub import image_model, token_model
from dprecipe.models.zoo.linear import LocationModel, build_linear, build_mlp
from dprecipe.models.zoo.transformer import TextTransformer


def build(
    model: Model,
    shape: tuple[int, ...],
    outputs: int,
    seed: int,
    vocabulary: int | None = None,
    config: Config | None = None,
    max_length: int | None = None,
) -> nn.Module:
    """Returns the module: (B, *shape) float32 features to (B, outputs), which `models.outputs` interprets.
    `vocabulary`: how many tokens there are, if it reads any; `config`: of a model of transformers; `max_length`: of a
    sequence, where a record has several.

    Trees are not grown yet: one leaf, for which all classes are alike, until `load_state_dict` gives them their own.

    Guarantees: the weights are a function of (model, shape, outputs, seed) and of the torch version; the
    global generator of random numbers is left as it was found. `shape` has to pass `dprecipe.models.checks`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        match model:
            case (
                LogisticRegression() | SoftmaxRegression() | HuberSvm() | Linear() | LeastSquares() | HuberRegression()
            ):
                return build_linear(shape, outputs, model.bias)
            case Location():
                return LocationModel()
            case Mlp():
                return build_mlp(model, shape, outputs)
            case Cnn():
                return build_cnn(model, shape, outputs)
            case WideResNet():
                return build_wide_resnet(model, shape[0], outputs)
            case Transformer():
                return TextTransformer(model, shape[0], _tokens(model, vocabulary), outputs)
            case Timm():
                return image_model(model, shape[0], outputs)
            case Transformers():
                if config is None:
                    raise ValueError("a model of transformers needs its configuration")
                return token_model(config, shape[0], outputs)
            case CausalLm():
                if config is None:
                    raise ValueError("a decoder needs its configuration")
                return causal_model(config, max_length or shape[1])
            case NoModel():
                raise ValueError("there is no model to build")
            case RandomForest() | GradientBoosting():
                return Forest(math.prod(shape), outputs, averaged=isinstance(model, RandomForest))


def _tokens(model: Transformer, vocabulary: int | None) -> int:
    result = model.vocabulary or vocabulary
    if result is None:
        raise ValueError("a model of tokens needs their number")
    return result
