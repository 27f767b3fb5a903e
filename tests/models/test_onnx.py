"""What is exported to ONNX computes what the module does, on one record and on many; what is not exported says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

torch = pytest.importorskip("torch", reason="torch is not installed")

from dprecipe import libraries  # noqa: E402
from dprecipe.data.sources.labels import Count  # noqa: E402
from dprecipe.faults import DataFault, UsageFault  # noqa: E402
from dprecipe.models import onnx as exporting  # noqa: E402
from dprecipe.models.build import build  # noqa: E402
from dprecipe.models.file import ModelFile  # noqa: E402
from dprecipe.models.load import Released  # noqa: E402
from dprecipe.models.schema import Model  # noqa: E402

CASES: dict[str, dict[str, Any]] = {
    "logistic": {"model": {"kind": "logistic_regression"}, "shape": (5,), "classes": 3},
    "regression": {"model": {"kind": "least_squares"}, "shape": (5,), "target": (1900.0, 2011.5)},
    "counts": {"model": {"kind": "mlp", "hidden": [8]}, "shape": (5,), "count": Count(max=20)},
    "names": {"model": {"kind": "linear"}, "shape": (5,), "several": ("a", "b", "c")},
    "mlp": {"model": {"kind": "mlp", "hidden": [8]}, "shape": (1, 8, 8), "classes": 10},
    "cnn": {"model": {"kind": "cnn", "preset": "lenet"}, "shape": (1, 28, 28), "classes": 10},
    "wide_resnet": {"model": {"kind": "wide_resnet", "depth": 10, "width": 1}, "shape": (3, 32, 32), "classes": 10},
    "transformer": {"model": {"kind": "transformer", "vocabulary": 101}, "shape": (16,), "classes": 2},
}


def make_model(
    model: dict[str, Any],
    shape: tuple[int, ...],
    classes: int | None = None,
    target: tuple[float, float] | None = None,
    count: Count | None = None,
    several: tuple[str, ...] | None = None,
) -> Any:
    spec = TypeAdapter(Model).validate_json(json.dumps(model))
    module = build(spec, shape, classes or len(several or "1"), 0)
    generator = torch.Generator().manual_seed(0)
    for tensor in module.parameters():
        tensor.data += 0.1 * torch.randn(tensor.shape, generator=generator)
    names = None if classes is None else tuple(f"class {number}" for number in range(classes))
    kinds: dict[str, Any] = {"classes": classes, "target": target, "count": count, "several": several}
    file = ModelFile(model=spec, shape=shape, class_names=names, source_shape=shape, **kinds)
    return Released(module, file)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_file_computes_what_the_module_does(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    model, target = make_model(**CASES[name]), tmp_path / "model.onnx"
    exported = exporting.export_onnx(model, target, {"dprecipe:certificate.json": "sha256:00"})
    assert exported.records >= 60
    assert exported.difference <= 5e-6
    session = onnxruntime.InferenceSession(str(target))
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["dprecipe:certificate.json"] == "sha256:00"
    if model.class_names is not None:
        assert tuple(json.loads(metadata["class_names"])) == model.class_names
    shape = CASES[name]["shape"]
    for count in (1, 3, 40):
        features = np.random.default_rng(count).integers(0, 3, (count, *shape)).astype(np.float32)
        (found,) = session.run(["outputs"], {"features": features})
        np.testing.assert_allclose(found, model.outputs(features), rtol=1e-4, atol=1e-4)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("model", "reason"),
    [({"kind": "random_forest", "trees": 3}, "trees are not exported"), ({"kind": "location"}, "is one number")],
)
def test_what_is_not_exported_says_why(
    model: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: name)
    regression = model["kind"] == "location"
    released = make_model(model, (5,), None if regression else 3, (0.0, 1.0) if regression else None)
    with pytest.raises(DataFault, match=reason):
        exporting.export_onnx(released, tmp_path / "model.onnx", {})
    assert list(tmp_path.iterdir()) == []


def test_missing_libraries_are_named_with_their_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(UsageFault, match="exporting to ONNX needs onnxscript, which is not installed") as caught:
        exporting.export_onnx(make_model(**CASES["mlp"]), tmp_path / "model.onnx", {})
    assert "dprecipe[onnx]" in caught.value.remedy


@pytest.mark.slow
def test_a_file_that_computes_something_else_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    model = make_model(**CASES["logistic"])
    outputs = model.outputs
    monkeypatch.setattr(Released, "outputs", lambda self, features: outputs(features) + 1e-3)
    with pytest.raises(Exception, match="does not compute what the model does"):
        exporting.export_onnx(model, tmp_path / "model.onnx", {})
    assert list(tmp_path.iterdir()) == []
