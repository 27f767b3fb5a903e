"""Entries: read as written, and nothing else is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dprecipe.account.canonical import to_line
from dprecipe.account.entries import AccountEntry, BindAct, ReserveAct, RunClaim, SettleAct, VoidAct, parse_entry
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import Spent
from dprecipe.privacy.noisy_sums import Gaussian

COST = Spent((0.5, float("inf")), 0.0)
CHARGES = (Charge(Gaussian(2.0), 3),)
PREV = "sha256:" + "a" * 64
ACTS = {
    "bind": BindAct("0" * 64),
    "reserve": ReserveAct("run-1", 1, "what Ä", "n0", CHARGES, COST, RunClaim(1.0, 1e-5)),
    "reserve without a claim": ReserveAct("run-1", 2, "", "", CHARGES, COST, None),
    "settle": SettleAct("run-1", 1, True, CHARGES, COST),
    "settle of nothing": SettleAct("run-1", 1, False, (), Spent((0.0, 0.0))),
    "void": VoidAct("run-1", 1),
}


def write(act: Any, **changes: Any) -> bytes:
    line = AccountEntry(7, PREV, "2026-11-23T12:00:00Z", act).to_line()
    return to_line({**json.loads(line), **changes}) if changes else line


@pytest.mark.parametrize("name", ACTS)
def test_an_entry_is_read_as_written(name: str) -> None:
    entry = AccountEntry(7, PREV, "2026-11-23T12:00:00Z", ACTS[name])
    assert parse_entry(entry.to_line(), 2) == entry


@pytest.mark.parametrize("name", ACTS)
def test_no_field_is_missing_and_none_is_unknown(name: str) -> None:
    content = json.loads(write(ACTS[name]))
    for field in content:
        with pytest.raises(ValueError, match=r"there is no field|unknown"):
            parse_entry(to_line({key: value for key, value in content.items() if key != field}), 2)
    with pytest.raises(ValueError, match="unknown fields: more"):
        parse_entry(to_line({**content, "more": 1}), 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq": -1}, "seq is not a whole number"),
        ({"seq": True}, "seq is not a whole number"),
        ({"seq": 7.0}, "seq is not a whole number"),
        ({"prev": "sha256:x"}, "prev is not valid"),
        ({"time": "2026-11-23 12:00:00Z"}, "time is not valid|does not match"),
        ({"type": "refund"}, "unknown type"),
        ({"run": "a b"}, "run is not valid"),
        ({"run": "a\n"}, "run is not valid"),
        ({"attempt": 0}, "attempt is not a whole number"),
        ({"attempt": 10**7}, "attempt is too large"),
        ({"what": "x" * 201}, "what is not valid"),
        ({"what": "a\x1b[2J"}, "what is not printable"),
        ({"what": "a\u202eb"}, "what is not printable"),
        ({"nonce": "-"}, "nonce is not valid"),
        ({"events": [{"count": 1, "kind": "unknown"}]}, "unknown event kind"),
        ({"events": [Charge(Gaussian(2.0), 1).to_json()] * 2}, "not run-length encoded"),
        ({"events": {}}, "events is not a list"),
        ({"cost": {"rdp": [0.5], "delta": 0.0}}, "cost: "),
        ({"cost": {"rdp": [0.5, -1.0], "delta": 0.0}}, "cost: "),
        ({"cost": {"rdp": [0.5, 0.1], "delta": 0.0}}, "cost: "),
        ({"cost": {"rdp": [0.5, 0.5], "delta": 2.0}}, "cost: "),
        ({"cost": [0.5]}, "cost is not an object"),
        ({"claim": {"epsilon": -1.0, "delta": 0.0}}, "epsilon is not a finite number"),
        ({"claim": {"epsilon": 1.0}}, "no field delta"),
    ],
)
def test_what_no_writer_writes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_entry(write(ACTS["reserve"], **changes), 2)


def test_only_the_canonical_form_is_read() -> None:
    line = write(ACTS["reserve"])
    for other in (b" " + line, json.dumps(json.loads(line)).encode(), line.replace(b"what \\u00c4", "what Ä".encode())):
        with pytest.raises(ValueError, match="canonical form"):
            parse_entry(other, 2)
    twice = line.replace(b'"attempt":1', b'"attempt":2,"attempt":1')
    with pytest.raises(ValueError, match="canonical form"):
        parse_entry(twice, 2)
    for bad in (b"", b"[]", b"{", b"\xff", b"[" * 100_000):
        with pytest.raises((ValueError, RecursionError)):
            parse_entry(bad, 2)
