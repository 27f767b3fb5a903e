"""The encrypted state of a last-iterate release on disk. It is bound to its key, plan and ledger.

It is one file: a line with the format's name, a line with the head of the ledger when it was saved, a nonce of 12
random bytes, and the state, encrypted with ChaCha20-Poly1305. The cipher authenticates all of these and the plan's
digest. A crash leaves either the old file or the new one. The key, 32 bytes from the operating system, is a separate
file beside the ledger. Neither file leaves `private/`.

Guarantees: without the key, the file reveals only its length and the ledger's head. A file that was truncated, changed,
or made for another run is refused. Nothing in it is executed.
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

MAGIC = b"dprecipe descent state 1"
KEY_BYTES, NONCE_BYTES = 32, 12


@final
class EncryptedState:
    """The state's file and its key."""

    def __init__(self, path: Path, key: Path, plan_digest: str) -> None:
        """Reads and writes nothing."""
        self._path = path
        self._key = key
        self._plan = plan_digest

    def save(self, state: State, ledger_head: str) -> None:
        """Replaces the file with one of this state.

        Raises:
            RunFailed: writing failed; the file is unchanged.
        """
        head, nonce = ledger_head.encode(), secrets.token_bytes(NONCE_BYTES)
        try:
            ciphertext = _cipher(self._read_or_create_key()).encrypt(nonce, _pack(state), self._associated_data(head))
            durable.replace_file(self._path, b"\n".join((MAGIC, head, nonce + ciphertext)))
        except OSError as error:
            raise RunFailed(
                f"{self._path}: the state can't be written: {error.strerror}",
                "free space on the disk, then continue with --resume",
            ) from None

    def load(self, before: Ledger | None) -> State | None:
        """Returns the state of a run whose ledger is `before`; None: there is no file.

        Raises:
            RunFailed: the file is damaged, belongs to another ledger or plan, or its key is missing or wrong.
        """
        if not os.path.lexists(self._path):
            return None
        try:
            content = durable.read_bytes(self._path)
            key = durable.read_bytes(self._key)
        except OSError as error:
            raise self._describe_fault(f"can't be read with its key: {error.strerror}") from None
        magic, _, body = content.partition(b"\n")
        head, _, ciphertext = body.partition(b"\n")
        if magic != MAGIC or len(ciphertext) <= NONCE_BYTES or len(key) != KEY_BYTES:
            raise self._describe_fault("is damaged, or its key is")
        if before is None or head.decode("utf-8", "replace") not in before.heads:
            raise RunFailed(
                f"{self._path}: the state does not belong to this ledger. The ledger is that of another run, or it is "
                "older than the state and may not record everything that was released",
                "restore the run's own ledger; if it is lost, start over in a new folder, which is charged in full",
            )
        try:
            return _unpack(
                _cipher(key).decrypt(ciphertext[:NONCE_BYTES], ciphertext[NONCE_BYTES:], self._associated_data(head))
            )
        except InvalidTag:
            raise self._describe_fault("is damaged, or belongs to another plan or key") from None
        except (KeyError, ValueError, TypeError, OSError, zipfile.BadZipFile):
            raise self._describe_fault("does not have the expected content") from None

    def _associated_data(self, head: bytes) -> bytes:
        return b"\n".join((MAGIC, self._plan.encode(), head))

    def _read_or_create_key(self) -> bytes:
        """Returns the key on disk; creates it if there is none."""
        if not os.path.lexists(self._key):
            durable.replace_file(self._key, secrets.token_bytes(KEY_BYTES))
        key = durable.read_bytes(self._key)
        if len(key) != KEY_BYTES:
            raise self._describe_fault("can't be written: its key is damaged")
        return key

    def _describe_fault(self, why: str) -> RunFailed:
        return RunFailed(
            f"{self._path}: the state {why}",
            "restore the run's own files; or, if the run has not ended, remove the state: the run then starts over at "
            "no further cost",
        )


def _cipher(key: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(key)


def _pack(state: State) -> bytes:
    buffer = io.BytesIO()
    arrays = {"iterate": state.iterate, "steps": np.array([state.step, state.stop], np.int64)}
    if state.order is not None:
        arrays["order"] = state.order
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _unpack(content: bytes) -> State:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        step, stop = arrays["steps"].tolist()
        return State(arrays["iterate"], step, stop, arrays.get("order"))
