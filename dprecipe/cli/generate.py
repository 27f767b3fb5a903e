"""`dprecipe generate`: texts that a released language model writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dprecipe.cli.arguments import (
    Base,
    Device,
    MaxTokens,
    NoVerify,
    PublicKey,
    ReleasePath,
    Seed,
    Temperature,
    TopP,
)
from dprecipe.cli.completion import complete_words
from dprecipe.cli.files import verify_release
from dprecipe.faults import UsageFault
from dprecipe.libraries import check_libraries, importing_libraries
from dprecipe.models.file import find_model_folder
from dprecipe.screen import as_json, show_document, write_output

if TYPE_CHECKING:
    from dprecipe.models.language_model import LanguageModel
    from dprecipe.release.verify import Verified


def generate(
    release: ReleasePath,
    prompt: Annotated[str, typer.Option(help="Text to continue; for a chat model, the user's message.")] = "",
    count: Annotated[int, typer.Option(help="Number of texts to write.")] = 1,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    base: Base = None,
    device: Device = "auto",
    output: Annotated[str, typer.Option(metavar="text|json", autocompletion=complete_words("text", "json"))] = "text",
    no_verify: NoVerify = False,
    public_key: PublicKey = None,
) -> None:
    """Verifies the release, then writes `count` texts to the standard output: with `output` "text" as they are, several
    with a line between them; with "json" as one document.

    Raises:
        UsageFault: a number is out of its range, the prompt too long, or the device not there.
        CertificateInvalid: the release does not verify; nothing of it was loaded.
        DataFault: the release, or the base of its adapters, is not what it should be.
    """
    if output not in ("text", "json"):
        raise UsageFault(f"{output!r} is no output", "choose text or json with --output")
    model, _ = open_language_model(release, base, device, check=not no_verify, public_key=public_key)
    texts = model.generate(prompt, count, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    if output == "json":
        show_document(as_json({"schema": "dprecipe.generated/v1", "prompt": prompt, "texts": texts}))
        return
    for number, text in enumerate(texts, 1):
        if count > 1:
            write_output([f"--- {number} of {count} ---"])
        write_output(text.split("\n"))


def open_language_model(
    release: Path, base: Path | None, device: str, *, check: bool, public_key: Path | None
) -> tuple[LanguageModel, Verified | None]:
    """Returns the released model, and its certificate where that is checked.

    Raises:
        CertificateInvalid, DataFault, UsageFault: see `generate`.
    """
    folder = find_model_folder(release)
    check_libraries("writing texts", "torch")  # before seconds of verifying
    verified = None
    if check:
        verified = verify_release(folder, public_key)
    elif public_key is not None:
        raise UsageFault("a key is of a signature that is checked", "remove --no-verify or --public-key")
    with importing_libraries("writing texts"):
        from dprecipe.models.language_model import load_language_model
    return load_language_model(folder, base, device), verified
