"""What a file says of its prior: read strictly, and worth nothing beside other numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dprecipe.faults import DataFault
from dprecipe.priors.record import KEY, PriorFacts, PriorRecord, digest_tensors, parse_prior, read_prior
from dprecipe.priors.schema import Prior

DIGEST = "sha256:" + "0" * 64
TENSORS = {"0.weight": ("F32", [2, 1], b"abcdefgh"), "0.bias": ("F32", [1], b"1234")}


def file_of(tensors: dict[str, tuple[str, list[int], bytes]], metadata: Any = None) -> bytes:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    body = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(content)]}
        body += content
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def record(**more: Any) -> PriorRecord:
    facts = PriorFacts(images=DIGEST, weights=DIGEST, versions={"torch": "2"}, device="cpu")
    parts: dict[str, Any] = {"network": {"kind": "mlp", "hidden": [3]}, "shape": (1, 8, 8), "facts": facts}
    return PriorRecord(prior=Prior(generator="mixed"), **{**parts, **more})


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(file_of(TENSORS, {KEY: record().to_json()}))
    read = read_prior(tmp_path / "w.safetensors")
    assert read is not None
    assert read.record == record()
    assert read.weights == digest_tensors(file_of(TENSORS))


def test_a_file_without_a_record_says_nothing() -> None:
    assert parse_prior(file_of(TENSORS), "w") is None
    assert parse_prior(file_of(TENSORS, {"format": "pt"}), "w") is None
    assert parse_prior(file_of(TENSORS, ["no", "mapping"]), "w") is None


def test_the_digest_is_of_names_types_shapes_and_bytes_and_of_no_order() -> None:
    digest = digest_tensors(file_of(TENSORS))
    assert digest == digest_tensors(file_of(dict(reversed(TENSORS.items())), {"format": "pt"}))
    others = [
        {**TENSORS, "0.bias": ("F32", [1], b"1235")},
        {**TENSORS, "0.bias": ("I32", [1], b"1234")},
        {**TENSORS, "0.weight": ("F32", [1, 2], b"abcdefgh")},
        {"1.weight": TENSORS["0.weight"], "0.bias": TENSORS["0.bias"]},
        {"0.weight": TENSORS["0.weight"]},
    ]
    assert len({digest, *(digest_tensors(file_of(other)) for other in others)}) == 6


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 40,
        (2**40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"nul!",
        (40_000).to_bytes(8, "little") + b"[" * 40_000,
        file_of(TENSORS)[:-1],
        file_of({"a": ("F32", [1], b"1234")}).replace(b"[0, 4]", b"[4, 0]"),
        file_of({"a": ("F32", [1], b"1234")}).replace(b"[0, 4]", b"[-4,4]"),
        file_of({"a": ("F32", [1], b"1234")}).replace(b'"dtype"', b'"dtypo"'),
    ],
)
def test_what_is_no_such_file_is_refused(content: bytes) -> None:
    with pytest.raises(DataFault, match="no safetensors file"):
        digest_tensors(content)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"schema": "dprecipe.prior/v2"}, "schema"),
        ({"shape": [1, 8]}, "shape"),
        ({"prior": {"generator": "imagenet"}}, "prior.generator"),
        ({"prior": {"generator": "mixed", "images": 10**9}}, "prior.images"),
        ({"more": 1}, "more"),
    ],
)
def test_a_damaged_record_is_refused_with_its_place(change: dict[str, Any], where: str) -> None:
    text = json.dumps({**json.loads(record().to_json()), **change})
    with pytest.raises(DataFault, match=f"damaged, first at {where}"):
        parse_prior(file_of(TENSORS, {KEY: text}), "w")
    with pytest.raises(DataFault, match="damaged"):
        parse_prior(file_of(TENSORS, {KEY: "{"}), "w")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(DataFault, match="No such file"):
        read_prior(tmp_path / "absent.safetensors")


def test_tensors_that_share_bytes_are_refused() -> None:
    """A header of a megabyte could name all bytes of a large file ten thousand times."""
    entry = {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}
    header = json.dumps({"a": entry, "b": entry}).encode()
    with pytest.raises(DataFault, match="is no safetensors file"):
        digest_tensors(len(header).to_bytes(8, "little") + header + bytes(8))
