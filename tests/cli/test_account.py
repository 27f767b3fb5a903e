"""`dprecipe account create | show | history | export | verify | test`."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from dprecipe.account.entries import RunClaim
from dprecipe.account.faults import AccountInvalid, AccountUnavailable
from dprecipe.account.opening import open_account
from dprecipe.cli import account as commands
from dprecipe.cli.account_show import LATEST, history, show
from dprecipe.faults import UsageFault
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian
from tests.account.hostile import write_costly_statement

CHARGES = (Charge(Gaussian(20.0), 4),)


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A new account of two runs, one of them open."""
    path = str(tmp_path / "admissions.db")
    commands.create(path, 2.0, 1e-5, "patient_id", "add_or_remove_one", 1.5, None)
    account = open_account(path)
    account.bind(b"x" * 32)
    account.reserve("first", 1, CHARGES, "team \x1b[2J <A>", claim=RunClaim(0.4, 1e-6))
    account.settle("first", 1, CHARGES, final=True)
    account.reserve("second", 1, CHARGES, "team B")
    account.close()
    capsys.readouterr()
    return path


def keys(folder: Path) -> tuple[Path, Path]:
    key = Ed25519PrivateKey.generate()
    private, public = folder / "key.pem", folder / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    private.chmod(0o600)
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def test_create_says_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "ward b.db")
    commands.create(path, 8.0, 1e-6, "patient_id", "replace_one", None, None)
    out = capsys.readouterr().out
    assert out.startswith("created account ward b: ")
    assert "replacing one group of records with the same 'patient_id' by another" in out
    assert f"account: {path}" in out
    assert open_account(path).facts.name == "ward b"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"neighbouring": "nearby"}, "unknown relation"),
        ({"epsilon": -1.0}, "expected a number above 0"),
        ({"name": "a/b"}, "can't be the name"),
        ({"address": "postgresql://host/database"}, "the account has no name"),
        ({"address": "postgresql://host/database#a", "name": "b"}, "the address names account a"),
        ({"address": "postgresql://a:secret@host/database#a"}, "has a password"),
    ],
)
def test_what_create_refuses(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    terms = {
        "address": str(tmp_path / "a.db"),
        "epsilon": 1.0,
        "delta": 1e-5,
        "unit": "record",
        "neighbouring": "replace_one",
        "max_per_run": None,
        "name": None,
    }
    with pytest.raises(UsageFault, match=message):
        commands.create(**{**terms, **changes})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_show_tells_what_is_counted_and_what_is_left(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(place, "text", None)
    text = capsys.readouterr().out
    state = open_account(place).state()
    assert f"ε = {commands.tell(state.epsilon)} (what the cap is held against), by 2 runs, 1 of them open" in text
    assert f"ε = {commands.tell(state.odometer)}" in text
    assert "\x1b" not in text
    assert r"team \u001b[2J <A>" in text
    assert [line.split()[1] for line in text.splitlines()[-2:]] == ["second", "first"]
    show(place, "json", None)
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "dprecipe.account-state/v1"
    assert document["open_reservations"] == 1
    assert [run["status"] for run in document["latest"]] == ["open", "settled"]
    left = document["left"]
    account = open_account(place)
    assert left["runs_like_the_latest"] > 3
    for number in range(left["runs_like_the_latest"]):
        account.reserve(f"more{number}", 1, CHARGES, "x", claim=RunClaim(0.4, 1e-6))
    with pytest.raises(Exception, match="does not fit"):
        account.reserve("one-too-many", 1, CHARGES, "x", claim=RunClaim(0.4, 1e-6))


def test_the_gaussian_run_that_is_left_fits(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    from dprecipe.privacy import gdp

    show(place, "json", None)
    epsilon = json.loads(capsys.readouterr().out)["left"]["epsilon_of_one_gaussian_run"]
    account = open_account(place)
    sigma = 1 / gdp.mu_for(epsilon, 1e-5)
    with pytest.raises(Exception, match="does not fit"):
        account.reserve("a", 1, (Charge(Gaussian(sigma * 0.99), 1),), "x", claim=RunClaim(0.4, 1e-6))
    account.reserve("a", 1, (Charge(Gaussian(sigma * 1.0001), 1),), "x", claim=RunClaim(0.4, 1e-6))


def test_history_lists_every_run_in_order(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    account = open_account(place)
    for number in range(LATEST + 2):
        account.reserve(f"r{number}", 1, (Charge(Gaussian(60.0), 1),), "x", claim=RunClaim(0.1, 1e-6))
    history(place, "json")
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["run"] for run in runs] == ["first", "second", *(f"r{number}" for number in range(LATEST + 2))]
    assert runs[0]["claim"] == {"epsilon": 0.4, "delta": 1e-6}
    assert runs[0]["epsilon_after"] < runs[1]["epsilon_after"] < runs[2]["epsilon_after"]
    history(place, "text")
    assert len(capsys.readouterr().out.splitlines()) == LATEST + 2 + 2 + 2
    show(place, "json", None)
    assert len(json.loads(capsys.readouterr().out)["latest"]) == LATEST


def test_an_account_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "new.db")
    commands.create(path, 2.0, 1e-5, "record", "replace_one", None, None)
    show(path, "text", tmp_path / "plot.svg")
    history(path, "text")
    out = capsys.readouterr().out
    assert "ε = 0 (what the cap is held against), by 0 runs" in out
    assert out.count("  no runs") == 2
    ElementTree.parse(tmp_path / "plot.svg")


def test_the_plot_draws_each_run_and_escapes_names(place: str, tmp_path: Path) -> None:
    show(place, "text", tmp_path / "plot.svg")
    root = ElementTree.parse(tmp_path / "plot.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}polyline")) == 2
    assert len(root.findall(f"{space}rect")) == 1 + 2 + 2  # the ground, the legend, two runs
    with pytest.raises(UsageFault, match=r"a plot is an \.svg"):
        show(place, "text", tmp_path / "plot.png")
    with pytest.raises(UsageFault, match="unknown format"):
        show(place, "yaml", None)


def test_a_strangers_check_of_the_statement(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    statement, head = tmp_path / "statement.json", tmp_path / "head.json"
    commands.export(place, statement, head, None)
    commands.verify(str(statement), head, None)
    assert "verified" in capsys.readouterr().out
    commands.verify(place, head, None)
    with pytest.raises(UsageFault, match="nothing is overwritten"):
        commands.export(place, statement, None, None)
    content = json.loads(statement.read_text())
    content["facts"]["name"] = "another"
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(content))
    with pytest.raises(AccountInvalid, match="the chain is broken"):
        commands.verify(str(forged), None, None)
    forged.write_text("no JSON")
    with pytest.raises(UsageFault, match="neither an account nor a statement"):
        commands.verify(str(forged), None, None)


def test_a_head_shows_a_roll_back_and_is_not_replaced_by_an_older(place: str, tmp_path: Path) -> None:
    shutil.copy(place, tmp_path / "backup")
    open_account(place).settle("second", 1, (), final=True)
    head = tmp_path / "head.json"
    commands.export(place, None, head, None)
    content = head.read_bytes()
    shutil.copy(tmp_path / "backup", place)
    for suffix in ("-wal", "-shm"):
        Path(f"{place}{suffix}").unlink(missing_ok=True)
    commands.verify(place, None, None)  # not seen without the head
    with pytest.raises(AccountInvalid, match="1 entries that were there"):
        commands.verify(place, head, None)
    with pytest.raises(AccountInvalid, match="1 entries that were there"):
        commands.export(place, None, head, None)
    assert head.read_bytes() == content
    open_account(place).settle("second", 1, CHARGES, final=True)
    commands.export(place, tmp_path / "statement.json", None, None)
    with pytest.raises(AccountInvalid, match="is not the one of"):
        commands.verify(str(tmp_path / "statement.json"), head, None)


def test_a_signed_head(place: str, tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    head = tmp_path / "head.json"
    commands.export(place, None, head, private)
    commands.verify(place, head, public)
    commands.verify(place, head, None)
    with pytest.raises(AccountInvalid, match="signature"):
        commands.verify(place, head, keys(other)[1])
    commands.export(place, None, head, None)  # without a signature
    with pytest.raises(AccountInvalid):
        commands.verify(place, head, public)
    for wrong in (
        {"public": None, "head": None, "key": None},
        {"public": tmp_path / "x", "head": None, "key": private},
    ):
        with pytest.raises(UsageFault):
            commands.export(place, **wrong)
    with pytest.raises(UsageFault, match="--public-key is of a head"):
        commands.verify(place, None, public)


def test_testing_an_account_leaves_nothing_behind(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = open_account(place).state()
    commands.test_connection(place)
    assert "it can be used" in capsys.readouterr().out
    assert open_account(place).verify().totals == before.totals


def test_a_server_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(AccountUnavailable, match="can't be reached") as caught:
        commands.test_connection(f"postgresql:///x?host={tmp_path}&connect_timeout=1#a")
    assert "check that the server runs" in caught.value.remedy


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers there")
def test_a_strangers_statement_costs_no_more_than_is_allowed(tmp_path: Path) -> None:
    write_costly_statement(tmp_path / "statement.json")
    assert (tmp_path / "statement.json").stat().st_size < 50_000
    with pytest.raises(AccountInvalid, match=r"0\.5 s of processor time, so nothing of it is verified.*--max-seconds"):
        commands.verify(str(tmp_path / "statement.json"), None, None, max_seconds=0.5)


def test_an_account_is_verified_within_bounds(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("dprecipe.account.account.check_books", greedy)
    with pytest.raises(AccountInvalid, match=r"allowed memory, so nothing of it is verified.*--max-memory"):
        commands.verify(place, None, None)
