"""`image_folder`: class folders, and images that a table lists."""

from __future__ import annotations

import io
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.data.checks import check_data
from dprecipe.data.disjoint import check_files
from dprecipe.data.load import load, read
from dprecipe.data.records import Records
from dprecipe.faults import DataFault
from dprecipe.planning.public import share_records
from dprecipe.training.program.file_digests import digest_files

Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 6, 3), dtype=np.uint8)
NAMES = ["cat/1.png", "cat/10.png", "cat/2.PNG", "cat/more/1.png", "dog/1.png", "dog/a b.png"]
"""As they are sorted."""
CLASSES = {"column": "folder", "values": ["cat", "dog"]}


def encode(pixels: np.ndarray, format_: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format_, **options)
    return buffer.getvalue()


def write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, pixels in zip(NAMES, PIXELS, strict=True):
        write(tmp_path / "scans" / name, encode(pixels))
    (tmp_path / "scans/cat/.DS_Store").write_bytes(b"x")
    (tmp_path / "scans/dog/Thumbs.db").write_bytes(b"x")
    return tmp_path


@pytest.fixture
def images(root: Path, block):
    def make(size: int = 6, unit: object = "record", **source: object) -> Records:
        whole = {"source": "image_folder", "path": "scans", "shape": [4, 6, 3], "label": CLASSES, **source}
        data = block(whole, size=size, unit=unit)
        assert check_data(data) == []
        return load(data.train, data, root, "train")

    return make


def pixels_of(records: Records) -> np.ndarray:
    return (records.features * 255).round().astype(np.uint8).transpose(0, 2, 3, 1)


def test_class_folders_in_the_order_of_their_names(images) -> None:
    records = images()
    np.testing.assert_array_equal(pixels_of(records), PIXELS)
    assert records.labels.tolist() == [0, 0, 0, 0, 1, 1]
    assert images(label={"column": "folder", "values": ["dog", "cat", "newt"]}).labels.tolist() == [1, 1, 1, 1, 0, 0]


def test_a_range_counts_in_that_order(images, root: Path, block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dprecipe.data.sources.read_image_folder.CHUNK_IMAGES", 2)
    for first in range(6):
        for end in range(first + 1, 7):
            records = images(end - first, records=[first, end])
            np.testing.assert_array_equal(pixels_of(records), PIXELS[first:end])
    with pytest.raises(DataFault, match="scans: ends before the range"):
        images(2, records=[5, 7])


def test_a_folder_is_a_unit_or_a_file_names_a_record(images, root: Path, block) -> None:
    assert images(2, {"column": "folder", "max_records": 3}).units.tolist() == [0, 0, 0, 1, 1]
    source = {"source": "image_folder", "path": "scans", "shape": [4, 6, 3], "label": CLASSES}
    data = block(source, size=6)
    identities = read(data.train, data, root, "train", "file")[0].identities
    assert identities is not None
    assert list(identities.texts()) == NAMES


def table(root: Path, rows: list[str], header: str = "file,ill,who") -> dict[str, object]:
    (root / "scans.csv").write_text("\n".join([header, *rows]) + "\n")
    return {"table": "scans.csv", "label": {"column": "ill", "values": ["no", "yes"]}}


def test_a_table_lists_the_images_with_labels_and_units(images, root: Path) -> None:
    rows = ["dog/1.png,yes,P2", "./cat/2.PNG,no,P1", "cat/1.png,yes,P1"]
    listed = table(root, rows)
    records = images(2, {"column": "who", "max_records": 2}, **listed)
    np.testing.assert_array_equal(pixels_of(records), PIXELS[[0, 2, 4]])
    assert records.labels.tolist() == [1, 0, 1]
    assert records.units.tolist() == [0, 0, 1]
    assert images(1, records=[2, 3], **listed).labels.tolist() == [1]
    number = images(3, **{**listed, "label": {"column": "who", "range": [0, 4]}, **table(root, rows)})
    assert number.labels.tolist() == [1, 0, 1]
    other = table(root, ["dog/1.png;3.0;x"], "bild;age;who")
    records = images(
        1, **{**other, "delimiter": ";", "image_column": "bild", "label": {"column": "age", "range": [1, 5]}}
    )
    assert records.labels.tolist() == [0]


BAD_ROWS = {
    "up": ("../secret.png,no,P", "a field is no path below the folder"),
    "absolute": ("/etc/secret.png,no,P", "a field is no path below the folder"),
    "empty": (",no,P", "a field is no path below the folder"),
    "twice": ("./cat/1.png,no,P", "an image is listed twice"),
    "not there": ("cat/secret.png,no,P", "an image is not there"),
    "no image": ("cat/.DS_Store,no,P", "an image is damaged, or is none of PNG"),
    "label": ("dog/1.png,secret,P", "column 'ill': a label is not among the 2"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_of_a_table(images, root: Path, name: str) -> None:
    row, message = BAD_ROWS[name]
    with pytest.raises(DataFault, match=message) as caught:
        images(2, **table(root, ["cat/1.png,no,P", row]))
    assert "secret" not in caught.value.message + caught.value.remedy
    assert caught.value.private in ("line 3", "cat/secret.png", "cat/.DS_Store")


def test_columns_that_are_not_there(images, root: Path) -> None:
    with pytest.raises(DataFault, match=r"scans\.csv: column 'sick' is not in the header line"):
        images(**{**table(root, ["cat/1.png,no,P"]), "label": {"column": "sick", "classes": 2}})
    with pytest.raises(DataFault, match="has the columns `file` and `folder`, and no 'who'"):
        images(2, {"column": "who", "max_records": 2})


def test_a_folder_that_is_no_declared_class(images, root: Path) -> None:
    write(root / "scans/Cats/secret.png", encode(PIXELS[0]))
    with pytest.raises(DataFault, match="a folder is none of the 2 declared classes, and nearly 'cat'") as caught:
        images(7)
    assert caught.value.private == "Cats"
    write(root / "scans/unrelated/secret.png", encode(PIXELS[0]))
    with pytest.raises(DataFault, match=r"declared classes\n") as caught:
        images(8)
    assert "unrelated" not in caught.value.message
    assert "secret" not in caught.value.message


BAD_FILES = {
    "no class": ("top.png", encode(PIXELS[0]), "a label is empty"),
    "another kind": ("cat/secret.tiff", b"II*\x00", "a file is no PNG, JPEG or WebP image, by its name"),
    "a control character": ("cat/secret\x1b.png", encode(PIXELS[0]), "a file's name is not UTF-8, or has control"),
    "cut off": ("cat/secret.png", encode(PIXELS[0])[:60], "an image is damaged"),
    "empty": ("cat/secret.png", b"", "an image is damaged"),
    "a gif": ("cat/secret.png", encode(PIXELS[0], "GIF"), "none of PNG, JPEG, WEBP"),
    "another size": ("cat/secret.png", encode(PIXELS[0][:2]), r"an image is not 4×6×3 \(RGB"),
    "grey": ("cat/secret.png", encode(PIXELS[0, ..., 0]), r"an image is not 4×6×3 \(RGB"),
    "16 bits": ("cat/secret.png", encode(PIXELS[0, ..., 0].astype(np.uint16)), r"an image is not 4×6×3 \(RGB"),
    "animated": (
        "cat/secret.webp",
        encode(PIXELS[0], "WEBP", save_all=True, append_images=[Image.fromarray(PIXELS[1])], lossless=True),
        "an image is animated",
    ),
    "too many bytes": (
        "cat/secret.png",
        encode(PIXELS[0]) + bytes(17 << 20),
        "an image has more than 16,777,216 bytes",
    ),
}


@pytest.mark.parametrize("resize", [None, "stretch"])
@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(images, root: Path, name: str, resize: str | None) -> None:
    path, content, message = BAD_FILES[name]
    if resize and name in ("grey", "16 bits"):
        message = "an image is not of mode RGB"
    write(root / "scans" / path, content)
    if resize and name == "another size":
        assert len(images(7, resize=resize)) == 7
        return
    with pytest.raises(DataFault, match=message) as caught:
        images(7, resize=resize)
    assert "secret" not in caught.value.message + caught.value.remedy
    assert caught.value.private


def bomb() -> bytes:
    """A PNG that claims 10⁸ pixels, in some hundred bytes."""
    content = bytearray(encode(PIXELS[0]))
    content[16:24] = (10_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


@pytest.mark.parametrize(
    ("resize", "message"), [(None, "an image is not 4×6×3"), ("crop", "more than 67,108,864 pixels")]
)
def test_an_image_that_claims_to_be_huge_is_not_decoded(
    images, root: Path, resize: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "scans/cat/2.PNG").write_bytes(bomb())
    monkeypatch.setattr(Image.Image, "resize", None)
    with pytest.raises(DataFault, match=message) as caught:
        images(resize=resize)
    assert caught.value.private == "cat/2.PNG: 10000×10000×3, RGB"


def test_images_are_resized_by_constants_alone(images, root: Path) -> None:
    tall = np.zeros((400, 100, 3), np.uint8)
    tall[:100], tall[300:] = 255, 255
    for format_, name in (("PNG", "cat/1.png"), ("JPEG", "cat/10.jpg"), ("WEBP", "cat/2.webp")):
        write(root / "scans" / name, encode(tall, format_))
    (root / "scans/cat/10.png").unlink()
    (root / "scans/cat/2.PNG").unlink()
    stretched, cropped = (pixels_of(images(resize=how)) for how in ("stretch", "crop"))
    expected = np.asarray(Image.fromarray(tall).resize((6, 4), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(stretched[0], expected)
    assert np.abs(stretched[1].astype(int) - expected).max() < 40  # JPEG is decoded at an eighth of its size
    assert np.abs(stretched[2].astype(int) - expected).max() < 40
    assert (cropped[:3] == 0).all()  # the middle is black
    np.testing.assert_array_equal(stretched[3:], PIXELS[3:])  # of the declared size already


def test_images_of_one_channel(images, root: Path) -> None:
    for name, pixels in zip(NAMES, PIXELS[..., 0], strict=True):
        write(root / "scans" / name, encode(pixels))
    np.testing.assert_array_equal(pixels_of(images(shape=[4, 6, 1]))[..., 0], PIXELS[..., 0])


def test_links_lead_nowhere_else(images, root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    write(outside / "secret.png", encode(PIXELS[0]))
    link = root / "scans/cat/link.png"
    link.symlink_to(outside / "secret.png")
    with pytest.raises(DataFault, match="an image is a link to a file outside of the folder") as caught:
        images(7)
    assert caught.value.private == "cat/link.png"
    with pytest.raises(DataFault, match="an image is a link to a file outside of the folder"):
        images(1, **table(root, ["cat/link.png,no,P"]))
    link.unlink()
    (root / "scans/newt").symlink_to(outside, target_is_directory=True)
    with pytest.raises(DataFault, match="a folder in it is a link"):
        images(7)
    with pytest.raises(DataFault, match="a path leads through a link out of the folder"):
        images(1, **table(root, ["newt/secret.png,no,P"]))
    (root / "scans/newt").unlink()
    write(root / "elsewhere/1.png", encode(PIXELS[0]))
    (root / "scans/dog/2.png").symlink_to(root / "elsewhere/1.png")
    assert len(images(7)) == 7


def test_folders_that_can_t_be_read(images, root: Path) -> None:
    with pytest.raises(DataFault, match="scan: no such folder"):
        images(path="scan")
    with pytest.raises(DataFault, match=r"scans/cat/1\.png: no such folder"):
        images(path="scans/cat/1.png")
    (root / "empty").mkdir()
    with pytest.raises(DataFault, match="empty: holds no image"):
        images(path="empty")
    with pytest.raises(DataFault, match=r"absent\.csv: no such data file"):
        images(table="absent.csv", label={"column": "y", "classes": 2})


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_without_permission(images, root: Path) -> None:
    (root / "scans/cat/1.png").chmod(0)
    with pytest.raises(DataFault, match="an image can't be read"):
        images()


def test_what_contradicts_itself(block) -> None:
    source = {"source": "image_folder", "path": "scans", "shape": [4, 6, 3], "label": CLASSES}
    codes = {
        "R241": {"label": {"column": "ill", "values": ["a", "b"]}},
        "R213": {"shape": [4, 6, 5]},
        "R217": {"table": "t.csv", "delimiter": "é"},
        "R201": {"label": {"column": "folder"}},
    }
    for code, change in codes.items():
        assert [finding.code for finding in check_data(block({**source, **change}))] == [code]


def test_public_images_are_none_of_the_training_images(root: Path, block) -> None:
    source = {"source": "image_folder", "path": "scans", "shape": [4, 6, 3]}
    (root / "train.csv").write_text("file,y\ncat/1.png,0\ncat/10.png,1\n")
    (root / "public.csv").write_text("file\ndog/1.png\n")
    (root / "both.csv").write_text("file\ndog/1.png\ncat/1.png\n")
    train = {**source, "table": "train.csv", "label": {"column": "y", "classes": 2}}
    refused: list[dict[str, object]] = [{}, {"path": "scans/cat"}, {"table": "both.csv"}]
    for public in refused:
        data = block(train, public={**source, **public}, size=2)
        assert not share_records(data.train, data.public)
        with pytest.raises(DataFault, match=r"data\.public is declared public, but this is .* of the training records"):
            check_files(data, root)
    data = block(train, public={**source, "table": "public.csv"}, size=2)
    check_files(data, root)
    assert len(load(data.public, data, root, "public")) == 1
    same = block({**source, "label": CLASSES}, public={**source, "path": "./scans"})
    assert share_records(same.train, same.public)


def test_digests_cover_images_and_table(root: Path, block) -> None:
    listed = table(root, ["cat/1.png,no,P", "dog/1.png,no,P"])
    data = block({"source": "image_folder", "path": "scans", "shape": [4, 6, 3], **listed})
    assert list(digest_files(data.train, root)) == ["1.png", "1.png (2)", "scans.csv"]


def test_a_renamed_folder_is_another_label_also_where_a_copy_is_kept(root: Path, block) -> None:
    data = block({"source": "image_folder", "path": "scans", "shape": [4, 6, 3], "label": CLASSES}, size=6)
    copies = root / "copies"
    assert load(data.train, data, root, "train", copies=copies).labels.tolist() == [0, 0, 0, 0, 1, 1]
    for name, new in (("cat", "x"), ("dog", "cat"), ("x", "dog")):
        (root / "scans" / name).rename(root / "scans" / new)
    assert load(data.train, data, root, "train", copies=copies).labels.tolist() == [0, 0, 1, 1, 1, 1]
    for name, new in (("cat", "b"), ("dog", "cat"), ("b", "dog")):
        (root / "scans" / name).rename(root / "scans" / new)
    assert load(data.train, data, root, "train", copies=copies).labels.tolist() == [0, 0, 0, 0, 1, 1]
