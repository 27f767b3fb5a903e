"""Whole forgeries: consistent from end to end, unsigned, digests and companions made to match. None verifies."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dprecipe import __version__
from dprecipe.cli.verify import verified_lines
from dprecipe.contract.table import mechanism_of
from dprecipe.release import report
from dprecipe.release.certificate import to_bytes
from dprecipe.release.facts import ReleasedTensor
from dprecipe.release.verify import verify

Change = Callable[[dict[str, Any]], object]


def forge(release: Path, change: Change) -> None:
    """Change the certificate, and let it name the files as they are: no digest gives anything away."""
    file = release / "certificate.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content["predicate"])
    content["subject"] = [
        {"name": path.name, "digest": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}}
        for path in sorted(release.iterdir())
        if not path.name.startswith("certificate.")
    ]
    file.write_bytes(to_bytes(content))


def rename(predicate: dict[str, Any], version: str) -> None:
    predicate["provenance"]["versions"]["dprecipe"] = version
    for row in predicate["accounting"][:2]:
        row["version"] = f"dprecipe {version}"


# Versions


STRIPPED: dict[str, Change] = {
    "nothing": lambda p: None,
    "no rules": lambda p: p.pop("rules"),
    "no checks": lambda p: p.update(checks=p["checks"][:1]),
    "a check renamed": lambda p: p["checks"][0].update(id="everything", text="everything was proved"),
    "no assumptions": lambda p: p.update(assumptions=[]),
    "another unit": lambda p: p["claim"]["unit"].update(enforced_by="every household, for ever"),
    "another word for it": lambda p: p["claim"]["unit"].update(noun="household"),
    "another sentence": lambda p: p["claim"].update(sentence="Nobody can learn anything."),
    "nothing unprotected": lambda p: p["claim"].update(not_protected=[]),
    "a seeded generator": lambda p: p["randomness"].update(generator="Mersenne Twister, seed 0"),
    "other arithmetic": lambda p: p["numerics"].update(noise_dtype="float16", floating_point="exact"),
    "a bound in other words": lambda p: p["accounting"][0].update(bound="exact, proved by machine"),
    "other data access": lambda p: p["data_access"]["tuning"].update(status="covered", text="tuning was private too"),
    "no warning": lambda p: p.update(what_a_signature_does_not_prove="A signature proves everything."),
    "no attachments of noise": lambda p: p["mechanism"]["noise"].update(added_to="everything, twice"),
    "a household that costs less": lambda p: p["claim"]["groups"][0].update(epsilon=p["claim"]["epsilon"]),
    "a household as two separate persons": lambda p: p["claim"]["groups"][0].update(epsilon=2 * p["claim"]["epsilon"]),
    "no household": lambda p: p["claim"].update(groups=[]),
    "a larger household": lambda p: p["claim"]["groups"][-1].update(size=40),
    "an earlier plan": lambda p: p["provenance"].update(plan="sha256:" + "0" * 64),
}


@pytest.mark.parametrize("version", ["9.9", "0.0.9", "0.1.0.post1", __version__])
@pytest.mark.parametrize("what", STRIPPED)
def test_naming_a_version_strips_nothing(what: str, version: str, copy: Any, tampering: Any) -> None:
    """Rules do not depend on the version, so neither does what is refused."""

    def change(predicate: dict[str, Any]) -> None:
        rename(predicate, version)
        STRIPPED[what](predicate)

    copy.ledger_file.unlink()
    forge(copy.release, change)
    assert bool(tampering.failures_of(copy.release)) is (what != "nothing")


@pytest.mark.parametrize("name", ["card.md", "report.html"])
def test_words_of_another_version_are_not_compared_and_that_is_said(name: str, copy: Any, tampering: Any) -> None:
    page = copy.release / name
    page.write_text(page.read_text(encoding="utf-8") + "Nobody can learn anything.", encoding="utf-8")
    forge(copy.release, lambda p: None)
    assert any(failure.startswith(name) for failure in tampering.failures_of(copy.release))
    forge(copy.release, lambda p: rename(p, "9.9"))
    verified = verify(copy.release)
    assert verified.notes[0].startswith("the certificate says that dprecipe 9.9 made it")
    assert "compared with nothing but their digests" in verified.notes[0]
    assert "NOT COMPARED" in verified_lines(verified)[2]
    page.write_text("other words", encoding="utf-8")
    assert any(failure.startswith(name) for failure in tampering.failures_of(copy.release))


@pytest.mark.parametrize("rules", [2, 10**9])
def test_unknown_rules_are_refused_with_the_remedy(rules: int, copy: Any, tampering: Any) -> None:
    forge(copy.release, lambda p: p.update(rules=rules, checks="of another form"))
    (failure,) = tampering.failures_of(copy.release)
    assert f"names rules {rules}" in failure
    assert "Install a newer version of dprecipe, from a place that you trust" in failure


@pytest.mark.parametrize("rules", ["1", 1.0, 0, -1, True, [1], {}, "x" * 10_000, "1\nverified", "1\u202e"])
def test_what_is_no_number_of_rules_is_refused_and_not_repeated(rules: Any, copy: Any, tampering: Any) -> None:
    forge(copy.release, lambda p: p.update(rules=rules))
    (failure,) = tampering.failures_of(copy.release)
    assert failure.isprintable()
    assert len(failure) < 300
    assert "newer version" not in failure


@pytest.mark.parametrize("version", ["0.1.0\nverified", "0.1.0; rm -rf /", "", "x" * 10_000, "0.1.0\u202e", 1, {}])
def test_what_is_no_version_is_refused_and_not_repeated(version: Any, copy: Any, tampering: Any) -> None:
    forge(copy.release, lambda p: p["provenance"]["versions"].update(dprecipe=version))
    failures = tampering.failures_of(copy.release)
    assert failures
    assert all(failure.isprintable() and len(failure) < 300 for failure in failures)


def test_an_extra_file_under_another_version_is_found(copy: Any, tampering: Any) -> None:
    (copy.release / "iterates.npz").write_bytes(b"every iterate")
    forge(copy.release, lambda p: rename(p, "9.9"))
    assert tampering.failures_of(copy.release)


@pytest.mark.parametrize(
    "path", ["provenance.versions.torch", "provenance.versions.dp-accounting", "accounting.2.version"]
)
def test_versions_of_packages_are_no_prose(path: str, copy: Any, tampering: Any) -> None:
    forge(copy.release, lambda p: tampering.set_leaf(p, path, "2.0, audited by everyone"))
    assert any(path in failure for failure in tampering.failures_of(copy.release))


def test_no_failure_breaks_a_line_or_turns_the_writing(copy: Any, tampering: Any) -> None:
    forge(copy.release, lambda p: p["provenance"]["recipe"]["resolved"].update({"a\nverified\u202e": 1}))
    failures = tampering.failures_of(copy.release)
    assert failures
    assert all(failure.isprintable() for failure in failures)


# Checks


def test_the_set_of_checks_is_complete(copy: Any, tampering: Any) -> None:
    """None may be left out, renamed, added or reworded, of those that need no second look either."""
    text = (copy.release / "certificate.json").read_text(encoding="utf-8")
    stated = json.loads(text)["predicate"]["checks"]
    assert {check["id"] for check in stated} == mechanism_of(copy.plan.mechanism).certificate.list_checks(
        copy.plan
    ).keys()
    for index, check in enumerate(stated):
        for change in (
            lambda p, i=index: p["checks"].pop(i),
            lambda p, i=index: p["checks"][i].update(id=p["checks"][i]["id"] + "_more"),
            lambda p, i=index: p["checks"][i].update(text="it holds for every household"),
        ):
            (copy.release / "certificate.json").write_text(text, encoding="utf-8")
            forge(copy.release, change)
            assert any(f.startswith("checks") for f in tampering.failures_of(copy.release)), (check["id"], change)
    (copy.release / "certificate.json").write_text(text, encoding="utf-8")
    extra = {"id": "audited", "text": "audited", "passed": True, "measured": ""}
    forge(copy.release, lambda p: p["checks"].append(extra))
    assert any("audited" in failure for failure in tampering.failures_of(copy.release))


# Companions


def replaced(name: str, original: str, changed: str) -> Callable[[Path], None]:
    def change(release: Path) -> None:
        text = (release / name).read_text(encoding="utf-8")
        assert original in text
        (release / name).write_text(text.replace(original, changed), encoding="utf-8")

    return change


def edit(name: str, original: str, changed: str) -> tuple[str, Callable[[Path], None]]:
    return name, replaced(name, original, changed)


def without_a_figure(release: Path) -> None:
    """What stands for a figure where pages are compared stands in its place."""
    page = (release / "report.html").read_text(encoding="utf-8")
    changed = re.sub("<svg .*?</svg>", "<svg/>", page, count=1, flags=re.DOTALL)
    assert changed != page
    (release / "report.html").write_text(changed, encoding="utf-8")


def without_weights(release: Path) -> None:
    (release / "model.safetensors").unlink()


def fewer_weights(release: Path) -> None:
    save_file({"other": np.ones(3, np.float32)}, release / "model.safetensors")


def more_weights(release: Path) -> None:
    weight = np.ones(650, np.float32)
    save_file({"weight": weight, "records": np.ones((7, 64), np.float32)}, release / "model.safetensors")


def text_in_the_weights(release: Path) -> None:
    save_file({"weight": np.ones(650, np.float32)}, release / "model.safetensors", {"note": "a private record"})


def bytes_behind_the_weights(release: Path) -> None:
    with (release / "model.safetensors").open("ab") as file:
        file.write(b"a private record")


def bytes_between_the_weights(release: Path) -> None:
    header = json.dumps({"weight": {"dtype": "F32", "shape": [650], "data_offsets": [64, 2664]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(2664)
    (release / "model.safetensors").write_bytes(content)


COMPANIONS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a card with another ε": edit("card.md", '"epsilon": 1.99', '"epsilon": 0.19'),
    "a card with another sentence": edit("card.md", "(ε = 1.99", "(ε = 0.19"),
    "a card with more to say": edit("card.md", "## Limits", "Audited by everyone.\n\n## Limits"),
    "metrics with another ε": edit("metrics.json", '"epsilon": 1.99', '"epsilon": 0.19'),
    "metrics with a note": edit("metrics.json", '"history"', '"note": "safe",\n "history"'),
    "metrics with a later step": edit("metrics.json", '"step": 60', '"step": 61'),
    "metrics with words in the history": edit("metrics.json", '"step": 60', '"record": 1, "step": 60'),
    "metrics with an ε of a step": edit("metrics.json", '"step": 60', '"epsilon": 0.001, "step": 60'),
    "metrics with a step between steps": edit("metrics.json", '"step": 20', '"step": 20.5'),
    "metrics with steps that fall": edit("metrics.json", '"step": 20', '"step": 60'),
    "metrics with an impossible accuracy": edit("metrics.json", '"accuracy": 0.713579', '"accuracy": 123'),
    "metrics with an accuracy below 0": edit("metrics.json", '"accuracy": 0.713579', '"accuracy": -7'),
    "metrics with a negative loss": edit("metrics.json", '"loss": 0.9', '"loss": -0.9'),
    "metrics of a regression": edit("metrics.json", '"accuracy": 0.713579', '"mean_absolute_error": 0.0'),
    "metrics with a huge number": ("", replaced("metrics.json", '"loss": 0.9', '"loss": 1' + "0" * 400)),
    "metrics that are no number": edit("metrics.json", '"loss": 0.9', '"loss": "9"'),
    "a report with another ε": edit("report.html", "<b>ε = 2.00", "<b>ε = 0.20"),
    "a report with more to say": edit("report.html", "</main>", "<p>Audited.</p></main>"),
    "a report with a hidden claim": edit("report.html", "</style>", ".claim{display:none}</style>"),
    "a figure with another ε": edit("report.html", "claimed: ε = 1.99", "claimed: ε = 0.19"),
    "a figure with a script": edit("report.html", "</svg>", "<script>1</script></svg>"),
    "a figure with a style": edit("report.html", "</svg>", "<style>.claim{display:none}</style></svg>"),
    "a figure over the page": edit("report.html", '<svg role="img"', '<svg style="position:fixed"'),
    "a figure with foreign words": edit("report.html", "</svg>", "<text>ε is 0.1</text></svg>"),
    "a figure of another mechanism": edit("report.html", 'aria-label="profile"', 'aria-label="positions"'),
    "words of another mechanism's figure": edit("report.html", ">ε spent</text>", ">position of the record</text>"),
    "a figure left out": ("report.html: a figure is missing", without_a_figure),
    "other preprocessing": edit("model.json", '"preprocess": []', '"preprocess": [{"scale": {"mean": 0, "std": 2}}]'),
    "another model": edit("model.json", '"bias": true', '"bias": false'),
    "no weights": ("subject: model.safetensors", without_weights),
    "other weights": ("tensors", fewer_weights),
    "weights and records": ("tensors", more_weights),
    "text in the weights": ("model.safetensors", text_in_the_weights),
    "bytes behind the weights": ("model.safetensors", bytes_behind_the_weights),
    "bytes between the weights": ("model.safetensors", bytes_between_the_weights),
}  # fmt: skip


@pytest.mark.parametrize("what", COMPANIONS)
def test_no_companion_says_what_the_certificate_does_not(what: str, copy: Any, tampering: Any) -> None:
    named, change = COMPANIONS[what]
    change(copy.release)
    forge(copy.release, lambda p: None)
    failures = tampering.failures_of(copy.release)
    assert failures
    assert all(failure.startswith(named) for failure in failures), failures


@pytest.mark.parametrize("name", ["card.md", "metrics.json", "report.html", "model.json", "model.safetensors"])
def test_a_file_that_the_recipe_releases_is_not_left_out(name: str, copy: Any, tampering: Any) -> None:
    (copy.release / name).unlink()
    forge(copy.release, lambda p: None)
    assert tampering.failures_of(copy.release) == (f"subject: {name} is missing, but this recipe releases it",)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 20, b"[]", b'{"a": 1' * 1000, bytes(8), (2**62).to_bytes(8, "little")]
)
def test_garbage_in_a_companion_is_refused(content: bytes, copy: Any, tampering: Any) -> None:
    for name in ("card.md", "metrics.json", "report.html", "model.json", "model.safetensors"):
        original = (copy.release / name).read_bytes()
        (copy.release / name).write_bytes(content)
        forge(copy.release, lambda p: None)
        assert tampering.failures_of(copy.release), name
        (copy.release / name).write_bytes(original)


BLANKS = {
    "blanks in the certificate": ("certificate.json", lambda b: b.replace(b"{", b"{ \n ", 1)),
    "blanks behind the certificate": ("certificate.json", lambda b: b + b" " * 1000),
    "another number for the same": ("certificate.json", lambda b: b.replace(b'"delta": 1e-05', b'"delta": 0.00001', 1)),
    "blanks in the model's description": ("model.json", lambda b: b.replace(b"{", b"{ \n ", 1)),
    "blanks behind the model's description": ("model.json", lambda b: b + b"\n"),
    "blanks in the metrics": ("metrics.json", lambda b: b.replace(b"{", b"{ \n ", 1)),
    "more digits in the metrics": ("metrics.json", lambda b: b.replace(b"0.713579", b"0.71357900000000000000")),
    "letters written otherwise": ("metrics.json", lambda b: b.replace(b"accuracy", b"\\u0061ccuracy", 1)),
    "blanks in the weights": ("model.safetensors", lambda b: header(b, lambda h: b" \n" + h)),
    "blanks between the weights' names": ("model.safetensors", lambda b: header(b, lambda h: h.replace(b":", b": "))),
    "blanks behind the weights' names": ("model.safetensors", lambda b: header(b, lambda h: h + b" " * 8000)),
}


def header(content: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The weights under a header with the same meaning."""
    length = int.from_bytes(content[:8], "little")
    text = change(content[8 : 8 + length])
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


@pytest.mark.parametrize("what", BLANKS)
def test_nothing_hides_in_how_a_file_is_written(what: str, copy: Any, tampering: Any) -> None:
    name, change = BLANKS[what]
    file = copy.release / name
    original = file.read_bytes()
    file.write_bytes(change(original))
    assert file.read_bytes() != original
    if name != "certificate.json":
        forge(copy.release, lambda p: None)
    (failure,) = tampering.failures_of(copy.release)
    assert failure.startswith(name)
    assert "could hide data" in failure


def test_tensors_that_the_recipe_can_t_have_trained(copy: Any, tampering: Any) -> None:
    """The recipe's model has 650 numbers to train; as many under another name are of another model."""
    save_file({"train.records": np.ones((65, 10), np.float32)}, copy.release / "model.safetensors")
    named = {"name": "train.records", "shape": [65, 10], "made_by": "noisy_steps", "dtype": "F32"}
    forge(copy.release, lambda p: p.update(tensors=[named]))
    failures = tampering.failures_of(copy.release)
    assert any("'train.records' is not a tensor of the recipe's model" in failure for failure in failures)
    assert any("the recipe's model has '1.weight'" in failure for failure in failures)


@pytest.mark.parametrize("dtype", ["U8", "F32"])
def test_bytes_under_the_names_of_the_recipe_s_tensors(dtype: str, copy: Any, tampering: Any) -> None:
    weights = {"1.weight": np.ones((10, 64), np.uint8), "1.bias": np.ones(10, np.float32)}
    save_file(weights, copy.release / "model.safetensors")

    def change(p: Any) -> None:
        for tensor in p["tensors"]:
            if tensor["name"] == "1.weight":
                tensor.update(dtype=dtype)

    forge(copy.release, change)
    words = "the recipe's model F32 [10, 64]" if dtype == "U8" else "'1.weight' is U8 [10, 64]"
    assert any(words in failure for failure in tampering.failures_of(copy.release))


def test_nothing_hides_beside_the_recipe_s_model_as_its_initialisation(copy: Any, tampering: Any) -> None:
    tensors = {"1.weight": np.ones((10, 64), np.float32), "1.bias": np.ones(10, np.float32)}
    save_file({**tensors, "records": np.ones((7, 64), np.float32)}, copy.release / "model.safetensors")
    extra = {"name": "records", "shape": [7, 64], "made_by": "seed", "dtype": "F32"}
    forge(copy.release, lambda p: p["tensors"].append(extra))
    failures = tampering.failures_of(copy.release)
    assert any("'records' is not a tensor of the recipe's model" in failure for failure in failures)


def test_what_a_library_s_model_is_said_to_hold_is_named(
    tmp_path: Path, plan_of: Any, facts_of: Any, finish: Any
) -> None:
    """Nobody knows its tensors without the library: those that no noisy step made are named."""
    from dprecipe.cli.verify import verified_lines

    tensors = (ReleasedTensor("head.weight", (10, 64), "noisy_steps"), ReleasedTensor("train.records", (7, 64), "seed"))
    done = finish(
        tmp_path / "run", plan_of(overrides=("model={kind: timm, name: resnet10t}",)), facts_of(tensors=tensors)
    )
    printed = "\n".join(verified_lines(verify(done.release)))
    assert "DECLARED      the model's tensors are not known without its library" in printed
    assert "noisy steps made 1 tensors of 640 numbers" in printed
    assert "'train.records' [7, 64]" in printed
    for name in ("report.html", "card.md"):
        assert "train.records" in (done.release / name).read_text(encoding="utf-8").replace("\\", "")


def test_the_figures_of_every_report_pass_their_own_grammar(copy: Any) -> None:
    page = (copy.release / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg ") == 3
    assert any("figures were not drawn again" in note for note in verify(copy.release).notes)
    assert report.render_html  # what makes the page makes what it is compared with


# What came from Python


OF_PYTHON = (
    ReleasedTensor("net.weight", (64, 10), "noisy_steps"),
    ReleasedTensor("means", (64,), "python"),
    ReleasedTensor("record", (1, 8, 8), "python"),
)


@pytest.fixture(scope="module")
def made_of_python(tmp_path_factory: pytest.TempPathFactory, plan_of: Any, facts_of: Any, finish: Any) -> Any:
    facts = facts_of(model="python", data="python", tensors=OF_PYTHON)
    return finish(tmp_path_factory.mktemp("python") / "run", plan_of(), facts)


@pytest.fixture
def of_python(tmp_path: Path, made_of_python: Any) -> Any:
    """A run folder of one's own."""
    shutil.copytree(made_of_python.path, tmp_path / "run")
    return replace(made_of_python, path=tmp_path / "run")


def test_verify_card_and_report_name_what_no_noisy_step_made(of_python: Any) -> None:
    from dprecipe.cli.verify import verified_lines

    verified = verify(of_python.release)
    printed = "\n".join(verified_lines(verified))
    assert "DECLARED      the module came from Python" in printed
    assert "DECLARED      records came from Python" in printed
    assert "2 tensors released unchanged, without noise: 'means' [64], 'record' [1, 8, 8]" in printed
    for name in ("report.html", "card.md"):
        page = (of_python.release / name).read_text(encoding="utf-8").replace("\\", "")
        assert "records came from Python" in page
        assert "so no code of this program ensures it" in page
        assert "probe and declaration" in page
        assert "'record' [1, 8, 8]" in page.replace("&#x27;", "'")
    access = verified.statement.predicate.data_access.preprocessing
    assert access.status == "declared"
    assert "nothing was fitted" not in access.text


LIES: dict[str, Change] = {
    "a record was trained": lambda p: p["tensors"][2].update(made_by="noisy_steps"),
    "a record is the seed's": lambda p: p["tensors"][2].update(made_by="seed"),
    "a record is a file's": lambda p: p["tensors"][2].update(made_by="file"),
    "a record is not named": lambda p: p["tensors"].pop(2),
    "nothing is assumed of the module": lambda p: p["assumptions"].remove(
        next(a for a in p["assumptions"] if a["id"] == "python_module")
    ),
    "nothing is assumed of the records": lambda p: p["assumptions"].remove(
        next(a for a in p["assumptions"] if a["id"] == "python_records")
    ),
    "code checked the module": lambda p: p["assumptions"][-2].update(checked_by="code"),
    "code checked that no record influences another": lambda p: next(
        a for a in p["assumptions"] if a["id"] == "independence"
    ).update(checked_by="code", text="no record influences the gradient of another"),
    "preprocessing was public": lambda p: p["data_access"]["preprocessing"].update(
        status="public", text="constants of the recipe, the same for every record; nothing was fitted to the data"
    ),
    "preprocessing rests on nothing": lambda p: p["data_access"]["preprocessing"].update(text="all is well"),
    "the module is the recipe's": lambda p: p["provenance"].update(model="recipe"),
    "the records are the recipe's": lambda p: p["provenance"].update(data="recipe"),
}


@pytest.mark.parametrize("what", LIES)
def test_what_came_from_python_is_not_talked_away(what: str, of_python: Any, tampering: Any) -> None:
    forge(of_python.release, LIES[what])
    assert tampering.failures_of(of_python.release)


def test_a_recipe_that_refuses_such_tensors_has_no_such_release(
    tmp_path: Path, plan_of: Any, facts_of: Any, finish: Any, tampering: Any
) -> None:
    plan = plan_of(overrides=("runtime.python_tensors=refuse",))
    assert plan.digest == plan_of().digest
    run = finish(tmp_path / "run", plan, facts_of(model="python", tensors=OF_PYTHON))
    assert any("runtime.python_tensors" in failure for failure in tampering.failures_of(run.release))
    sound = finish(tmp_path / "sound", plan, facts_of(model="python", tensors=OF_PYTHON[:1]))
    verify(sound.release)


HUGE = 10**4000
"""More digits than are turned into text, and far beyond any float."""


def plain(number: int) -> str:
    original = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return str(number)
    finally:
        sys.set_int_max_str_digits(original)


@pytest.mark.parametrize("number", [10**38, 10**40, 10**309, HUGE], ids=["10^38", "10^40", "10^309", "10^4000"])
@pytest.mark.parametrize(
    "path",
    [
        "budget.attempts",
        "budget.events_settled",
        "sampling.steps_trained",
        "data_access.evaluation.released.records",
        "randomness.insecure_seed",
        "tensors.0.shape.0",
    ],
)
def test_huge_whole_numbers_are_refused_in_words(path: str, number: int, copy: Any, tampering: Any) -> None:
    file = copy.release / "certificate.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    tampering.set_leaf(content["predicate"], path, 77_777_777)
    file.write_text(json.dumps(content).replace("77777777", plain(number)), encoding="utf-8")
    failures = tampering.failures_of(copy.release)
    if "records" not in path or number > 10**38:  # how many records a score is of is the certificate's own word
        assert failures


def test_a_score_is_of_the_kind_of_model_that_the_recipe_trains(copy: Any, tampering: Any) -> None:
    score = {"mean_absolute_error": 0.0, "loss": 0.0, "records": 1}
    forge(copy.release, lambda p: p["data_access"]["evaluation"].update(released=score))
    assert any("of another kind of model" in failure for failure in tampering.failures_of(copy.release))


# Without a ledger


def test_a_completed_run_can_t_say_that_the_budget_stopped_it(copy: Any, tampering: Any) -> None:
    shutil.rmtree(copy.path / "private")
    forge(copy.release, lambda p: p["budget"].update(stop_reason="budget"))
    assert any(failure.startswith("budget.stop_reason") for failure in tampering.failures_of(copy.release))


def test_why_a_run_of_several_attempts_stopped_is_not_shown_without_its_ledger(copy: Any) -> None:
    shutil.rmtree(copy.path / "private")
    assert any(
        "why the run stopped (completed) are taken from the certificate" in n for n in verify(copy.release).notes
    )
