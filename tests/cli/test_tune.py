"""The arguments of `dprecipe tune`."""

from __future__ import annotations

import pytest
import typer

from dprecipe.cli.main import app


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ("r.yaml", None),
        ("r.yaml --ray", "local"),
        ("--ray --jobs 2 r.yaml", "local"),
        ("r.yaml --ray 10.0.0.1:6379", "10.0.0.1:6379"),
        ("--ray=auto r.yaml", "auto"),
    ],
)
def test_ray_without_an_address_is_a_cluster_of_its_own(words: str, address: str | None) -> None:
    command = typer.main.get_command(app).load_command("tune")  # type: ignore[attr-defined]
    given = command.make_context("tune", words.split()).params
    assert given["cluster"] == address
    assert given["recipe"].name == "r.yaml"
