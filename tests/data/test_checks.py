from __future__ import annotations

import pytest

from dprecipe.data.checks import check_data

DIGITS = {"source": "digits", "split": "train"}
IDX = {"source": "idx", "images": "i", "labels": "l", "shape": [32, 32, 3]}
NPZ = {"source": "npz", "path": "p", "shape": [7], "classes": 2}
NUMBER = {"kind": "numeric", "min": 0, "max": 1}
SEX = {"kind": "category", "values": ["f", "m"]}
CSV = {"source": "csv", "path": "p", "columns": {"n": NUMBER}, "label": {"column": "y", "classes": 2}}
PARQUET = {**CSV, "source": "parquet"}


def table(columns: dict, **rest) -> dict:
    return {**CSV, "columns": columns, **rest}


def hash_(*columns: str, buckets: int = 8) -> dict:
    return {"hash": {"columns": list(columns), "buckets": buckets}}


def tokenize(column: str) -> dict:
    return {"tokenize": {"column": column, "buckets": 8, "length": 4}}


TEXT = {"t": {"kind": "text"}}
PATCHES = {"patches": {"filters": 8}}
SCATTERING = {"scattering": {"scales": 2, "angles": 8}}
WHITEN: dict[str, object] = {"whiten": {}}
PCA = {"dp_pca": {"components": 4, "noise_multiplier": 5.0}}
SCALE = {"scale": {"mean": 0.5, "std": 0.5}}
GOOD = {
    "digits": (DIGITS, {"preprocess": [SCALE, {"clip_features": {"norm": 1.0}}]}),
    "augmented": (IDX, {"preprocess": [SCALE, {"crop": {"padding": 4}}, {"flip": {}}]}),
    "by channel": (IDX, {"preprocess": [{"scale": {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]}}]}),
    "by feature": (NPZ, {"preprocess": [{"scale": {"mean": [0] * 7, "std": 1}}]}),
    "flat, then by feature": (NPZ, {"preprocess": [{"flatten": {}}, {"scale": {"mean": [0] * 7, "std": 1}}]}),
    "numbers": (CSV, {}),
    "all kinds": (
        table({"n": NUMBER, "c": SEX, "t": {"kind": "text"}}),
        {"preprocess": [hash_("t"), {"one_hot": {}}, {"scale": {"mean": [0] * 12, "std": 1}}]},
    ),
    "tokens": (table(TEXT), {"preprocess": [tokenize("t"), {"flatten": {}}]}),
    "scattered": (
        IDX,
        {"preprocess": [SCALE, SCATTERING, {"group_norm": {"groups": 27}}, {"clip_features": {"norm": 1}}]},
    ),
    "scattered by channel": (DIGITS, {"preprocess": [SCATTERING, {"scale": {"mean": [0] * 81, "std": 1}}]}),
    "patches, whitened by channels": (
        {**IDX, "shape": [32, 32, 3]},
        {"preprocess": [SCALE, PATCHES, {"whiten": {"across": "channels"}}, {"group_norm": {"groups": 1}}]},
    ),
    "groups of features": (NPZ, {"preprocess": [{"group_norm": {"groups": 7}}]}),
    "test alike": (DIGITS, {"test": {**IDX, "shape": [8, 8]}}),
    "public records": (CSV, {"public": {"source": "csv", "path": "p", "columns": {"n": NUMBER}}}),
    "public records of another source": (IDX, {"public": {"source": "npz", "path": "p", "shape": [32, 32, 3]}}),
    "public labels are nobody's business": (
        CSV,
        {"public": {**CSV, "label": {"column": "n", "classes": 9, "values": ["a", "a"]}}},
    ),
    "a range": ({**DIGITS, "records": [10, 14]}, {}),
    "a number to be predicted": (
        {**CSV, "label": {"column": "y", "range": [-1.5, 2]}},
        {"test": {**PARQUET, "label": {"column": "z", "range": [-1.5, 2]}}},
    ),
    "an array of numbers": ({**NPZ, "classes": None, "range": [0, 9]}, {}),
    "public numbers are nobody's business": (
        {**NPZ, "classes": None, "range": [0, 9]},
        {"public": {**NPZ, "range": [5, 3]}},
    ),
    "columns of yes and no": (
        {**CSV, "label": {"columns": ["u", "v"], "values": ["nein", "ja"]}},
        {"test": {**PARQUET, "label": {"columns": ["u", "v"]}}},
    ),
    "a column of names": ({**CSV, "label": {"column": "y", "several": ["a", "b;c"], "separator": "|"}}, {}),
    "an array of answers": ({**NPZ, "classes": None, "several": ["a", "b"]}, {}),
    "a range of records, in units": ({**CSV, "records": [0, 9]}, {"unit": {"column": "u", "max_records": 3}}),
}


@pytest.mark.parametrize("name", GOOD)
def test_sound_blocks_have_no_findings(block, name: str) -> None:
    train, rest = GOOD[name]
    assert check_data(block(train, **rest)) == []


BAD = {
    "R201 both": ({**CSV, "label": {"column": "y", "classes": 2, "values": ["a", "b"]}}, {}, "data.train.label"),
    "R201 neither": ({**CSV, "label": {"column": "y"}}, {}, "data.train.label"),
    "R201 range and classes": (
        {**CSV, "label": {"column": "y", "classes": 2, "range": [0, 1]}},
        {},
        "data.train.label",
    ),
    "R201 array of neither": ({**NPZ, "classes": None}, {}, "data.train"),
    "R201 array of both": ({**NPZ, "range": [0, 1]}, {}, "data.train"),
    "R201 several and classes": (
        {**CSV, "label": {"column": "y", "several": ["a", "b"], "classes": 2}},
        {},
        "data.train.label",
    ),
    "R201 array of names and classes": ({**NPZ, "several": ["a", "b"]}, {}, "data.train"),
    "R330 both": ({**CSV, "label": {"column": "y", "columns": ["u", "v"]}}, {}, "data.train.label"),
    "R330 neither": ({**CSV, "label": {"classes": 2}}, {}, "data.train.label"),
    "R331 range": ({**CSV, "label": {"columns": ["u", "v"], "range": [0, 1]}}, {}, "data.train.label.range"),
    "R331 words": ({**CSV, "label": {"columns": ["u", "v"], "values": ["a", "b", "c"]}}, {}, "data.train.label.values"),
    "R331 separator": (
        {**CSV, "label": {"column": "y", "classes": 2, "separator": "|"}},
        {},
        "data.train.label.separator",
    ),
    "R331 empty": ({**CSV, "label": {"column": "y", "classes": 2, "empty": "none"}}, {}, "data.train.label.empty"),
    "R331 missing": (
        {**CSV, "label": {"column": "y", "several": ["a", "b"], "missing": "omit"}},
        {},
        "data.train.label.missing",
    ),
    "R331 missing of an array": (
        {**NPZ, "classes": None, "several": ["a", "b"], "missing": "omit"},
        {},
        "data.train.missing",
    ),
    "R331 name": ({**CSV, "label": {"column": "y", "several": ["a", "b;c"]}}, {}, "data.train.label.several"),
    "R331 name of a column": ({**CSV, "label": {"columns": ["u", "v;w"]}}, {}, "data.train.label.columns"),
    "R202 several": ({**CSV, "label": {"column": "y", "several": ["a", "a "]}}, {}, "data.train.label.several"),
    "R202 array of names": ({**NPZ, "classes": None, "several": ["a", "a"]}, {}, "data.train.several"),
    "R214 other names": (
        {**CSV, "label": {"columns": ["u", "v"]}},
        {"test": {**CSV, "label": {"columns": ["v", "u"]}}},
        "data.test",
    ),
    "R216 one of several": ({**CSV, "label": {"columns": ["n", "v"]}}, {}, "data.train.columns.n"),
    "R203 label": ({**CSV, "label": {"column": "y", "range": [1, 0]}}, {}, "data.train.label.range"),
    "R203 array": ({**NPZ, "classes": None, "range": [3, 3]}, {}, "data.train.range"),
    "R203 too small to halve": ({**CSV, "label": {"column": "y", "range": [0, 5e-324]}}, {}, "data.train.label.range"),
    "R202 label": ({**CSV, "label": {"column": "y", "values": ["a", " a"]}}, {}, "data.train.label.values"),
    "R202 category": (
        table({"c": {"kind": "category", "values": ["f", "f"]}}),
        {"preprocess": [{"one_hot": {}}]},
        "data.train.columns.c.values",
    ),
    "R203": (table({"n": {"kind": "numeric", "min": 1, "max": 1}}), {}, "data.train.columns.n.min"),
    "R203 one number of doubles": (
        table({"t": {"kind": "integer", "min": 17 * 10**17, "max": 17 * 10**17 + 100}}),
        {},
        "data.train.columns.t.min",
    ),
    "R203 too small to halve, column": (
        table({"n": {"kind": "numeric", "min": 0, "max": 5e-324}}),
        {},
        "data.train.columns.n.min",
    ),
    "R203 affix": (table({"n": {**NUMBER, "affixes": ["%", "0"]}}), {}, "data.train.columns.n.affixes"),
    "R202 affix": (table({"n": {**NUMBER, "affixes": ["%", "% "]}}), {}, "data.train.columns.n.affixes"),
    "R203 affix of a label": (
        {**CSV, "label": {"column": "y", "range": [0, 1], "affixes": ["-"]}},
        {},
        "data.train.label.affixes",
    ),
    "R331 writing of classes": (
        {**CSV, "label": {"column": "y", "classes": 2, "decimal": "comma"}},
        {},
        "data.train.label.decimal",
    ),
    "R211 too small": (DIGITS, {"preprocess": [{"scale": {"mean": 0, "std": 1e-40}}]}, "data.preprocess.0.scale"),
    "R211 too large": (DIGITS, {"preprocess": [{"scale": {"mean": 0, "std": 1e40}}]}, "data.preprocess.0.scale"),
    "R211 far away": (
        DIGITS,
        {"preprocess": [{"scale": {"mean": [1e20], "std": [1e-20]}}]},
        "data.preprocess.0.scale",
    ),
    "R203 marks": (table({"n": {**NUMBER, "marks": ["<1"]}}), {}, "data.train.columns.n.marks"),
    "R204 neither": ({**PARQUET, "columns": None}, {}, "data.train"),
    "R204 both": ({**PARQUET, "image": {"column": "i", "shape": [2, 2, 3]}}, {}, "data.train"),
    "R205 empty": ({**DIGITS, "records": [4, 4]}, {}, "data.train.records"),
    "R205 backwards": ({**DIGITS, "records": [8, 4]}, {}, "data.train.records"),
    "R206 none": (DIGITS, {"preprocess": [{}]}, "data.preprocess.0"),
    "R206 two": (DIGITS, {"preprocess": [SCALE, {"flatten": {}, "flip": {}}]}, "data.preprocess.1"),
    "R207 encoding": (
        table({"n": NUMBER, "c": SEX}),
        {"preprocess": [SCALE, {"one_hot": {}}]},
        "data.preprocess.1.one_hot",
    ),
    "R207 augmentation": (IDX, {"preprocess": [{"flip": {}}, SCALE]}, "data.preprocess.1.scale"),
    "R207 flatten": (IDX, {"preprocess": [{"flip": {}}, {"flatten": {}}]}, "data.preprocess.1.flatten"),
    "R208 images": (DIGITS, {"preprocess": [{"one_hot": {}}]}, "data.preprocess.0.one_hot"),
    "R208 undeclared": (CSV, {"preprocess": [hash_("x")]}, "data.preprocess.0.hash.columns.0"),
    "R208 number": (CSV, {"preprocess": [hash_("n")]}, "data.preprocess.0.hash.columns.0"),
    "R209 category": (table({"c": SEX}), {}, "data.train.columns.c"),
    "R209 text": (table({"t": {"kind": "text"}}), {}, "data.train.columns.t"),
    "R210": (table({"c": SEX}), {"preprocess": [{"one_hot": {}}, {"one_hot": {"columns": ["c"]}}]}, "data.preprocess"),
    "R211 mean": (IDX, {"preprocess": [{"scale": {"mean": [0, 0], "std": 1}}]}, "data.preprocess.0.scale.mean"),
    "R211 std": (DIGITS, {"preprocess": [{"scale": {"mean": 0, "std": [1, 1]}}]}, "data.preprocess.0.scale.std"),
    "R212 vectors": (NPZ, {"preprocess": [{"flip": {}}]}, "data.preprocess.0.flip"),
    "R212 table": (CSV, {"preprocess": [{"crop": {"padding": 1}}]}, "data.preprocess.0.crop"),
    "R212 flattened": (IDX, {"preprocess": [{"flatten": {}}, {"flip": {}}]}, "data.preprocess.1.flip"),
    "R212 scattered": (IDX, {"preprocess": [SCATTERING, {"crop": {"padding": 1}}]}, "data.preprocess.1.crop"),
    "R212 scattered and flattened": (
        IDX,
        {"preprocess": [SCATTERING, {"flatten": {}}, {"flip": {}}]},
        "data.preprocess.2.flip",
    ),
    "R212 whitened": (IDX, {"preprocess": [{"whiten": {}}, {"flip": {}}]}, "data.preprocess.1.flip"),
    "R207 scattering": (IDX, {"preprocess": [{"flip": {}}, SCATTERING]}, "data.preprocess.1.scattering"),
    "R208 tokens of images": (DIGITS, {"preprocess": [tokenize("t")]}, "data.preprocess.0.tokenize"),
    "R208 tokens of nothing": (CSV, {"preprocess": [tokenize("x")]}, "data.preprocess.0.tokenize.column"),
    "R208 tokens of numbers": (CSV, {"preprocess": [tokenize("n")]}, "data.preprocess.0.tokenize.column"),
    "R210 tokens and counts": (table(TEXT), {"preprocess": [tokenize("t"), hash_("t")]}, "data.preprocess"),
    "R211 scattered": (
        DIGITS,
        {"preprocess": [SCATTERING, {"scale": {"mean": [0], "std": 1}}]},
        "data.preprocess.1.scale.mean",
    ),
    "R220 columns": (table({**TEXT, "n": NUMBER}), {"preprocess": [tokenize("t")]}, "data.train.columns"),
    "R220 scaled": (table(TEXT), {"preprocess": [tokenize("t"), SCALE]}, "data.preprocess.1.scale"),
    "R221 vectors": (NPZ, {"preprocess": [SCATTERING]}, "data.preprocess.0.scattering"),
    "R221 table": (CSV, {"preprocess": [SCATTERING]}, "data.preprocess.0.scattering"),
    "R221 flattened": (DIGITS, {"preprocess": [{"flatten": {}}, SCATTERING]}, "data.preprocess.1.scattering"),
    "R221 twice": (IDX, {"preprocess": [SCATTERING, SCATTERING]}, "data.preprocess.1.scattering"),
    "R221 not divisible": (
        {**IDX, "shape": [32, 30]},
        {"preprocess": [SCATTERING]},
        "data.preprocess.0.scattering.scales",
    ),
    "R221 too small": ({**IDX, "shape": [4, 8]}, {"preprocess": [SCATTERING]}, "data.preprocess.0.scattering.scales"),
    "R222": (
        DIGITS,
        {"preprocess": [SCATTERING, {"group_norm": {"groups": 10}}]},
        "data.preprocess.1.group_norm.groups",
    ),
    "R222 features": (NPZ, {"preprocess": [{"group_norm": {"groups": 9}}]}, "data.preprocess.0.group_norm.groups"),
    "R286 vectors": (NPZ, {"preprocess": [WHITEN]}, "data.preprocess.0.whiten"),
    "R286 table": (CSV, {"preprocess": [WHITEN]}, "data.preprocess.0.whiten"),
    "R286 two channels": ({**IDX, "shape": [8, 8, 2]}, {"preprocess": [WHITEN]}, "data.preprocess.0.whiten"),
    "R286 too many": ({**IDX, "shape": [128, 128]}, {"preprocess": [WHITEN]}, "data.preprocess.0.whiten"),
    "R286 twice": (DIGITS, {"preprocess": [WHITEN, WHITEN]}, "data.preprocess.1.whiten"),
    "R286 after a paid step": (
        DIGITS,
        {"preprocess": [{"flatten": {}}, PCA, WHITEN]},
        "data.preprocess.2.whiten",
    ),
    "R286 channels of a vector": (
        DIGITS,
        {"preprocess": [{"flatten": {}}, {"whiten": {"across": "channels"}}]},
        "data.preprocess.1.whiten.across",
    ),
    "R286 too many channels": (
        IDX,
        {"preprocess": [{"patches": {"filters": 2049}}, {"whiten": {"across": "channels"}}]},
        "data.preprocess.1.whiten",
    ),
    "R286 patches of vectors": (NPZ, {"preprocess": [PATCHES]}, "data.preprocess.0.patches"),
    "R286 patches of maps": (IDX, {"preprocess": [SCATTERING, PATCHES]}, "data.preprocess.1.patches"),
    "R286 patches twice": (IDX, {"preprocess": [PATCHES, PATCHES]}, "data.preprocess.1.patches"),
    "R286 patches of two channels": (
        {**IDX, "shape": [8, 8, 2]},
        {"preprocess": [PATCHES]},
        "data.preprocess.0.patches",
    ),
    "R286 patches too large": ({**IDX, "shape": [7, 28]}, {"preprocess": [PATCHES]}, "data.preprocess.0.patches"),
    "R212 patches": (IDX, {"preprocess": [PATCHES, {"flip": {}}]}, "data.preprocess.1.flip"),
    "R207 patches": (IDX, {"preprocess": [{"flip": {}}, PATCHES]}, "data.preprocess.1.patches"),
    "R219 scattered": (
        {**IDX, "shape": [256, 256, 3]},
        {"size": 10**6, "preprocess": [SCATTERING]},
        "data.preprocess",
    ),
    "R213 channels first": ({**IDX, "shape": [3, 32, 32]}, {}, "data.train.shape"),
    "R213 too many": ({**NPZ, "shape": [2, 2, 2, 2]}, {}, "data.train.shape"),
    "R214 shape": (DIGITS, {"test": IDX}, "data.test"),
    "R214 classes": (DIGITS, {"test": {**IDX, "shape": [8, 8], "classes": 9}}, "data.test"),
    "R214 range": (
        {**CSV, "label": {"column": "y", "range": [0, 1]}},
        {"test": {**CSV, "label": {"column": "y", "range": [0, 2]}}},
        "data.test",
    ),
    "R214 a number and classes": ({**NPZ, "classes": None, "range": [0, 1]}, {"test": NPZ}, "data.test"),
    "R214 columns": (CSV, {"test": table({"m": NUMBER})}, "data.test"),
    "R214 order": (
        table({"a": NUMBER, "b": {"kind": "numeric", "min": 0, "max": 2}}),
        {"test": table({"b": {"kind": "numeric", "min": 0, "max": 2}, "a": NUMBER})},
        "data.test",
    ),
    "R205 public": (DIGITS, {"public": {**DIGITS, "records": [3, 3]}}, "data.public.records"),
    "R204 public": (CSV, {"public": {"source": "parquet", "path": "p"}}, "data.public"),
    "R214 public shape": (DIGITS, {"public": {"source": "npz", "path": "p", "shape": [64]}}, "data.public"),
    "R214 public columns": (CSV, {"public": table({"n": {"kind": "numeric", "min": 0, "max": 2}})}, "data.public"),
    "R217 public": (CSV, {"public": {**CSV, "delimiter": '"'}}, "data.public.delimiter"),
    "R216": (table({"n": NUMBER, "y": NUMBER}), {}, "data.train.columns.y"),
    "R217": ({**CSV, "delimiter": '"'}, {}, "data.train.delimiter"),
    "R218": ({**DIGITS, "records": [0, 5]}, {}, "data.size"),
    "R219": (
        table({"t": {"kind": "text"}}),
        {"size": 10**7, "preprocess": [hash_("t", buckets=2**16)]},
        "data.preprocess",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_each_contradiction_is_found_where_it_stands(block, name: str) -> None:
    train, rest, path = BAD[name]
    result = check_data(block(train, **rest))
    assert [(finding.code, finding.path) for finding in result] == [(name[:4], path)]
    assert result[0].remedy


def test_the_test_source_is_checked_too(block) -> None:
    result = check_data(block(DIGITS, test={**DIGITS, "records": [3, 3]}))
    assert [(finding.code, finding.path) for finding in result] == [("R205", "data.test.records")]


def test_all_findings_are_reported(block) -> None:
    train = table({"y": {"kind": "numeric", "min": 2, "max": 1}}, records=[5, 1], label={"column": "y"})
    assert sorted(f.code for f in check_data(block(train, preprocess=[{}]))) == ["R201", "R203", "R205", "R206", "R216"]
