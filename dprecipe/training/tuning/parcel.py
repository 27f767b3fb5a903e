"""A parcel: a run made on another machine, as bytes. Its reader trusts nothing in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dprecipe import durable
from dprecipe.durable import make_folders
from dprecipe.faults import DataFault, Fault, RunFailed, UsageFault
from dprecipe.models.file import parse_description
from dprecipe.models.library_files import ADAPTERS, WEIGHTS, name_weights
from dprecipe.release import folder as release_folder
from dprecipe.release.tensors import read_header
from dprecipe.release.untrusted import ContentError, parse_object
from dprecipe.training.run.trial_result import DRAFT, read_result
from dprecipe.training.tuning.score import SCORE, read_score

SCHEMA = "dprecipe.trial/v1"
MAX_HEADER = 1 << 16
MAX_TEXT = 2000
"""Characters of a message."""
Outcome = Literal["model", "refused", "lost", "fault"]
OUTCOMES: tuple[Outcome, ...] = ("model", "refused", "lost", "fault")
FAULTS: Mapping[str, type[Fault]] = {each.__name__: each for each in (RunFailed, DataFault, UsageFault)}


@dataclass(frozen=True, slots=True)
class Parcel:
    """The end of a run: a model, values that make none, a fault of its own, or one that came before it began."""

    outcome: Outcome
    files: Mapping[str, bytes] = field(default_factory=dict)
    fault: Fault | None = None
    """Why it was lost, or did not begin."""


def pack_fault(token: str, fault: Fault) -> bytes:
    """Packs a fault before the run began. What may be shown in a terminal only stays where it is."""
    return _pack(token, "fault", {}, _describe(fault))


def pack_loss(token: str, reason: str) -> bytes:
    """Returns a run that ended by a fault of its own, after it began."""
    return _pack(token, "lost", {}, _describe(RunFailed(reason)))


def _describe(fault: Fault) -> dict[str, str]:
    kind = next((name for name, each in FAULTS.items() if isinstance(fault, each)), "RunFailed")
    texts = {"message": fault.message[:MAX_TEXT], "remedy": fault.remedy[:MAX_TEXT]}
    return {"kind": kind, **texts}


def pack_refusal(token: str) -> bytes:
    """Packs the answer that the values make no model."""
    return _pack(token, "refused", {}, {})


def pack_model(token: str, kept: Path) -> bytes:
    """Packs what a run keeps. Raises `OSError`."""
    names = list_names((kept / ADAPTERS).exists(), (kept / SCORE).exists())
    return _pack(token, "model", {name: (kept / name).read_bytes() for name in names}, {})


def list_names(adapters: bool, paid: bool) -> tuple[str, ...]:
    """Returns the files of a run that has a model, in order. `paid`: it has a score that was paid for."""
    names = (ADAPTERS if adapters else WEIGHTS, "model.json", DRAFT)
    return (*names, SCORE) if paid else names


def _pack(token: str, outcome: Outcome, files: Mapping[str, bytes], fault: Mapping[str, str]) -> bytes:
    entries = [[name, len(content), hashlib.sha256(content).hexdigest()] for name, content in files.items()]
    header = {"schema": SCHEMA, "token": token, "outcome": outcome, "fault": dict(fault), "files": entries}
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(4, "big"), text, *files.values()])


def unpack(content: object, token: str, paid: bool = False) -> Parcel:
    """Returns the parcel that answers the order with this token; the content of its files is not looked at yet. `paid`:
    it has a score.

    Raises:
        ContentError: it is no such parcel.
    """
    if not isinstance(content, bytes):
        raise ContentError("a parcel is bytes")
    length = int.from_bytes(content[:4], "big")
    if not 2 <= length <= min(MAX_HEADER, len(content) - 4):
        raise ContentError("a parcel begins with its header")
    header = parse_object(content[4 : 4 + length], "the header of a parcel")
    match header:
        case {"token": str(known), "outcome": str(outcome), "fault": dict(fault), "files": list(entries)} if (
            len(header) == 5 and header.get("schema") == SCHEMA and known == token
        ):
            pass
        case _:
            raise ContentError("a parcel of another run, or of another version")
    kind = next((each for each in OUTCOMES if each == outcome), None)
    adapters = any(isinstance(entry, list) and entry[:1] == [ADAPTERS] for entry in entries)
    expected = list_names(adapters, paid) if kind == "model" else ()
    files = _read_files(content, 4 + length, entries, expected)
    if kind is None:
        raise ContentError("a parcel without a known outcome")
    return Parcel(kind, files, _read_fault(fault) if kind in ("fault", "lost") else None)


def _read_files(content: bytes, start: int, entries: list[object], names: tuple[str, ...]) -> dict[str, bytes]:
    if len(entries) != len(names):
        raise ContentError("a parcel with other files than a run has")
    files: dict[str, bytes] = {}
    for name, entry in zip(names, entries, strict=True):
        match entry:
            case [str(stated), int(size), str(digest)] if stated == name and type(size) is int and size >= 0:
                part = content[start : start + size]
            case _:
                raise ContentError("a parcel with other files than a run has")
        if len(part) != size or hashlib.sha256(part).hexdigest() != digest:
            raise ContentError(f"{name}: damaged on its way")
        files[name] = part
        start += size
    if start != len(content):
        raise ContentError("a parcel with bytes that belong to no file")
    return files


def _read_fault(stated: Mapping[str, object]) -> Fault:
    match stated:
        case {"kind": str(kind), "message": str(message), "remedy": str(remedy)} if len(stated) == 3 and kind in FAULTS:
            return FAULTS[kind](message[:MAX_TEXT], remedy[:MAX_TEXT])
    raise ContentError("a parcel with a fault that is none")


def keep_parcel(parcel: Parcel, kept: Path) -> None:
    """Puts the model of a run where the run itself would have kept it: whole, or not at all.

    Raises:
        ContentError: the files are not those of a run: a description, tensors as it states them, what it recorded.
        RunFailed: the disk refuses.
    """
    with durable.writing(kept.parent, "free space on the disk, then continue with --resume"):
        make_folders(kept.parent)
    with release_folder.open_draft(kept) as draft:
        for name, content in parcel.files.items():
            (draft / name).write_bytes(content)
        check_kept(draft)


def check_kept(kept: Path) -> None:
    """Checks what a run keeps, read as a stranger's.

    Raises:
        ContentError: it is not what a run writes.
    """
    try:
        facts = read_result(kept)
        file = parse_description((kept / "model.json").read_bytes())
        if (kept / SCORE).exists():
            read_score(kept)
    except (Fault, OSError, ValueError) as error:
        raise ContentError(f"not what a run makes: {str(error)[:200]}") from None
    stated = {tensor.name: (tensor.shape, tensor.dtype) for tensor in facts.tensors}
    weights, metadata = name_weights(file.model, adapters=file.base is not None)
    if read_header(kept / weights, metadata) != stated:
        raise ContentError(f"{weights}: not the tensors that the run states")
