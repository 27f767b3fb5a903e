"""The state of a last-iterate release on disk: encrypted, and of no use with another key, plan or ledger.

One file, written so that a crash leaves the old one or the new one: a line that names what it is, a line with the head
of the ledger at the time, 12 random bytes, and the state under ChaCha20-Poly1305, which authenticates all of it
together with the plan's digest. The key, 32 bytes from the operating system, is a file of its own beside the ledger;
neither ever leaves `private/`.

Guarantees: whoever has the state's file and not the key learns its length and the ledger's head; a file that was cut,
changed, or made for another run is refused. Nothing that it holds is run.
Source: RFC 8439 (ChaCha20 and Poly1305).
"""

from __future__ import annotations

import io
import os
import secrets
import zipfile
from pathlib import Path
from typing import final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dprecipe import durable
from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pnsgd.train.descent import State
from dprecipe.privacy.ledger import Ledger

MAGIC = b"dprecipe hidden state 1"
KEY_BYTES, NONCE_BYTES = 32, 12


@final
class HiddenState:
    """The file, and the key that it is read and written with."""

    def __init__(self, path: Path, key: Path, plan_digest: str) -> None:
        """Nothing is read or written yet."""
        self._path = path
        self._key = key
        self._plan = plan_digest

    def save(self, state: State, ledger_head: str) -> None:
        """Put the state in the place of the one before.

        Raises:
            RunFailed: the disk refuses; the file is as it was.
        """
        head, nonce = ledger_head.encode(), secrets.token_bytes(NONCE_BYTES)
        try:
            sealed = _cipher(self._held_key()).encrypt(nonce, _packed(state), self._about(head))
            durable.replace_file(self._path, b"\n".join((MAGIC, head, nonce + sealed)))
        except OSError as error:
            raise RunFailed(
                f"{self._path}: can't keep the state: {error.strerror}",
                "make room on the disk, then continue with --resume",
            ) from None

    def load(self, before: Ledger | None) -> State | None:
        """The state, of a run whose ledger is `before`; None where none was kept.

        Raises:
            RunFailed: the file is damaged, is not of this ledger or plan, or its key is missing or another.
        """
        if not os.path.lexists(self._path):
            return None
        try:
            content = durable.read_bytes(self._path)
            key = durable.read_bytes(self._key)
        except OSError as error:
            raise self._refused(f"can't be read with its key: {error.strerror}") from None
        magic, _, rest = content.partition(b"\n")
        head, _, sealed = rest.partition(b"\n")
        if magic != MAGIC or len(sealed) <= NONCE_BYTES or len(key) != KEY_BYTES:
            raise self._refused("is damaged, or its key is")
        if before is None or head.decode("utf-8", "replace") not in before.heads:
            raise RunFailed(
                f"{self._path}: the state is not of this ledger, which is another run's, or older than the state, and "
                "may not know of all that was released",
                "put the run's own ledger back; if it is lost, start anew in another folder, which is charged in full",
            )
        try:
            return _unpacked(_cipher(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], self._about(head)))
        except InvalidTag:
            raise self._refused("is damaged, or it is of another plan or key") from None
        except (KeyError, ValueError, TypeError, OSError, zipfile.BadZipFile):
            raise self._refused("holds no state of this program") from None

    def _about(self, head: bytes) -> bytes:
        return b"\n".join((MAGIC, self._plan.encode(), head))

    def _held_key(self) -> bytes:
        """The key on disk, made and put there where there is none."""
        if not os.path.lexists(self._key):
            durable.replace_file(self._key, secrets.token_bytes(KEY_BYTES))
        key = durable.read_bytes(self._key)
        if len(key) != KEY_BYTES:
            raise self._refused("can't be kept: its key is damaged")
        return key

    def _refused(self, why: str) -> RunFailed:
        return RunFailed(
            f"{self._path}: the state {why}",
            "put the run's own files back; or, if the run has not ended, remove the state: it then starts over, and "
            "costs no more",
        )


def _cipher(key: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(key)


def _packed(state: State) -> bytes:
    buffer = io.BytesIO()
    arrays = {"iterate": state.iterate, "steps": np.array([state.step, state.stop], np.int64)}
    if state.order is not None:
        arrays["order"] = state.order
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _unpacked(content: bytes) -> State:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        step, stop = arrays["steps"].tolist()
        return State(arrays["iterate"], step, stop, arrays.get("order"))
