"""A plan as a card of a notebook."""

from __future__ import annotations

from dprecipe import notebook
from dprecipe.contract.plan import Plan
from dprecipe.faults import show_findings


def show_plan(plan: Plan) -> str:
    """Renders a plan as a card of a notebook."""
    guarantee, budget = plan.guarantee, plan.budget
    protected = guarantee.neighbouring.words.format(unit=guarantee.unit)
    other = f"{guarantee.alternative_accountant} gives {guarantee.alternative_epsilon:g}"
    rows = [
        *((f"solved {path}", f"{value:g}") for path, value in plan.solved.items()),
        *plan.mechanism_plan.describe(),
        ("accountant", f"{guarantee.accountant}; {other}"),
        *((f"{part.name} alone", f"ε = {part.epsilon:g}") for part in plan.spending),
        ("releases", ", ".join(plan.released)),
        ("digest", plan.digest),
    ]
    assumptions = (f"{a.text} ({a.checked_by})" for a in plan.assumptions)
    return notebook.render_card(
        f"Plan of {plan.name}",
        notebook.render_text(plan.description, "soft"),
        notebook.render_numbers(
            [
                (f"ε = {guarantee.epsilon:g}", f"to be spent, of {budget.epsilon:g}{plan.mechanism_plan.epsilon_note}"),
                (f"δ = {budget.delta:g}", f"protects {protected}"),
                (f"{plan.length.steps:,}", f"steps or queries of {plan.mechanism}"),
            ]
        ),
        show_findings(plan.warnings),
        notebook.render_rows(rows),
        notebook.render_details("what the guarantee rests on", assumptions),
    )
