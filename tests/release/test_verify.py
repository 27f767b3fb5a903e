"""`verify` against files, signatures, ledgers, garbage and other versions."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dprecipe.faults import CertificateInvalid, UsageFault
from dprecipe.privacy import accountants
from dprecipe.privacy.ledger import read
from dprecipe.release import certificate, folder, sign
from dprecipe.release.certificate import to_bytes
from dprecipe.release.verify import verify

KEYS = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")


def failures_of(path: Path, key: Path | None = None) -> str:
    with pytest.raises(CertificateInvalid) as caught:
        verify(path, key)
    assert caught.value.exit_code == 3
    return "\n".join(caught.value.failures)


def edit(release: Path, change: Any) -> None:
    file = release / "certificate.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content["predicate"])
    file.write_bytes(to_bytes(content))


def test_a_sound_release_verifies(finished: Any) -> None:
    verified = verify(finished.release)
    assert verified.claim.epsilon <= 2.0
    assert any("dp_accounting" in line for line in verified.checked)
    assert any("ledger beside it" in line for line in verified.checked)
    assert any("not signed" in line for line in verified.notes)


def test_the_certificate_file_verifies_too(finished: Any) -> None:
    assert verify(finished.release / "certificate.json").claim.epsilon <= 2.0


def test_without_the_ledger_it_says_so(copy: Any) -> None:
    shutil.rmtree(copy.path / "private")
    assert any("the ledger is not here" in note for note in verify(copy.release).notes)


def test_a_certificate_by_itself_says_what_it_was_not_held_against(copy: Any, tmp_path: Path) -> None:
    single = tmp_path / "elsewhere" / "downloaded.json"
    single.parent.mkdir()
    shutil.copy(copy.release / "certificate.json", single)
    assert any("not compared with any model" in note for note in verify(single).notes)


def test_a_changed_model_is_found(copy: Any) -> None:
    (copy.release / "model.safetensors").write_bytes(b"other weights")
    for path in (copy.release, copy.release / "certificate.json"):
        assert "model.safetensors: its content is not" in failures_of(path)


def test_a_missing_file_is_found(copy: Any) -> None:
    (copy.release / "model.json").unlink()
    assert "model.json: named by the certificate, but missing" in failures_of(copy.release)


@pytest.mark.parametrize("name", ["metrics.csv", ".hidden", "ledger.jsonl"])
def test_a_file_that_nobody_named_is_found(name: str, copy: Any) -> None:
    (copy.release / name).write_text("private", encoding="utf-8")
    assert f"{name}: in the folder, but not named by the certificate" in failures_of(copy.release)


def test_a_folder_that_nobody_named_is_found(copy: Any) -> None:
    (copy.release / "checkpoints").mkdir()
    assert "checkpoints: in the folder" in failures_of(copy.release)


def test_a_link_in_place_of_the_model_is_found(copy: Any) -> None:
    model = copy.release / "model.safetensors"
    model.rename(copy.path / "elsewhere")
    model.symlink_to(copy.path / "elsewhere")
    assert "model.safetensors: not a regular file" in failures_of(copy.release)


@pytest.mark.skipif(os.name == "nt", reason="no named pipes there")
def test_a_pipe_does_not_hang(copy: Any) -> None:
    for name in ("model.safetensors", "certificate.json"):
        (copy.release / name).unlink()
        os.mkfifo(copy.release / name)
    assert "not a regular file" in failures_of(copy.release)


def test_a_subject_outside_the_folder_is_refused(copy: Any) -> None:
    file = copy.release / "certificate.json"
    for name in ("../private/ledger.jsonl", "/etc/passwd", "a/b", "", ".."):
        content = json.loads(file.read_text(encoding="utf-8"))
        content["subject"][0]["name"] = name
        file.write_bytes(to_bytes(content))
        assert "subject.0.name" in failures_of(copy.release)


def test_a_file_that_no_run_releases_is_refused(copy: Any) -> None:
    """An unsigned certificate can be made to name anything; what is no part of a release, its claim does not cover."""
    file, extra = copy.release / "certificate.json", copy.release / "iterates.npz"
    extra.write_bytes(b"every iterate")
    content = json.loads(file.read_text(encoding="utf-8"))
    digest = hashlib.sha256(extra.read_bytes()).hexdigest()
    content["subject"].append({"name": extra.name, "digest": {"sha256": digest}})
    file.write_bytes(to_bytes(content))
    assert "subject: 'iterates.npz' is not a file that a run of this recipe releases" in failures_of(copy.release)


def test_a_swapped_ledger_is_found(copy: Any) -> None:
    ledger = copy.path / "private" / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"attempt":1', b'"attempt":2'))
    assert "ledger: " in failures_of(copy.release)


def test_a_longer_ledger_of_the_same_plan_is_found(copy: Any) -> None:
    from dprecipe.privacy.ledger import LedgerWriter

    writer = LedgerWriter(copy.path / "private" / "ledger.jsonl", copy.plan.digest)
    writer.reserve(copy.plan.events[0].event, 1)
    writer.abandon()
    failures = failures_of(copy.release)
    for field in ("events.ledger", "events.run_length", "budget.attempts", "budget.stop_reason"):
        assert f"{field}: not what the ledger says" in failures


def test_fixed_randomness_is_no_release(tmp_path: Path, plan_of: Any, facts_of: Any, finish: Any) -> None:
    plan = plan_of(overrides=("runtime.insecure.seed=3",))
    run = finish(tmp_path / "run", plan, facts_of(insecure_seed=3))
    assert "randomness.insecure_seed: the randomness was fixed" in failures_of(run.release)
    assert "NOT A RELEASE" in (run.release / "card.md").read_text(encoding="utf-8")
    edit(run.release, lambda p: p["randomness"].update(insecure_seed=None, entropy="operating_system"))
    assert "randomness.insecure_seed: not what the recipe says" in failures_of(run.release)


def test_a_check_that_was_left_out_is_found(copy: Any) -> None:
    edit(copy.release, lambda predicate: predicate["checks"].pop(0))
    assert "checks: buffers_unmoved is missing" in failures_of(copy.release)


def test_what_a_crash_reserved_is_charged(tmp_path: Path, plan_of: Any, facts_of: Any, finish: Any) -> None:
    plan = plan_of(overrides=("budget.epsilon=4.0", "mechanism.noise.multiplier=1.2"))
    run = finish(tmp_path / "run", plan, facts_of(), crashes=7)
    stated = verify(run.release).statement.predicate
    assert stated.events.total == 67
    assert stated.budget.events_reserved_unsettled == 7
    assert stated.budget.resumes == 7
    assert stated.sampling.steps_trained == 60
    assert stated.claim.epsilon > plan.guarantee.epsilon


def test_the_claim_has_no_tolerance_on_the_unsafe_side(copy: Any) -> None:
    lower = round(copy.plan.guarantee.epsilon - 1e-5, 6)

    def claim_less(predicate: Any) -> None:
        predicate["claim"]["epsilon"] = predicate["budget"]["spent"] = lower
        predicate["accounting"][0]["epsilon"] = lower

    edit(copy.release, claim_less)
    assert "claim.epsilon: the events cost" in failures_of(copy.release)


def test_an_accountant_that_is_wrong_is_found_by_the_other(
    tmp_path: Path, plan_of: Any, facts_of: Any, finish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect of ours, in making and in verifying alike: two in a thousand too little."""
    right = accountants.epsilon_answer

    def wrong(*arguments: Any) -> Any:
        answer = right(*arguments)
        return replace(answer, value=answer.value * 0.998)

    plan = plan_of(overrides=("mechanism.noise.multiplier=1.3",))
    monkeypatch.setattr(accountants, "epsilon_answer", wrong)
    run = finish(tmp_path / "run", plan, facts_of())
    assert "claim.epsilon: dp-accounting finds" in failures_of(run.release)


@pytest.mark.parametrize(("epsilon", "renyi"), [(2.0, False), (1.9, True)])
def test_a_claim_by_the_accountant_of_papers_verifies(
    epsilon: float,
    renyi: bool,
    tmp_path: Path,
    plan_of: Any,
    facts_of: Any,
    finish: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`renyi`: the library has a Rényi bound alone, which is converted better than the claim's."""
    from dp_accounting.pld import PLDAccountant

    if renyi:
        monkeypatch.setattr(PLDAccountant, "get_epsilon", Mock(side_effect=MemoryError))
    plan = plan_of(overrides=("budget.accountant=rdp_classic", f"budget.epsilon={epsilon}"))
    stated = verify(finish(tmp_path / "run", plan, facts_of()).release).statement.predicate
    assert [row.name for row in stated.accounting[:2]] == ["rdp_classic", "pld"]
    assert stated.accounting[2].name.endswith("rdp" if renyi else "pld")
    assert 1.2 * stated.accounting[1].epsilon < stated.claim.epsilon <= epsilon


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b"{",
        b'{"_type": 1e999}',
        b'{"a": NaN}',
        b'{"a": 1, "a": 2}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"predicate": ' + b"9" * 10_000 + b"}",
        b'{"payload": "!", "payloadType": "application/vnd.in-toto+json", "signatures": [{"sig": ""}]}',
        b'{"_type": "\\ud800", "subject": [], "predicateType": "", "predicate": {}}',
        b" " * (17 * 1024 * 1024),
    ],
    ids=range(14),
)
@pytest.mark.parametrize("name", ["certificate.json", "certificate.dsse.json", "other.json"])
def test_garbage_is_refused_without_a_traceback(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert failures_of(tmp_path / name)


def test_a_truncated_certificate_is_refused(copy: Any) -> None:
    file = copy.release / "certificate.json"
    content = file.read_bytes()
    for part in (0.1, 0.5, 0.99):
        file.write_bytes(content[: int(len(content) * part)])
        assert "not JSON" in failures_of(copy.release)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_any_place_is_refused_or_verified(data: Any, copy: Any) -> None:
    """Never anything but `CertificateInvalid`."""
    original = (copy.release / "certificate.json").read_bytes()
    content = json.loads(original)
    node, key = {"root": content}, "root"
    while isinstance(node[key], dict | list) and node[key] and data.draw(st.booleans() | st.just(True)):
        node = node[key]
        key = data.draw(st.sampled_from(list(node) if isinstance(node, dict) else list(range(len(node)))))
    scalar = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    node[key] = data.draw(scalar | st.lists(scalar, max_size=3) | st.dictionaries(st.text(max_size=5), scalar))
    broken = copy.path / "broken.json"
    broken.write_text(json.dumps(content), encoding="utf-8")
    with suppress(CertificateInvalid):
        verify(broken)


def test_nothing_there_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="no such file"):
        verify(tmp_path / "absent")
    assert UsageFault("").exit_code == 2


def test_a_folder_without_a_certificate_is_refused_with_a_hint(finished: Any, tmp_path: Path) -> None:
    for path, remedy in ((tmp_path, "give a certificate or a release/ folder"), (finished.path, "run/release")):
        with pytest.raises(UsageFault, match=r"there is no certificate\.json") as caught:
            verify(path)
        assert remedy in caught.value.remedy


def test_what_the_events_cost_is_told_first(copy: Any) -> None:
    """And a lowered claim is not what the events give."""

    def lowered(predicate: Any) -> None:
        predicate["claim"]["epsilon"] = 1.5

    edit(copy.release, lowered)
    lines = failures_of(copy.release).splitlines()
    assert any("the events cost" in line and "more than the 1.5 stated" in line for line in lines[:3])
    assert not any("its recipe and events give 1.5" in line for line in lines)


def test_a_torn_certificate_is_named_by_its_file(copy: Any) -> None:
    file = copy.release / "certificate.json"
    file.write_bytes(file.read_bytes()[:-100])
    assert failures_of(copy.release).startswith(f"{file}: not JSON")


def test_a_recipe_in_the_certificate_never_reaches_the_file_system(copy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import dprecipe.text.load as files

    def refuse(path: str) -> str:
        raise AssertionError(f"read {path}")

    monkeypatch.setattr(files, "read_file", refuse)
    monkeypatch.setattr("dprecipe.recipe.read.read_file", refuse)

    def point_elsewhere(predicate: Any) -> None:
        recipe = predicate["provenance"]["recipe"]
        recipe["text"] = recipe["text"].replace("base.yaml", "../../../etc/passwd")
        recipe["file"] = "/etc/passwd"

    edit(copy.release, point_elsewhere)
    assert "provenance.recipe.text" in failures_of(copy.release)


# Signatures


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """(private, its public, another public)."""
    from cryptography.hazmat.primitives import serialization as s

    home = tmp_path_factory.mktemp("keys")
    paths = []
    for name in ("one", "two"):
        key = KEYS.Ed25519PrivateKey.generate()
        private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
        public = key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
        (home / f"{name}.pem").write_bytes(private)
        (home / f"{name}.pub").write_bytes(public)
        paths += [home / f"{name}.pem", home / f"{name}.pub"]
    return paths[0], paths[1], paths[3]


@pytest.fixture
def signed(copy: Any, keys: tuple[Path, Path, Path]) -> Any:
    content = (copy.release / "certificate.json").read_bytes()
    (copy.release / "certificate.dsse.json").write_bytes(sign.seal(content, sign.load_private_key(keys[0])))
    return copy


def test_a_signed_release_verifies(signed: Any, keys: tuple[Path, Path, Path]) -> None:
    for path in (signed.release, signed.release / "certificate.dsse.json", signed.release / "certificate.json"):
        assert any("signature holds" in line for line in verify(path, keys[1]).checked)
    assert any("but not checked: give --public-key" in note for note in verify(signed.release).notes)


def test_the_envelope_alone_is_enough(signed: Any, keys: tuple[Path, Path, Path]) -> None:
    (signed.release / "certificate.json").unlink()
    assert verify(signed.release, keys[1]).claim


def test_another_key_is_found(signed: Any, keys: tuple[Path, Path, Path]) -> None:
    assert "none is valid under the given public key" in failures_of(signed.release, keys[2])


def test_a_stripped_signature_is_found(signed: Any, keys: tuple[Path, Path, Path]) -> None:
    (signed.release / "certificate.dsse.json").unlink()
    assert "signature: there is none" in failures_of(signed.release, keys[1])


def test_two_certificates_that_disagree_are_found(signed: Any, keys: tuple[Path, Path, Path]) -> None:
    edit(signed.release, lambda predicate: predicate["provenance"].update(device="another"))
    for key in (None, keys[1]):
        assert "not the certificate in" in failures_of(signed.release, key)


@pytest.mark.parametrize("what", ["payload", "payloadType", "sig"])
def test_a_changed_envelope_is_found(what: str, signed: Any, keys: tuple[Path, Path, Path]) -> None:
    file = signed.release / "certificate.dsse.json"
    envelope = json.loads(file.read_bytes())
    if what == "payload":
        payload = base64.b64decode(envelope["payload"]).replace(b'"device": "cpu"', b'"device": "gpu"')
        envelope["payload"] = base64.b64encode(payload).decode()
    elif what == "payloadType":
        envelope["payloadType"] = "text/plain"
    else:
        envelope["signatures"][0]["sig"] = base64.b64encode(bytes(64)).decode()
    file.write_text(json.dumps(envelope), encoding="utf-8")
    assert failures_of(signed.release, keys[1])


def test_the_payload_is_not_parsed_before_the_signature_holds(signed: Any, keys: tuple[Path, Path, Path]) -> None:
    file = signed.release / "certificate.dsse.json"
    envelope = json.loads(file.read_bytes())
    envelope["payload"] = base64.b64encode(b"not json at all").decode()
    file.write_text(json.dumps(envelope), encoding="utf-8")
    failures = failures_of(signed.release, keys[1])
    assert "signature" in failures
    assert "JSON" not in failures


def test_the_recipe_names_the_key_that_signs(
    tmp_path: Path, keys: tuple[Path, Path, Path], plan_of: Any, facts_of: Any, finish: Any
) -> None:
    shutil.copy(keys[0], tmp_path / "sign.pem")
    plan = plan_of(overrides=("release.sign.key=sign.pem",), file=str(tmp_path / "recipe.yaml"))
    run = finish(tmp_path / "run", plan, facts_of())
    assert any("signature holds" in line for line in verify(run.release, keys[1]).checked)


def test_the_certificate_is_a_function_of_plan_ledger_and_facts(finished: Any) -> None:
    content = (finished.release / "certificate.json").read_bytes()
    files = {s["name"]: f"sha256:{s['digest']['sha256']}" for s in json.loads(content)["subject"]}
    ledger = read(finished.path / "private" / "ledger.jsonl")
    predicate = certificate.make_run_predicate(finished.plan, ledger, finished.facts)
    assert certificate.to_bytes(certificate.make_statement(predicate, files)) == content
    assert set(files) == {entry.name for entry in finished.release.iterdir()} - folder.CERTIFICATE_FILES
    assert replace(finished.facts) == finished.facts


def test_a_run_that_the_budget_did_not_stop_cant_say_it_did(copy: Any) -> None:
    """The events that would have to be missing are noticed even without the ledger."""
    shutil.rmtree(copy.path / "private", ignore_errors=True)

    def fewer(predicate: Any) -> None:
        predicate["events"]["run_length"] = [{**predicate["events"]["run_length"][0], "count": 3}]
        predicate["events"]["total"] = 3
        predicate["budget"] |= {"stop_reason": "budget", "attempts": 2, "resumes": 1, "events_settled": 3}

    edit(copy.release, fewer)
    assert "did not stop this run" in failures_of(copy.release)
