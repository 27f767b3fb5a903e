"""Pages: legible in light and dark, and figures follow."""

from __future__ import annotations

import re

import pytest

from dprecipe import page
from dprecipe.contract import drawing

PALETTES = [dict(re.findall(r"--(\w+):(#[0-9a-f]{3,6})", text)) for text in (page._LIGHT, page._DARK)]


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(c + c for c in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, contrast ratio."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("palette", PALETTES, ids=["light", "dark"])
def test_every_colour_of_text_has_the_contrast_of_wcag_aa(palette: dict[str, str]) -> None:
    assert len(palette) == 11
    for name in palette.keys() - {"line", "back", "card"}:
        for ground in ("back", "card"):
            assert contrast(palette[name], palette[ground]) >= 4.5, (name, ground)


def test_every_colour_of_a_figure_follows_the_page() -> None:
    drawn = {drawing.INK, drawing.SOFT, drawing.LINE, drawing.MARK, drawing.CAP, *drawing.SERIES}
    assert drawn == page.FIGURE_COLOURS.keys()
    assert set(page.FIGURE_COLOURS.values()) <= PALETTES[0].keys()


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (3, 3), (4, 4), (5, 3), (6, 3), (7, 4), (8, 4), (9, 3)])
def test_rows_of_tiles_are_of_nearly_equal_length(count: int, columns: int) -> None:
    share = int(re.findall(r"--tile:(\d+)%", page.render_tiles([("1", "one")] * count))[0])
    assert columns * share < 100 < (columns + 1) * share


def test_texts_of_tables_tiles_and_figures_are_words() -> None:
    bad = '<b onclick="x">&\u202e'
    pages = (
        page.render_table((bad,), [(bad,)]),
        page.render_table(("", ""), [(bad, bad)]),
        page.render_tiles([(bad, bad)]),
        page.render_figures([("<svg/>", bad, bad)]),
        page.render_page(bad, page.render_section(bad, "")),
    )
    for content in pages:
        assert "<b onclick" not in content
        assert 'onclick="' not in content
        assert "\u202e" not in content
    assert page.render_tiles([]) == page.render_figures([]) == ""
