"""The `model` block: the function to be learned."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.language.base import Block, NonNegativeInt, PositiveFloat, PositiveInt, Text, word_form
from dprecipe.priors.schema import Prior

L2 = Annotated[float, Field(ge=0, le=1e6)]
REGULARISER = "λ of (λ/2)‖w‖², added to the mean loss; of mechanisms for convex losses"
BIAS = "a constant feature of 1"


class LogisticRegression(Block):
    """Logistic regression on flattened features, by softmax where there are more than two classes; starts at zero."""

    kind: Literal["logistic_regression"]
    l2: L2 = Field(0.0, description=REGULARISER)
    bias: bool = Field(True, description=BIAS)


class SoftmaxRegression(Block):
    """Softmax regression on flattened features: a weight for each class and feature."""

    kind: Literal["softmax_regression"]
    l2: L2 = Field(0.0, description=REGULARISER)
    bias: bool = Field(True, description=BIAS)


class Linear(Block):
    """One linear layer on flattened features: of classes a logistic regression, of a number a linear one, of a count a
    Poisson regression; starts at zero."""

    kind: Literal["linear"]
    bias: bool = Field(True, description=BIAS)


class HuberSvm(Block):
    """A linear classifier of two classes by the hinge loss, made smooth around its kink."""

    kind: Literal["huber_svm"]
    width: PositiveFloat = Field(0.5, description="h: the loss is a parabola for margins from 1 - h to 1 + h")
    l2: L2 = Field(0.0, description=REGULARISER)
    bias: bool = Field(True, description=BIAS)


class LeastSquares(Block):
    """Linear regression by half the squared error; with `l2`, ridge regression."""

    kind: Literal["least_squares"]
    l2: L2 = Field(0.0, description=REGULARISER)
    bias: bool = Field(True, description=BIAS)


class HuberRegression(Block):
    """Linear regression by Huber's loss: squared for small errors, absolute for large ones."""

    kind: Literal["huber_regression"]
    threshold: PositiveFloat = Field(0.5, description="τ, where small ends, in halves of the target's range")
    l2: L2 = Field(0.0, description=REGULARISER)
    bias: bool = Field(True, description=BIAS)


class Location(Block):
    """One number near all targets: their mean by half the squared error, or with `threshold` by Huber's loss."""

    kind: Literal["location"]
    threshold: PositiveFloat | None = Field(None, description="τ, in halves of the target's range")


LayerPattern = Annotated[str, Field(min_length=1, max_length=200)]


class Lora(Block):
    """Low-rank adapters of the linear layers: the layers stay as they are, the adapters and the last layer are trained.

    Source: E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
    """

    rank: Annotated[int, Field(ge=1, le=1024)] = 8
    alpha: PositiveFloat = Field(16.0, description="adapters count alpha / rank times")
    target: Annotated[tuple[LayerPattern, ...], Field(min_length=1, max_length=100)] | None = Field(
        None,
        description="the layers by name, `*` stands for any characters; all linear ones but the last when left out",
    )


LayerName = Annotated[str, Field(min_length=1, max_length=200)] | NonNegativeInt
"""A layer, or a part that holds several, by its name in the network; layers of a sequence are numbered."""


class TrainedLayers(Block):
    """Layers that are trained: one of the two keys. The others stay as `init` has them."""

    from_: LayerName | None = Field(None, alias="from", description="this layer, and all behind it")
    only: Annotated[tuple[LayerName, ...], Field(min_length=1, max_length=100)] | None = Field(
        None, description="layers by name; `*` stands for any characters, `?` for one"
    )


class Pretrained(Block):
    """Weights that a network starts from, and the layers that are trained."""

    init: Text | None = Field(
        None, description="safetensors file of initial weights that were learned from public data alone"
    )
    train: Annotated[
        Annotated[Literal["all", "head"], Tag("word")] | Annotated[TrainedLayers, Tag("block")],
        Discriminator(lambda value: "block" if word_form(value) == "block" else "word"),
    ] = Field("all", description="`head`: the last layer, on top of fixed weights; or the layers by name")

    @property
    def starts_elsewhere(self) -> bool:
        """True if the first weights were learned, and not drawn from the seed."""
        return self.init is not None


class Primed(Pretrained):
    """A network whose initial weights `dprecipe prior` can learn from images of a random process."""

    prior: Prior | None = Field(
        None, description="what the weights of `init` were learned from: images made from a seed, no real data"
    )


class Mlp(Primed):
    """A multi-layer perceptron on flattened features."""

    kind: Literal["mlp"]
    hidden: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = Field(description="widths of the hidden layers")
    activation: Literal["tanh", "relu"] = "tanh"


class Cnn(Primed):
    """A convolutional network for images."""

    kind: Literal["cnn"]
    preset: Literal["tempered-mnist", "tempered-cifar", "lenet", "lenet-norm", "scattering"] = Field(
        description="`tempered-…`: the tanh networks of Papernot et al. 2021; `lenet`: a small ReLU network; "
        "`lenet-norm`: a little wider, with normalisation, for students and teachers of few labels; "
        "`scattering`: a tanh network for the features of data.preprocess scattering"
    )


class WideResNet(Primed):
    """A wide residual network for images, with group normalisation: Zagoruyko and Komodakis 2016, De et al. 2022."""

    kind: Literal["wide_resnet"]
    depth: Literal[10, 16, 22, 28, 40] = Field(16, description="layers: 6 for each block of the three stages, and 4")
    width: Annotated[int, Field(ge=1, le=16)] = Field(4, description="stages have 16, 32 and 64 times as many channels")
    weight_standardisation: bool = Field(True, description="kernels of mean 0 and one variance, wherever they are used")


class Transformer(Pretrained):
    """A small transformer that reads tokens; it sees each record by itself and has no dropout."""

    kind: Literal["transformer"]
    width: Annotated[int, Field(ge=1, le=4096)] = 128
    layers: Annotated[int, Field(ge=1, le=48)] = 2
    heads: Annotated[int, Field(ge=1, le=64)] = Field(4, description="of attention; they share the width")
    vocabulary: Annotated[int, Field(ge=2, le=2**20)] | None = Field(
        None, description="number of tokens, 0 is padding; that of data.preprocess tokenize when left out"
    )
    lora: Lora | None = Field(None, description="train low-rank adapters of `init` instead of all weights")


class Timm(Pretrained):
    """A model of the library `timm`, for images. Those with batch normalisation are refused when they are built."""

    kind: Literal["timm"]
    name: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,60}(\.[a-z0-9_]{1,60})?$")] = Field(
        description="as in timm.list_models(); weights come from `init`, or from the seed"
    )
    lora: Lora | None = Field(None, description="train low-rank adapters of `init` instead of all weights")


class HubModel(Block):
    """A model of the Hugging Face hub, pinned: its tensors are fetched, never its code."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$")]
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] = Field(description="the commit")


class Transformers(Pretrained):
    """An encoder of the library `transformers` that classifies tokens: `init` is its folder, with config.json and
    model.safetensors; or it comes from the hub."""

    kind: Literal["transformers"]
    hub: HubModel | None = Field(None, description="instead of `init`")
    lora: Lora | None = Field(None, description="train low-rank adapters instead of all weights")

    @property
    def starts_elsewhere(self) -> bool:
        return True


class CausalLm(Pretrained):
    """A decoder of the library `transformers` that learns the next token of a text: `init` is its folder, with
    config.json and model.safetensors; or it comes from the hub."""

    kind: Literal["causal_lm"]
    hub: HubModel | None = Field(None, description="instead of `init`")
    lora: Lora | None = Field(None, description="train low-rank adapters instead of all weights")

    @property
    def starts_elsewhere(self) -> bool:
        return True


class RandomForest(Block):
    """Decision trees on random parts of the records and features, averaged; for tables."""

    kind: Literal["random_forest"]
    trees: Annotated[int, Field(ge=1, le=10_000)] = 100
    max_depth: PositiveInt | None = Field(None, description="levels of a tree; until leaves are pure when left out")
    min_leaf: PositiveInt = Field(1, description="least records in a leaf")
    max_features: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="part of the features that a split chooses among; the root of their number when left out"
    )


class GradientBoosting(Block):
    """Small decision trees, each on what those before it got wrong; for tables."""

    kind: Literal["gradient_boosting"]
    trees: Annotated[int, Field(ge=1, le=10_000)] = Field(100, description="rounds; each grows a tree for every class")
    max_depth: PositiveInt = Field(3, description="levels of a tree")
    min_leaf: PositiveInt = Field(1, description="least records in a leaf")
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 0.1


class NoModel(Block):
    """No model: the labels of public records are the whole release."""

    kind: Literal["none"]


PrimedNetwork = Mlp | Cnn | WideResNet
"""Every kind of `Primed`."""

Hub = Timm | Transformers | CausalLm
"""Models of other libraries, whose sizes are unknown until they are built."""

Trees = RandomForest | GradientBoosting
"""Models that are fitted at once."""

Convex = SoftmaxRegression | HuberSvm | LeastSquares | HuberRegression | Location
"""Models of a convex loss with proven constants: what projected noisy SGD trains, besides logistic regression."""

Regression = LeastSquares | HuberRegression | Location
"""Models of a number, and not of classes."""

Networks = Linear | Mlp | Cnn | WideResNet | Transformer | Hub
"""Models that learn any label by gradient steps."""

Model = Annotated[
    LogisticRegression
    | Mlp
    | Cnn
    | WideResNet
    | Transformer
    | Timm
    | Transformers
    | CausalLm
    | Linear
    | RandomForest
    | GradientBoosting
    | SoftmaxRegression
    | HuberSvm
    | LeastSquares
    | HuberRegression
    | Location
    | NoModel,
    Field(discriminator="kind"),
]
