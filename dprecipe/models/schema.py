"""The `model` block: the function to be learned."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dprecipe.recipe.base import Block, PositiveInt


class LogisticRegression(Block):
    """Softmax regression on flattened features; starts at zero."""

    kind: Literal["logistic_regression"]


class Mlp(Block):
    """A multi-layer perceptron on flattened features."""

    kind: Literal["mlp"]
    hidden: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = Field(description="widths of the hidden layers")
    activation: Literal["tanh", "relu"] = "tanh"


class Cnn(Block):
    """A convolutional network for images."""

    kind: Literal["cnn"]
    preset: Literal["tempered-mnist", "tempered-cifar", "lenet"] = Field(
        description="`tempered-…`: the tanh networks of Papernot et al. 2021; `lenet`: a small ReLU network"
    )


Model = Annotated[LogisticRegression | Mlp | Cnn, Field(discriminator="kind")]
