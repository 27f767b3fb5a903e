"""Addresses of accounts: the path of a file, or the address of a database without a password."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from dprecipe.account.facts import NAME
from dprecipe.faults import UsageFault
from dprecipe.screen import make_printable

SCHEMES = ("postgresql", "postgres")
SECRET = ("password", "sslpassword", "oauth_client_secret", "passfile_password")


@dataclass(frozen=True, slots=True)
class FileAddress:
    path: Path


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of an account on a server. `url`: as libpq takes it. `name`: the account's; None where the database
    has only one."""

    url: str
    name: str | None


def split_scheme(address: str) -> tuple[str, bool]:
    """Returns the scheme of an address, and whether it holds a password or the like. Raises `ValueError`."""
    parts = urlsplit(address)
    keys = (key.lower() for key, _ in parse_qsl(parts.query, keep_blank_values=True))
    return parts.scheme, parts.password is not None or any(key in SECRET for key in keys)


def parse_address(text: str, folder: Path = Path()) -> FileAddress | ServerAddress:
    """Parses the address of an account; a relative path is relative to `folder`.

    Raises:
        UsageFault: a password in it, a scheme other than PostgreSQL's, or a name that no account can have. The message
            does not repeat the address, which may hold a password.
    """
    if "://" not in text:
        if "\0" in text or not text:
            raise UsageFault("the path of an account is empty or holds a zero byte", "name a file")
        return FileAddress(folder / text)
    try:
        scheme, has_secret = split_scheme(text)
    except ValueError:  # its text may quote a password
        raise UsageFault(
            "the address of an account can't be read", "write postgresql://USER@HOST/DATABASE#ACCOUNT"
        ) from None
    if has_secret:
        raise UsageFault(
            "the address of an account has a password",
            "remove it, treat the password as known, and keep the new one in ~/.pgpass or $PGPASSWORD",
        )
    if scheme not in SCHEMES:
        raise UsageFault(
            f"an account is a file or at postgresql://…, not at {make_printable(scheme)}://",
            "write a path, or postgresql://USER@HOST/DATABASE#ACCOUNT",
        )
    url, mark, fragment = text.partition("#")
    name = unquote(fragment)
    if mark and not re.fullmatch(NAME, name):
        raise UsageFault(
            f"{make_printable(name)!r} can't be the name of an account", "write postgresql://USER@HOST/DATABASE#ACCOUNT"
        )
    return ServerAddress(url, name if mark else None)
