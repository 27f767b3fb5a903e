"""`dprecipe plan`: what the run will spend and release."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dprecipe.faults import UsageFault
from dprecipe.mechanisms.dpsgd.account import gradient_multiplier
from dprecipe.mechanisms.plan import Plan
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.events import NoisyThreshold
from dprecipe.recipe.read import read
from dprecipe.screen import as_json, show, show_document

FORMATS = ("text", "json")


def plan(recipe: Path, overrides: Sequence[str] = (), output: str = "text") -> None:
    """Solve the free variable and print the plan.

    Raises:
        RecipeError, PlanRefused: there is none.
        UsageFault: an unknown format.
    """
    if output not in FORMATS:
        raise UsageFault(f"unknown format {output}", f"choose one of {', '.join(FORMATS)}")
    made = make_plan(read(recipe, overrides))
    if output == "json":
        show_document(as_json(made.to_json()))
    else:
        show([*lines(made), *basis(made)])


def lines(plan: Plan) -> list[str]:
    """The plan as a person reads it, line by line; recipe texts are among it."""
    guarantee, budget = plan.guarantee, plan.budget
    rows = [
        ("mechanism", plan.mechanism),
        *((f"solved {path}", f"{value:g}") for path, value in plan.solved.items()),
        *ROWS.get(plan.mechanism, _steps)(plan),
        ("spends", f"ε = {guarantee.epsilon:g} of {budget.epsilon:g} at δ = {budget.delta:g}{_whatever(plan)}"),
        (
            "accountant",
            f"{guarantee.accountant}; {guarantee.cross_check_accountant} gives {guarantee.cross_check_epsilon:g}",
        ),
        ("protects", guarantee.neighbouring.words.format(unit=guarantee.unit)),
        *_places(plan),
        ("releases", ", ".join(plan.released)),
        ("digest", plan.digest),
    ]
    width = max(len(name) for name, _ in rows)
    told = [plan.name, *(f"  {name.ljust(width)}  {value}" for name, value in rows)]
    for warning in plan.warnings:
        word, more = ("accepted", warning.accepted) if warning.accepted else ("warning", warning.remedy)
        told += [f"  {word} {warning.code}: {warning.message}", f"    {more}"]
    return told


def basis(plan: Plan) -> list[str]:
    """What the claim rests on, line by line: told by `dprecipe plan`, and in each certificate."""
    return ["  rests on", *(f"    - {a.text} ({a.checked_by})" for a in plan.assumptions)]


def _whatever(plan: Plan) -> str:
    """What the ε of votes does not depend on."""
    return ", whatever is answered" if plan.settings.get("filter") is not None else ""


def _sure(plan: Plan) -> str:
    """How many of the queries the budget holds even if every one is answered, where that is not all of them."""
    sure = next((c.count for c in plan.events if isinstance(c.event, NoisyThreshold)), plan.length.steps)
    return f" at most; {sure:,} fit whatever is answered" if sure < plan.length.steps else ""


def _votes(plan: Plan) -> list[tuple[str, str]]:
    settings = plan.settings
    trained = "trained elsewhere" if settings["teachers_from"] == "file" else f"about {settings['expected_lot']:g} each"
    family, multiplier = settings["noise_family"], settings["noise_multiplier"]
    rows = [
        ("teachers", f"{settings['teachers']:,}, {trained}, dealt by {settings['partition_by']}"),
        ("aggregator", f"{settings['aggregator']}, {settings['classes']:,} classes"),
        ("queries", f"{settings['queries']:,}{_sure(plan)}"),
        ("noise", f"{family}, {multiplier:g} votes on each count"),
    ]
    if settings["threshold"] is not None:
        check = f"gaussian noise of {settings['selection_multiplier']:g} votes"
        rows.insert(3, ("answers at most", f"{settings['answers']:,}"))
        rows.append(("answered", f"where the largest count reaches {settings['threshold']:g}, {check}"))
    asked = settings["interaction"]
    if asked is not None:
        more = f"where votes exceed what the student expects by {asked['threshold']:g}"
        own = f"its own label above {asked['confidence']:g}"
        rows.append(("then", f"in rounds 2 to {asked['rounds']}, {more}; {own}"))
    if settings["sanitize"] is not None:
        rows.append(("publishes", f"what these votes cost, at order {settings['sanitize']['order']:g}"))
    return rows


def _steps(plan: Plan) -> list[tuple[str, str]]:
    return [
        ("steps", f"{plan.length.steps:,}"),
        ("expected lot", _lots(plan)),
        ("sampling rate", _rates(plan)),
        *_noise(plan),
    ]


def _lots(plan: Plan) -> str:
    phases = plan.settings.get("phases", [])
    if plan.mechanism != "dpsgd":
        return f"{plan.length.expected_lot:g}"
    most = plan.resolved["mechanism"]["sampling"].get("max_batch_size")
    cap = "" if most is None else f", {most:,} at most"
    exact = ", exactly" if plan.settings["scheme"] == "fixed_size" else ""
    return f"{_over_phases([phase['expected_lot'] for phase in phases])}{cap}{exact}"


def _rates(plan: Plan) -> str:
    if plan.sampling_rate is None:
        return "none claimed"
    lots = [phase["expected_lot"] for phase in plan.settings.get("phases", []) if "expected_lot" in phase]
    if len(set(lots)) < 2:
        return f"{plan.sampling_rate:.6g}"
    return _over_phases([float(f"{lot * plan.sampling_rate / lots[0]:.6g}") for lot in lots])


def _in_groups(groups: Sequence[int]) -> str:
    return "" if len(groups) == 1 else f", ranked in {len(groups)} groups"


def _noise(plan: Plan) -> list[tuple[str, str]]:
    settings = plan.settings
    codebook = settings.get("codebook")
    if codebook is None:
        return _clipping(plan)
    rows = [
        ("codebook", f"{codebook['size']:,} codewords of norm {codebook['norm']:g}, {codebook['digest'][:23]}…"),
        ("coordinates", f"{settings['dimension']:,}{_in_groups(settings['groups'])}"),
    ]
    if settings["slots"] is not None:
        rows.append(("micro-batches", f"{settings['slots']:,} a lot: twice the sensitivity"))
    phases = settings.get("phases", [settings])
    for index, phase in enumerate(phases):
        shape = "" if phase["noise_shape"] is None else f" ({phase['noise_shape']:g})"
        steps = f", {phase['steps']:,} steps" if len(phases) > 1 else ""
        name = "noise" if len(phases) == 1 else f"noise {index + 1}"
        rows.append(
            (name, f"{phase['noise_family']}{shape}, multiplier {phase['noise_multiplier']:g} × codeword norm{steps}")
        )
    return rows


def _clipping(plan: Plan) -> list[tuple[str, str]]:
    settings = plan.settings
    clip, phases = settings["clip"], settings["phases"]
    laplace = settings["noise_family"] == "laplace"
    name = "clip norm" if clip["norms"] is None or len(set(clip["norms"])) == 1 else "clip norms"
    multiplier = _over_phases([phase["noise_multiplier"] for phase in phases])
    rows = [("noise multiplier", f"{multiplier} × {name} {_norms(plan)}{', laplace' if laplace else ''}")]
    match clip["mode"]:
        case "per_layer":
            how = "the same share for each layer" if clip["norms"] is None else f"{len(clip['norms'])} layers"
            rows.append(("clipping", f"layer by layer, {how}"))
        case "automatic":
            rows.append(("clipping", f"automatic, γ = {clip['stability']:g}"))
        case "adaptive":
            alone = gradient_multiplier(max(phase["noise_multiplier"] for phase in phases), clip["count_noise"])
            rows.append(
                (
                    "clipping",
                    f"adaptive, to quantile {clip['quantile']:g}; a count with noise of {clip['count_noise']:g} units "
                    f"takes its part, so that gradients get noise of multiplier {alone:.6g}",
                )
            )
    if settings["augmentations"] > 1:
        rows.append(("augmentations", f"{settings['augmentations']} copies of each record, averaged before clipping"))
    if len(phases) > 1:
        rows.append(("phases", f"{len(phases)}, {_over_phases(sorted(phase['steps'] for phase in phases))} steps each"))
    return rows


def _norms(plan: Plan) -> str:
    clip = plan.settings["clip"]
    if clip["norms"] is not None and len(set(clip["norms"])) > 1:
        return ", ".join(f"{norm:g}" for norm in clip["norms"])
    return _over_phases([phase["clip_norm"] for phase in plan.settings["phases"]])


def _over_phases(values: Sequence[float]) -> str:
    first, last = f"{values[0]:g}", f"{values[-1]:g}"
    return first if min(values) == max(values) else f"{first} to {last}"


def _descent(plan: Plan) -> list[tuple[str, str]]:
    settings, length = plan.settings, plan.length
    lots, stages = settings["lots"], settings["stages"]
    constraint = settings["constraint"]
    size = f"radius {constraint['radius']:g}" if constraint["kind"] == "ball" else f"bound {constraint['bound']:g}"
    stop = "the last of them is released" if settings["stop"] == "last" else "stops after 1 to all, drawn at random"
    rows = [
        ("steps", f"{length.steps:,}, {length.steps / lots:.4g} passes of {lots:,}; {stop}"),
        ("batch", f"{settings['batch_size']:,} of {plan.data.size:,} records, {settings['order']} order"),
        (
            "set",
            f"{constraint['kind']} of {size}, D = {settings['diameter']:g}, {settings['parameters']:,} parameters",
        ),
        (
            "constants",
            f"L = {settings['lipschitz']:.6g}, Δ = {settings['moved']:.6g}, β = {settings['smoothness']:.6g}, "
            f"ρ = {settings['strong_convexity']:.6g}, contraction {settings['contraction']:.6g}",
        ),
        ("learning rate", _range([stage["learning_rate"] for stage in stages])),
        (
            "noise",
            f"{settings['noise_family']}, scale {_range([stage['noise_scale'] for stage in stages])} on the mean "
            f"gradient ({_range([stage['noise_multiplier'] for stage in stages])} × L)",
        ),
    ]
    for name, epsilon in settings["bounds"].items():
        least = ", the least" if name == settings["winner"] else ""
        rows.append((f"by {name}", "none" if epsilon is None else f"ε = {epsilon:g}{least}"))
    return rows


def _range(values: Sequence[float]) -> str:
    first, last = f"{values[0]:.6g}", f"{values[-1]:.6g}"
    return first if min(values) == max(values) else f"{first} to {last} in {len(values):,} stages"


def _places(plan: Plan) -> list[tuple[str, str]]:
    """Where records are protected least and most, if their place in the file decides it."""
    places = plan.guarantee.by_position
    if not places:
        return []
    worst = max(places, key=lambda place: (place[1], -place[0]))
    best = min(places, key=lambda place: (place[1], place[0]))
    shown = [f"ε = {epsilon:g} for record {position:,}" for position, epsilon, _ in (worst, best)]
    return [("worst place", shown[0]), ("best place", shown[1])]


ROWS = {"pate": _votes, "pnsgd": _descent}
"""How a mechanism's own rows are made; others take noisy steps on sampled lots."""
