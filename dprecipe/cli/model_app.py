"""The commands of released models: their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dprecipe.cli.arguments import ReleaseForm
from dprecipe.cli.guard import guard_faults

ReleasePath = Annotated[Path, typer.Argument(metavar="RELEASE", help="A release/ folder.", show_default=False)]
Base = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="The weights that released adapters belong to.", show_default=False),
]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda|mps", help="auto: a GPU if there is one.")]
MaxTokens = Annotated[
    int | None, typer.Option(help="Largest number of new tokens of a text; by default up to the length of training.")
]
Temperature = Annotated[
    float, typer.Option(help="0 takes the likeliest token; 1 draws from the model's own distribution.")
]
TopP = Annotated[float, typer.Option(help="Draw from the likeliest tokens that hold this share of the probability.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same texts on one machine.")]
NoVerify = Annotated[bool, typer.Option("--no-verify", help="Don't verify the release first.")]
PublicKey = Annotated[Path | None, typer.Option(help="Require a signature by this Ed25519 public key.")]


@guard_faults
def predict(
    release: ReleasePath,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Records, as CSV or Parquet with a header.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(help="A new .csv or .parquet; by default CSV on standard output.")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add a column for each class, with its probability.")
    ] = False,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Copy this column of FILE. Repeatable.")
    ] = None,
    image_column: Annotated[str, typer.Option(help="Image column of a Parquet file.")] = "image",
    delimiter: Annotated[
        str | None, typer.Option(help="Delimiter of a CSV file; by default found in its header.", show_default=False)
    ] = None,
    no_verify: NoVerify = False,
    public_key: PublicKey = None,
) -> None:
    """Predicts the records of a file with a released model."""
    from dprecipe.cli.predict import predict as write_predictions

    write_predictions(
        release,
        file,
        out,
        probabilities=probabilities,
        keep=keep or (),
        image_column=image_column,
        delimiter=delimiter,
        check=not no_verify,
        public_key=public_key,
    )


@guard_faults
def export(
    release: ReleasePath,
    form: ReleaseForm,
    out: Annotated[Path, typer.Option(help="A new file, or a new folder.", show_default=False)],
    license_name: Annotated[
        str | None,
        typer.Option(
            "--license", help="License in README.md, as the hub spells it; by default the recipe's meta.license."
        ),
    ] = None,
    no_verify: NoVerify = False,
    public_key: PublicKey = None,
    key: Annotated[Path | None, typer.Option(help="Private key for model-signing, P-256 in PEM.")] = None,
) -> None:
    """Writes a released model for other programs."""
    from dprecipe.cli.export import export as write_export

    write_export(release, form, out, check=not no_verify, public_key=public_key, license_name=license_name, key=key)


@guard_faults
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
    output: Annotated[str, typer.Option(metavar="text|json")] = "text",
    no_verify: NoVerify = False,
    public_key: PublicKey = None,
) -> None:
    """Writes texts with a released language model."""
    from dprecipe.cli.generate import generate as write_texts

    write_texts(
        release,
        prompt,
        count=count,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        base=base,
        device=device,
        output=output,
        check=not no_verify,
        public_key=public_key,
    )


@guard_faults
def synthesize(
    release: ReleasePath,
    out: Annotated[Path, typer.Option(help="A new .csv, .jsonl or .parquet.", show_default=False)],
    rows: Annotated[int | None, typer.Option(help="Number of records to write.", show_default=False)] = None,
    counts: Annotated[
        list[str] | None,
        typer.Option(
            "--count", metavar="VALUE=N", help="Write N records whose first column has this value. Repeatable."
        ),
    ] = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    guard_formulas: Annotated[
        bool, typer.Option("--guard-formulas", help="In CSV, put an apostrophe before what spreadsheets would run.")
    ] = False,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="PUBLIC", help="Print a comparison with these public records.", show_default=False),
    ] = None,
    base: Base = None,
    device: Device = "auto",
    no_verify: NoVerify = False,
    public_key: PublicKey = None,
) -> None:
    """Writes synthetic records with a released language model, and its certificate beside them."""
    from dprecipe.cli.synthesize import synthesize as write_records

    write_records(
        release,
        out,
        rows=rows,
        counts=counts or (),
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        guard_formulas=guard_formulas,
        compare=compare,
        base=base,
        device=device,
        check=not no_verify,
        public_key=public_key,
    )
