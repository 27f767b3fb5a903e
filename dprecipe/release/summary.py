"""The report's first screen: the answers for those who decide on a release, without a word that only engineers know."""

from __future__ import annotations

from dprecipe.language.statement import ReleaseStatement, quote_words
from dprecipe.page import escape_html, render_bullets, render_section, render_table
from dprecipe.release import meaning
from dprecipe.release.card import list_context
from dprecipe.release.no_model import has_no_model
from dprecipe.release.schema import Predicate

TITLE = "In short, for those who decide"
STOP = "Readers who decide on this release may stop here. The rest is for engineers."
DECLARED = ("curators", "contact", "data_source")
"""Keys of the statement that the first screen shows."""


def render_summary(predicate: Predicate) -> list[str]:
    """Renders what is protected, how strongly, who answers for it, and what is not protected."""
    kind = " void" if is_void(predicate) else ""
    lead, *others = list_leading(predicate)
    body = f'<p class="plain">{escape_html(lead)}</p>' + "".join(f"<p>{escape_html(text)}</p>" for text in others)
    table = render_table(("", ""), list_answers(predicate))
    return [
        f'<section class="claim{kind}"><h2>{escape_html(TITLE)}</h2>{body}{table}</section>',
        render_section(
            "What is not protected", f"{render_bullets(predicate.claim.not_protected)}<p>{escape_html(STOP)}</p>"
        ),
    ]


def is_void(predicate: Predicate) -> bool:
    """Returns True if the randomness of a run was fixed, for a test."""
    return predicate.randomness.insecure_seed is not None


def leads_with_claim(predicate: Predicate) -> bool:
    """Returns True if the claim's own sentence says what a reader has to know first: that there is no release, or no
    model."""
    return is_void(predicate) or has_no_model(predicate)


def list_leading(predicate: Predicate) -> list[str]:
    """Lists the paragraphs that everybody reads: what the claim means, unless no one is protected."""
    claim = predicate.claim
    first = [claim.sentence] if leads_with_claim(predicate) else []
    meant = [] if is_void(predicate) else [meaning.describe_attack(claim), meaning.describe_scale(claim)]
    return [*first, *meant]


def list_answers(predicate: Predicate) -> list[tuple[str, str]]:
    """Lists questions and answers. The author's words are quoted, and said to be declared."""
    claim, rows = predicate.claim, list[tuple[str, str]]()
    if not is_void(predicate):
        rows += [
            ("what is protected", meaning.describe_protected_unit(claim)),
            ("families and other small groups", meaning.describe_group(claim)),
        ]
    if not leads_with_claim(predicate):
        released = "The model" if predicate.tensors else "What was released"
        rows.append(("if somebody asks for deletion", meaning.describe_deletion(claim, released)))
    source = (predicate.statement or ReleaseStatement()).data_source
    whose = "the recipe does not say (it has no release.statement.data_source)"
    rows.append(("whose data they are", whose if source is None else f"{quote_words(source)} (declared)"))
    return [*rows, *list_context(predicate)]
