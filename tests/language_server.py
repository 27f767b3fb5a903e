"""A client of the YAML language server, which editors ask about recipes: it speaks its protocol over pipes.

Source: Language Server Protocol 3.17; the settings of yaml-language-server.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

PROGRAM = "yaml-language-server"
SECONDS = 60
MARKDOWN = ["markdown"]
CAPABILITIES = {
    "hover": {"contentFormat": MARKDOWN},
    "completion": {"completionItem": {"snippetSupport": True, "documentationFormat": MARKDOWN}},
}


def find_server() -> str | None:
    """The program's path; None where it isn't installed."""
    return shutil.which(PROGRAM)


class LanguageServer:
    """A running server. Questions are about the text that was opened last."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        self._process, self._input, self._last, self._text = process, process.stdin, 0, ""
        self._received: Queue[dict[str, Any] | None] = Queue()
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        """Puts every message into the queue; None at the end of the stream."""
        stream = self._process.stdout
        assert stream is not None
        while head := stream.readline():
            while stream.readline().strip():
                pass
            self._received.put(json.loads(stream.read(int(head.partition(b":")[2]))))
        self._received.put(None)

    def _send(self, **content: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **content}).encode()
        self._input.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._input.flush()

    def _receive(self, **wanted: Any) -> dict[str, Any]:
        """The next message with these keys; the server's own questions are answered, other messages passed over."""
        while True:
            message = self._received.get(timeout=SECONDS)
            assert message is not None, "the server has ended"
            if message.get("method") == "workspace/configuration":
                sections = [item["section"] for item in message["params"]["items"]]
                self._send(id=message["id"], result=[self._settings.get(name) for name in sections])
            elif "method" in message and "id" in message:
                self._send(id=message["id"], result=None)
            elif wanted.items() <= message.items():
                return message

    def request(self, method: str, **params: Any) -> Any:
        """The answer to a request."""
        self._last += 1
        self._send(id=self._last, method=method, params=params)
        message = self._receive(id=self._last)
        assert "error" not in message, message["error"]
        return message["result"]

    def start(self, schema: Path) -> None:
        """Begins the conversation; every document has this schema, and none is fetched."""
        yaml = {"schemas": {schema.as_uri(): "*.yaml"}, "schemaStore": {"enable": False}}
        switches = {"hover": True, "completion": True, "validate": True}
        self._settings = {"yaml": {**yaml, **switches}}
        self.request("initialize", processId=None, rootUri=None, capabilities={"textDocument": CAPABILITIES})
        self._send(method="initialized", params={})
        self._send(method="workspace/didChangeConfiguration", params={"settings": self._settings})

    def open(self, text: str) -> list[tuple[int, str]]:
        """Opens a text; returns the line and the message of each diagnostic."""
        self._last += 1
        self._uri, self._text = f"file:///recipe{self._last}.yaml", text
        document = {"uri": self._uri, "languageId": "yaml", "version": 1, "text": text}
        self._send(method="textDocument/didOpen", params={"textDocument": document})
        while True:
            found = self._receive(method="textDocument/publishDiagnostics")["params"]
            if found["uri"] == self._uri:
                return [(each["range"]["start"]["line"] + 1, each["message"]) for each in found["diagnostics"]]

    def _ask(self, what: str, offset: int) -> Any:
        before = self._text[:offset]
        place = {"line": before.count("\n"), "character": len(before) - before.rfind("\n") - 1}
        return self.request(f"textDocument/{what}", textDocument={"uri": self._uri}, position=place)

    def hover(self, word: str) -> str:
        """The explanation of the first occurrence of a word."""
        return str(self._ask("hover", self._text.index(word) + 1)["contents"]["value"])

    def complete(self) -> dict[str, str]:
        """The words that may stand at the end of the text, each with its explanation."""
        explained = {}
        for item in self._ask("completion", len(self._text))["items"]:
            text = item.get("documentation", "")
            explained[item["label"]] = str(text["value"] if isinstance(text, dict) else text)
        return explained


@contextmanager
def language_server(program: str, schema: Path) -> Iterator[LanguageServer]:
    """A server that knows one schema."""
    process = subprocess.Popen([program, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        server = LanguageServer(process)
        server.start(schema)
        yield server
    finally:
        process.kill()
        process.communicate()
