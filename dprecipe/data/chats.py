"""Conversations: the messages of a field, strictly read. Nothing is rendered by a template, which would be code."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

MAX_MESSAGES = 10_000


class NoChat(ValueError):
    """A field is no conversation; the text says why, without anything of the field."""


def parse_chat(text: str, roles: Collection[str]) -> list[tuple[str, str]]:
    """Returns (role, content) of each message of a field: a list of {role, content} in JSON, with no other keys
    (unless null).

    Raises:
        NoChat: it is none, or a role is not declared.
    """
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError):
        raise NoChat("a field is no list of messages in JSON") from None
    if not isinstance(messages, list) or not messages:
        raise NoChat("a field is no list of messages, or an empty one")
    if len(messages) > MAX_MESSAGES:
        raise NoChat(f"a conversation has more than {MAX_MESSAGES:,} messages")
    return [_parse_message(message, roles) for message in messages]


def _parse_message(message: Any, roles: Collection[str]) -> tuple[str, str]:
    if not isinstance(message, dict):
        raise NoChat("a message is no mapping of role and content")
    role, content = message.get("role"), message.get("content")
    if not (isinstance(role, str) and isinstance(content, str)):
        raise NoChat("a message has no text as its `role` or its `content`")
    if any(value is not None for key, value in message.items() if key not in ("role", "content")):
        raise NoChat("a message has more than a role and a content")
    if role not in roles:
        raise NoChat("a message is of a role that `roles` does not declare")
    return role, content
