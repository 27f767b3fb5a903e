"""Refusals by name: secrets, and anything that would be fitted to private data."""

from __future__ import annotations

import re

from dprecipe.faults import Finding, Place
from dprecipe.recipe.root import choose_root
from dprecipe.recipe.vocabulary import Expect, expect_below
from dprecipe.text.tree import Mapping, Node, Path, Scalar, Sequence

_SECRET_KEY = re.compile(
    r"(?i)(?:^|[_.-])(?:(?:api|access|private|secret|signing|encryption)[_-]?key|secret|passw(?:or)?d|passphrase"
    r"|(?:auth|access|api|hf|bearer)?[_-]?token|credentials?)$"
)
_SECRET_VALUE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|^(?:AKIA[0-9A-Z]{16}|gh[pousr]_\w{30,}|hf_\w{30,}|sk-[\w-]{20,}|xox[abp]-[\w-]{10,})"
    r"|^[a-zA-Z][\w+.-]*://(?:[^/?#\s]*:[^/?#\s]+@|\S*(?i:[?&](?:(?:ssl)?password|oauth_client_secret)=))"
)

_FROM_DATA = frozenset(
    {
        "auto",
        "infer",
        "inferred",
        "estimate",
        "estimated",
        "fit",
        "fitted",
        "learn",
        "data",
        "from_data",
        "train",
    }
)
_CONSTANTS = {
    "mean": "write the mean as a constant that is public knowledge, or 0",
    "std": "write the deviation as a constant that is public knowledge, or 1",
    "min": "declare the smallest value that is possible; what lies outside is clamped",
    "max": "declare the largest value that is possible; what lies outside is clamped",
    "missing": "declare what an empty field counts as: a usual value from domain knowledge",
    "values": "list the values that are possible; others become `other`",
    "classes": "declare the number of classes",
    "size": "declare the number of training records; it is treated as public",
    "shape": "declare the shape of one record",
    "columns": "declare every column that is used, with its kind",
    "norm": "declare the norm; it is a constant of the recipe",
    "buckets": "declare the number of buckets",
}
_SCALE = "use `scale: {mean: …, std: …}` with constants that are public knowledge"
_BOUND = "use `clip_features: {norm: …}`, or numeric columns with a declared `min` and `max`"
_HASH = "use `hash: {columns: […], buckets: …}` or `tokenize`: they need no vocabulary"
_DECLARE = "declare the `values` of category columns and use `one_hot`"
_MISSING = "declare `missing: {fill: …, indicator: true}` for each numeric column, with a usual value"
_DROP = "remove it: which records stay would depend on the others"
_CONSTANT_STEPS = (
    "remove it: use constant steps (scale, scattering, patches, group_norm, whiten, clip_features, one_hot, hash, "
    "tokenize)"
)
_FITTED_BY_REMEDY = {
    _SCALE: "standardize standardise standard_scaler zscore z_score normalize normalise normalization",
    _BOUND: "min_max minmax min_max_scaler robust_scaler quantile quantiles percentile winsorize",
    _HASH: "vocabulary vocab vocab_size tokenizer tfidf tf_idf bag_of_words count_vectorizer embedding",
    _DECLARE: "label_encoder ordinal target_encode target_encoding categories one_hot_encoder",
    _CONSTANT_STEPS: "fit fit_transform pca feature_selection select_k_best",
    _MISSING: "impute imputer fillna fill_mean",
    _DROP: "drop_outliers remove_outliers deduplicate dropna undersample oversample smote stratify balance",
}
_FITTED = {word: remedy for remedy, words in _FITTED_BY_REMEDY.items() for word in words.split()}

Screened = tuple[tuple[Finding, ...], frozenset[Place]]


def screen_recipe(tree: Mapping) -> Screened:
    """Returns the refusals, and the places of their keys and values, about which there are no further findings."""
    findings: list[Finding] = []
    handled: set[Place] = set()
    _screen(tree, Expect(blocks=(choose_root(tree),)), (), findings, handled)
    return tuple(findings), frozenset(handled)


def _screen(node: Node, form: Expect | None, path: Path, findings: list[Finding], handled: set[Place]) -> None:
    if isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            step = _fitted_step(item, (*path, index)) if isinstance(item, Scalar) else None
            finding = step or _secret_value(item, (*path, index))
            if finding:
                findings.append(finding)
                handled.add(item.place)
            _screen(item, expect_below(form, node, index), (*path, index), findings, handled)
    if not isinstance(node, Mapping):
        return
    for key, entry in node.entries.items():
        here, inside = (*path, key), expect_below(form, node, key)
        finding = (
            _secret(key, entry.value, here, entry.place, inside)
            or _fitted_key(key, entry.value, here, entry.place, inside)
            or _fitted_value(key, entry.value, here, inside)
        )
        if finding is None:
            _screen(entry.value, inside, here, findings, handled)
        else:
            findings.append(finding)
            handled.update((entry.place, entry.value.place))


def _secret(key: str, value: Node, path: Path, place: Place, form: Expect | None) -> Finding | None:
    declared = form is not None and not form.anything
    if _SECRET_KEY.search(key) and not declared and not (isinstance(value, Scalar) and value.value is None):
        return _secret_finding(path, place)
    return _secret_value(value, path)


def _secret_value(value: Node, path: Path) -> Finding | None:
    text = value.value if isinstance(value, Scalar) else None
    if isinstance(text, str) and _SECRET_VALUE.search(text):
        return _secret_finding(path, value.place)
    return None


def _secret_finding(path: Path, place: Place) -> Finding:
    return Finding(
        "R113",
        "this looks like a secret, and a recipe is copied verbatim into its certificate",
        "remove it, and treat the secret as known; name a file or an environment variable outside the recipe",
        ".".join(map(str, path)),
        place,
    )


def _fitted_key(key: str, value: Node, path: Path, place: Place, form: Expect | None) -> Finding | None:
    remedy = _FITTED.get(key.lower())
    if remedy is None or form is not None or path[0] not in ("data", "preprocess", "model"):
        return None
    number = isinstance(value, Scalar) and isinstance(value.value, int | float) and not isinstance(value.value, bool)
    listed = isinstance(value, Sequence) and bool(value.items)
    if (remedy == _MISSING and number) or (remedy == _DECLARE and listed):
        return None  # declared by the author
    return _fitted(path, place, f"`{key}` is fitted to the data, which would leak it outside the budget", remedy)


def _fitted_step(item: Scalar, path: Path) -> Finding | None:
    remedy = _FITTED.get(item.value.lower()) if isinstance(item.value, str) else None
    if remedy is None or path[:-1] != ("data", "preprocess"):
        return None
    message = f"`{item.value}` is fitted to the data, which would leak it outside the budget"
    return _fitted(path, item.place, message, remedy)


def _fitted_value(key: str, value: Node, path: Path, form: Expect | None) -> Finding | None:
    word = value.value if isinstance(value, Scalar) else None
    if not isinstance(word, str) or word.lower() not in _FROM_DATA or path[0] != "data" or form is None:
        return None
    remedy = _CONSTANTS.get(key)
    if remedy is None or form.text or form.words or not _is_key(path, key):
        return None
    return _fitted(path, value.place, f"`{word}` would be measured on private data, outside the budget", remedy)


def _is_key(path: Path, key: str) -> bool:
    return path[-1] == key and path[-2] != "columns"  # not a column that is called so


def _fitted(path: Path, place: Place, message: str, remedy: str) -> Finding:
    return Finding("P110", message, remedy, ".".join(map(str, path)), place)
