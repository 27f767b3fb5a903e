from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

torch = pytest.importorskip("torch", reason="torch is not installed")

from safetensors.torch import save_file  # noqa: E402

from dprecipe.data.facts import describe_data  # noqa: E402
from dprecipe.data.load import load as load_data  # noqa: E402
from dprecipe.data.schema import Data  # noqa: E402
from dprecipe.data.targets import NumberTarget  # noqa: E402
from dprecipe.faults import DataFault  # noqa: E402
from dprecipe.models.build import build  # noqa: E402
from dprecipe.models.file import describe_file, parse_description  # noqa: E402
from dprecipe.models.load import load  # noqa: E402
from dprecipe.models.prepare import UndeclaredValues  # noqa: E402
from dprecipe.models.schema import Model  # noqa: E402

DIGITS = {
    "train": {"source": "digits", "split": "train"},
    "size": 1438,
    "preprocess": [{"clip_features": {"norm": 1.0}}],
}
SCATTERED = {**DIGITS, "preprocess": [{"scattering": {"scales": 1, "angles": 4}}, {"group_norm": {"groups": 5}}]}
WHITENED = {**SCATTERED, "preprocess": [*SCATTERED["preprocess"], {"whiten": {"images": 100}}]}
PATCHES = {"filters": 10, "size": 3, "grid": 2, "mirror": True}
BY_CHANNELS = {"across": "channels", "images": 100, "power": 1, "floor": 1e-5}
PATCHED = {**DIGITS, "preprocess": [{"patches": PATCHES}, {"whiten": BY_CHANNELS}, {"group_norm": {"groups": 1}}]}
TABLE = {
    "train": {
        "source": "csv",
        "path": "t.csv",
        "columns": {
            "age": {"kind": "numeric", "min": 0, "max": 100},
            "sex": {"kind": "category", "values": ["f", "m"]},
        },
        "label": {"column": "ill", "values": ["no", "yes"]},
    },
    "size": 3,
    "preprocess": [{"one_hot": {}}, {"scale": {"mean": 0.5, "std": 0.5}}],
}
MLP = {"kind": "mlp", "hidden": [6]}


FOREST = {"kind": "random_forest", "trees": 7}
BOOSTED = {"kind": "gradient_boosting", "trees": 3}


def parsed(data: dict, model: dict) -> tuple[Data, Model]:
    return Data.model_validate_json(json.dumps(data)), TypeAdapter(Model).validate_json(json.dumps(model))


@pytest.fixture
def release(tmp_path: Path):
    def make(data: dict = DIGITS, model: dict = MLP, change: dict | None = None):
        block, spec = parsed(data, model)
        public = describe_data(block)
        module = build(spec, public.shape, public.outputs, 5)
        (tmp_path / "model.json").write_text(json.dumps({**describe_file(spec, block), **(change or {})}))
        save_file(module.state_dict(), tmp_path / "model.safetensors")
        return tmp_path, module

    return make


@pytest.mark.parametrize(
    "declared", [DIGITS, SCATTERED, WHITENED, PATCHED], ids=["pixels", "scattered", "whitened", "patches"]
)
def test_a_release_predicts_raw_features_as_training_saw_them(release, tmp_path: Path, declared: dict) -> None:
    folder, module = release(declared)
    data, _ = parsed(declared, MLP)
    records = load_data(data.train, data, tmp_path, "train")
    raw = load_data(data.train, data.model_copy(update={"preprocess": ()}), tmp_path, "train").features[:, 0]
    released = load(folder)
    np.testing.assert_array_equal(released.prepare(raw).numpy(), records.features)
    expected = module(torch.from_numpy(records.features)).argmax(1)
    assert released.predict(raw).tolist() == expected.tolist()
    np.testing.assert_array_equal(released.prepare(raw[7:8]).numpy(), records.features[7:8])
    assert not released.training
    assert not any(p.requires_grad for p in released.parameters())


def test_bytes_and_floats_of_images_are_the_same(release) -> None:
    released = load(release()[0])
    pixels = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    np.testing.assert_allclose(released.prepare(pixels), released.prepare(pixels / 255), rtol=1e-5)


def test_a_table_predicts_rows(release, tmp_path: Path) -> None:
    folder, module = release(TABLE)
    released = load(folder)
    rows = [{"age": 50, "sex": "m", "more": 1}, {"age": "1e9", "sex": "x"}]
    expected = torch.tensor([[0.0, -1, 1, -1], [1.0, -1, -1, 1]])
    clamped = "of 2 records, as training would count them: age: 1 clamped; sex: 1 not declared"
    with pytest.warns(UndeclaredValues, match=clamped):
        assert torch.equal(released.prepare(rows), expected)
    with pytest.warns(UndeclaredValues, match=clamped):
        named = released.predict(rows)
    assert named.tolist() == [("no", "yes")[number] for number in module(expected).argmax(1)]
    assert released.class_names == ("no", "yes")
    with pytest.raises(DataFault, match="row 0 has no 'sex'"):
        released.predict([{"age": 1}])
    with pytest.raises(DataFault, match=r"column 'age': a field is empty \(record 0"):
        released.predict([{"age": None, "sex": "f"}])


REGRESSIONS = [
    {"kind": "least_squares"},
    {"kind": "huber_regression", "bias": False},
    {"kind": "location"},
    {"kind": "location", "threshold": 0.2},
]
NUMBER = {**TABLE, "train": {**TABLE["train"], "label": {"column": "year", "range": [1900, 2011.5]}}}


@pytest.mark.parametrize("model", REGRESSIONS, ids=lambda model: "-".join(map(str, model.values())))
def test_a_released_regression_predicts_in_the_units_of_its_target_as_it_was_trained(
    release, tmp_path: Path, model: dict
) -> None:
    folder, module = release(NUMBER, model)
    generator = torch.Generator().manual_seed(3)
    state = {name: torch.randn(value.shape, generator=generator) / 4 for name, value in module.state_dict().items()}
    module.load_state_dict(state)
    save_file(state, folder / "model.safetensors")
    lines = "".join(f"{age},{sex},1950\n" for age, sex in ((0, "f"), (50, "m"), (99, "")))
    (tmp_path / "t.csv").write_text("age,sex,year\n" + lines)
    data, _ = parsed(NUMBER, model)
    records = load_data(data.train, data, tmp_path, "train")
    features = torch.from_numpy(records.features)

    released = load(folder)
    in_years = 1955.75 + 55.75 * module(features).double()
    assert torch.allclose(released(features), in_years, rtol=1e-12)
    with pytest.warns(UndeclaredValues, match=r"sex: 1 not declared"):
        predicted = released.predict([{"age": 0, "sex": "f"}, {"age": 50, "sex": "m"}, {"age": 99, "sex": ""}])
    assert predicted.tolist() == released(features)[:, 0].tolist()

    def mapped(x: torch.Tensor) -> torch.Tensor:
        if "location" in state:
            return state["location"].expand(len(x))
        return x @ state["1.weight"][0] + state.get("1.bias", 0)

    predicted = released(features)
    assert predicted.shape == (3, 1)
    assert torch.allclose(predicted[:, 0], 1955.75 + 55.75 * mapped(features).double(), rtol=1e-6)
    assert all(not value.any() for value in build(parsed(NUMBER, model)[1], (4,), 1, 0).parameters())


def test_model_json_of_a_regression(release) -> None:
    folder, _ = release(NUMBER, {"kind": "least_squares"})
    content = json.loads((folder / "model.json").read_text())
    assert content["target"] == [1900, 2011.5]
    assert "classes" not in content
    file = parse_description(json.dumps(content))
    assert file.facts.target == NumberTarget(1900, 2011.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": 2}, "neither a class, a number, a count nor names"),
        ({"target": None}, "neither a class, a number, a count nor names"),
        ({"target": [3, 3]}, "its range is empty"),
        ({"target": [3]}, "is not what dprecipe writes"),
        ({"target": None, "classes": 2}, "predicts a number, and the label is 2 classes"),
        ({"model": {"kind": "huber_svm"}}, "predicts classes, and the label is a number"),
    ],
)
def test_a_model_json_of_a_regression_that_was_changed(release, change: dict, message: str) -> None:
    with pytest.raises(DataFault, match=message):
        load(release(NUMBER, {"kind": "least_squares"}, change)[0])


def test_features_of_another_shape(release) -> None:
    released = load(release()[0])
    for raw in (np.zeros((2, 9, 8)), np.zeros((8, 8)), np.array([["a"]]), 1.0):
        with pytest.raises(DataFault, match="features have shape"):
            released.predict(raw)


@pytest.mark.parametrize("data", [DIGITS, SCATTERED, WHITENED, TABLE])
def test_model_json_round_trip(data: dict) -> None:
    block, spec = parsed(data, MLP)
    described = json.loads(json.dumps(describe_file(spec, block), allow_nan=False))
    file = parse_description(json.dumps(described))
    assert (file.model, file.shape, file.preprocess) == (spec, describe_data(block).shape, block.preprocess)
    model = build(file.model, file.facts.shape, file.facts.outputs, 0)
    assert model(torch.zeros((1, *file.shape))).shape == (1, file.facts.outputs)


def test_a_module_from_python(release) -> None:
    folder, module = release(model={"kind": "mlp", "hidden": [6]})
    content = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**content, "model": None}))
    with pytest.raises(DataFault, match="came from Python"):
        load(folder)
    block, spec = parsed(DIGITS, MLP)
    own = build(spec, describe_data(block).shape, 10, 99)
    loaded = load(folder, own)
    assert torch.equal(loaded.module[1].weight, module[1].weight)
    assert describe_file(None, block)["model"] is None


@pytest.fixture
def grown(tmp_path: Path):
    """A release of trees, with what its tensors are changed to."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from dprecipe.mechanisms.pate.train.fitted import fit_model

    def make(model: dict = FOREST, drop: str = "", **change):
        block, spec = parsed(DIGITS, model)
        records = load_data(block.train, block, tmp_path, "train")
        module = fit_model(spec, records.features[:200], records.labels[:200], 10, 0)
        state = {name: change.get(name, tensor) for name, tensor in module.state_dict().items() if name != drop}
        (tmp_path / "model.json").write_text(json.dumps(describe_file(spec, block)))
        save_file(state, tmp_path / "model.safetensors")
        return tmp_path, module

    return make


@pytest.mark.slow
@pytest.mark.parametrize("model", [FOREST, BOOSTED], ids=lambda model: model["kind"])
def test_trees_predict_as_they_did(grown, tmp_path: Path, model: dict) -> None:
    folder, module = grown(model)
    data, _ = parsed(DIGITS, model)
    features = torch.from_numpy(load_data(data.train, data, tmp_path, "train").features)
    released = load(folder)
    assert torch.equal(released(features), module(features))
    raw = load_data(data.train, data.model_copy(update={"preprocess": ()}), tmp_path, "train").features[:, 0]
    assert released.predict(raw).tolist() == module(features).argmax(1).tolist()
    assert {tensor.device.type for tensor in released.state_dict().values()} == {"cpu"}


LONG = torch.zeros(1, dtype=torch.int64)
BAD_TREES = {
    "a root that is no node": ({"root": LONG + 10**6}, "are no trees: a root is no node"),
    "no root": ({"root": LONG[:0]}, "are no trees: there is no tree"),
    "roots in a table": ({"root": LONG[:, None]}, "'root' has another shape"),
    "other nodes": ({"threshold": torch.zeros(5)}, "has another shape"),
    "other classes": ({"value": torch.zeros(5, 3, dtype=torch.float64)}, "'value' has another shape"),
    "another type": ({"root": LONG.int()}, r"'root' is torch.int32, expected torch.int64"),
    "none": ({"drop": "threshold"}, "1 names differ"),
    "no nodes": (
        {
            "root": LONG,
            "child": torch.zeros(0, 2, dtype=torch.int64),
            "feature": LONG[:0],
            "threshold": torch.zeros(0),
            "value": torch.zeros(0, 10, dtype=torch.float64),
        },
        "there is no tree",
    ),
    "a circle": (
        {
            "root": LONG,
            "child": torch.tensor([[1, 1], [0, 0]]),
            "feature": torch.zeros(2, dtype=torch.int64),
            "threshold": torch.zeros(2),
            "value": torch.zeros(2, 10, dtype=torch.float64),
        },
        "a child is no node behind its parent",
    ),
}


@pytest.mark.parametrize("name", BAD_TREES)
def test_weights_that_are_no_trees(grown, name: str) -> None:
    change, message = BAD_TREES[name]
    with pytest.raises(DataFault, match=message) as caught:
        load(grown(**change)[0])
    assert caught.value.remedy


HUGE = {"kind": "mlp", "hidden": [10**6, 10**6]}
BAD = {
    "another class": ({"classes": 9}, "has another shape"),
    "another shape": ({"shape": [64]}, "does not make features of its shape"),
    "another depth": ({"model": {"kind": "mlp", "hidden": [6, 6]}}, "2 names differ"),
    "huge": ({"model": HUGE}, "differ|another shape"),
    "a cnn that does not fit": ({"model": {"kind": "cnn", "preset": "lenet"}}, "needs images of 12×12"),
    "unknown kind": ({"model": {"kind": "os.system"}}, "is not what dprecipe writes"),
    "unknown key": ({"exec": 1}, "is not what dprecipe writes"),
    "not finite": ({"preprocess": [{"clip_features": {"norm": float("inf")}}]}, "is not what dprecipe writes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_model_json_that_was_changed(release, name: str) -> None:
    change, message = BAD[name]
    with pytest.raises(DataFault, match=message):
        load(release(change=change)[0])


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b" " * (17 << 20)])
def test_garbage_as_model_json(release, content: bytes) -> None:
    folder, _ = release()
    (folder / "model.json").write_bytes(content)
    with pytest.raises(DataFault, match=r"model\.json"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"\x80\x04pickle", b"\xff" * 100])
def test_garbage_as_weights(release, content: bytes) -> None:
    folder, _ = release()
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(DataFault, match="no safetensors file"):
        load(folder)


def test_weights_of_another_type_or_none(release) -> None:
    folder, module = release()
    save_file({k: v.double() for k, v in module.state_dict().items()}, folder / "model.safetensors")
    with pytest.raises(DataFault, match=r"is torch.float64, expected torch.float32"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataFault, match="no such file"):
        load(folder)


def test_probabilities_are_those_of_the_logits_in_every_batch_size(release, tmp_path: Path) -> None:
    folder, module = release()
    data, _ = parsed(DIGITS, MLP)
    raw = load_data(data.train, data.model_copy(update={"preprocess": ()}), tmp_path, "train").features[:50, 0]
    released = load(folder)
    probabilities = released.predict_proba(raw)
    expected = torch.softmax(module(released.prepare(raw)).double(), 1)
    np.testing.assert_allclose(probabilities, expected.detach().numpy(), rtol=1e-12)
    assert (probabilities.shape, probabilities.dtype) == ((50, 10), np.float64)
    assert (released.predict(raw) == probabilities.argmax(1)).all()
    for size in (1, 7, 50, 1000):
        np.testing.assert_allclose(released.predict_proba(raw, batch_size=size), probabilities, rtol=1e-5)
        assert released.predict(raw, batch_size=size).shape == (50,)
    assert released.predict(raw[:0]).shape == (0,)
    assert released.predict_proba(raw[:0]).shape == (0, 10)
    with pytest.raises(DataFault, match="batch_size is 0"):
        released.predict(raw, batch_size=0)


def test_trees_have_the_probabilities_that_they_were_grown_with(grown, tmp_path: Path) -> None:
    folder, _ = grown(FOREST)
    data, _ = parsed(DIGITS, FOREST)
    raw = load_data(data.train, data.model_copy(update={"preprocess": ()}), tmp_path, "train").features[:20, 0]
    probabilities = load(folder).predict_proba(raw)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)
    chances = np.round(probabilities * 7, 6)  # of seven trees whose leaves are mostly of one class
    assert (chances == np.round(chances)).mean() > 0.9


@pytest.mark.parametrize(
    ("data", "model", "reason"),
    [
        (NUMBER, {"kind": "least_squares"}, "predicts a number"),
        (TABLE, {"kind": "huber_svm"}, "are margins"),
    ],
)
def test_what_has_no_probabilities_says_why(release, data: dict, model: dict, reason: str) -> None:
    released = load(release(data, model)[0])
    with pytest.raises(DataFault, match=reason) as caught:
        released.predict_proba([{"age": 1, "sex": "f"}])
    assert caught.value.remedy == "use predict"
    released.predict([{"age": 1, "sex": "f"}])


def test_a_frame_predicts_as_its_rows_do(release) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    released = load(release(TABLE)[0])
    rows = [{"age": age, "sex": sex} for age, sex in ((0, "f"), (99.5, "m"), (20, "m"))] * 700
    frame = pandas.DataFrame(rows, columns=["sex", "age"])
    assert set(released.predict(frame)) <= {"no", "yes"}
    np.testing.assert_array_equal(released.predict(frame), released.predict(rows))
    np.testing.assert_array_equal(released.predict_proba(frame), released.predict_proba(rows))


def test_a_folder_that_holds_a_release_is_loaded(release, tmp_path: Path) -> None:
    folder, module = release()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "release").symlink_to(folder, target_is_directory=True)
    assert torch.equal(load(tmp_path / "run").module[1].weight, module[1].weight)
