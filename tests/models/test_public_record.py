"""What weights say of themselves is read strictly, and counts only with the tensors that it names."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from dprecipe.faults import DataFault
from dprecipe.models.public_record import KEY, NO_GUARANTEE, PublicRecord, parse_record
from dprecipe.priors.record import digest_tensors

DIGEST = "sha256:" + "5" * 64
TENSORS = {"1.weight": np.ones((2, 3), dtype=np.float32)}


def content(**change: Any) -> dict[str, Any]:
    record = PublicRecord.model_validate(
        {
            "recipe": {"name": "first", "digest": DIGEST},
            "data": (
                {"role": "train", "source": "idx", "part": "", "files": {"a.gz": DIGEST}, "count": 7, "digest": DIGEST},
            ),
            "steps": 3,
            "seed": 0,
            "weights": digest_tensors(save(TENSORS)),
            "versions": {"torch": "2"},
            "device": "cpu",
        }
    )
    return {**record.model_dump(mode="json", by_alias=True), **change}


def file(record: Any, tensors: dict[str, Any] | None = None) -> bytes:
    return save(tensors or TENSORS, {KEY: record if isinstance(record, str) else json.dumps(record)})


def test_a_record_is_read_back() -> None:
    record = parse_record(file(content()), "w.safetensors")
    assert record is not None
    assert record.guarantee == NO_GUARANTEE
    assert "without privacy (mechanism none)" in record.describe()
    assert record.describe().count(DIGEST) == 3
    assert parse_record(save(TENSORS), "w.safetensors") is None
    assert parse_record(save(TENSORS, {"format": "pt"}), "w.safetensors") is None


@pytest.mark.parametrize(
    "record",
    [
        "no json",
        "[]",
        content(guarantee="ε = 0"),
        content(schema="dprecipe.certificate/v1"),
        content(data=[]),
        content(data=[{**content()["data"][0], "role": "test"}]),
        content(data=[content()["data"][0], content()["data"][0]]),
        content(epsilon=0.0),
        content(steps=0),
        content(weights="sha256:1"),
        content(versions={f"package-{number}": "1" for number in range(21)}),
    ],
)
def test_damaged_records_are_refused(record: Any) -> None:
    with pytest.raises(DataFault, match="damaged, first at") as refused:
        parse_record(file(record), "w.safetensors")
    assert refused.value.remedy


def test_a_record_of_other_tensors_is_refused() -> None:
    other = {"1.weight": np.full((2, 3), 2, dtype=np.float32)}
    with pytest.raises(DataFault, match="not those that its record speaks of"):
        parse_record(file(content(), other), "w.safetensors")
