"""Every command, and what each says in an environment that has the dependencies alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RECIPES = tuple((Path(__file__).parents[2] / "recipes").rglob("*.yaml"))


@dataclass(frozen=True, slots=True)
class Case:
    """A command line, its exit code, and a text of what it prints."""

    line: str
    code: int = 0
    says: str = ""


def refused(line: str, library: str, extra: str = "train") -> Case:
    """A command that needs a library, and names it and what installs it."""
    plural = "are" if ", " in library else "is"
    return Case(line, 2, f"needs {library}, which {plural} not installed\n  = pip install 'dprecipe[{extra}]'")


TRAINING = "torch, lightning, safetensors, scikit-learn"
GROUPS: tuple[tuple[Case, ...], ...] = (
    (
        Case("--version", says="dprecipe "),
        Case("--help", says="validate"),
        Case("init recipe.yaml", says="wrote recipe.yaml"),
        Case("validate recipe.yaml", says="no findings"),
        Case("init --list", says="quickstart "),
        Case("init like.yaml --like tuned-digits", says="wrote like.yaml"),
        *(Case(f"init {kind}-starter.yaml --mechanism {kind}") for kind in ("encoded", "pate", "pnsgd")),
        *(Case(f"init {kind}-starter.yaml --data {kind}") for kind in ("idx", "csv", "parquet", "json_lines", "npz")),
    ),
    (
        Case("init private.yaml --from visits.csv --private --label readmitted --unit patient_id"),
        Case("init public.yaml --from visits.csv --public --label readmitted --unit patient_id"),
        Case("validate private.yaml", 1, "values are left open"),
        Case("data check private.yaml", 1, "read names and kinds"),
        Case("validate public.yaml", says="no findings"),
        Case("init lines.yaml --from visits.jsonl --public --label readmitted --unit patient_id"),
        Case("init arrays.yaml --from arrays.npz --public --label labels"),
        refused("init table.yaml --from visits.parquet --public --label readmitted", "pyarrow"),
    ),
    (
        Case("explain P108", says="ε above 10"),
        Case("explain --list", says="R199"),
        Case("validate recipes/", 1, "P160"),
        Case("validate recipes/ --format github", 1, "::error file=recipes/papers/asoodeh2020-figure3.yaml"),
        Case("validate recipes/ --format sarif", 1, '"ruleId": "P160"'),
        Case("validate recipes/ --format json", 1, f'"recipes": {len(RECIPES)}'),
        Case("validate --policy house/dprecipe.policy.yaml visits.yaml", says="no findings"),
        Case("validate house", says="no findings"),
    ),
    (
        Case("validate visits.yaml", says="no findings"),
        Case("plan visits.yaml", says="ε"),
        Case("plan dpsgd.yaml --compare-accountants", says="rdp"),
        Case("plan dpsgd.yaml --format json", says='"epsilon"'),
        Case("plan dpsgd.yaml --plot curves.svg", says="wrote curves.svg"),
        Case("sweep dpsgd.yaml --over budget.epsilon=1,2 --plan", says="nothing is trained"),
        Case("show dpsgd.yaml --origin", says="dpsgd.yaml:"),
        Case("schema", says="schemas"),
        Case("schema --check", says="0 out of date"),
        Case("copies", 2, "no folder is named"),
    ),
    (
        Case("data check visits.yaml", says="every source is what the recipe declares"),
        Case("data check long.yaml", says="every source is what the recipe declares"),
        Case("data check lines.yaml", says="every source is what the recipe declares"),
        Case("data check arrays.yaml", says="every source is what the recipe declares"),
        refused("data check parquet.yaml", "pyarrow"),
        refused("data check images.yaml", "pillow"),
        refused("data check duckdb.yaml", "duckdb", "duckdb"),
        refused("data check postgres.yaml", "psycopg", "postgres"),
        refused("data check language.yaml", "tokenizers", "hub"),
    ),
    (
        Case("noise dpsgd.yaml --set budget.accountant=rdp", says="compared"),
        Case("votes recipes/pate-digits.yaml --out votes", says="gnmax on simulated votes"),
        Case("positions pnsgd.yaml --plot figure.svg", says="δ by position"),
        Case("compare dpsgd encoded --plot compare.svg", says="protects adding or removing one record"),
    ),
    tuple(
        Case(f"verify {name}/release", says="verified")
        for name in ("dpsgd", "module", "encoded", "pate", "pnsgd", "tuned")
    ),
    (
        *(
            Case(f"verify {name}/release", says="verified")
            for name in ("paid", "no_model", "audited", "prior", "language")
        ),
        Case("verify charged/release --account-statement statement.json", says="verified"),
        Case("verify none", 3, "the certificate does not verify"),
        Case("prior --check prior.safetensors", says="the same images"),
        Case("prior --check prior/release", says="the same images"),
    ),
    (
        Case("account create new.db --epsilon 8 --delta 1e-6 --unit patient_id", says="created account new"),
        Case("account show digits.db --plot account.svg", says="account digits"),
        Case("account history digits.db", says="account digits"),
        Case("account plan charged.yaml", says="account digits"),
        Case("account export digits.db --public public.json --head head.json", says="wrote public.json"),
        Case("account verify digits.db --head head.json", says="digits"),
        Case("account verify public.json", says="digits"),
        Case("account test digits.db", says="account digits"),
        Case("account settle charged", 2, "this run is settled"),
        refused("account show postgresql://ann@localhost/none#some", "psycopg", "postgres"),
    ),
    (
        refused("run dpsgd.yaml --rehearse", TRAINING),
        refused("run dpsgd.yaml --out runs/one", TRAINING),
        refused("run none.yaml --out runs/none", TRAINING),
        refused("tune tuned.yaml --out runs/best", TRAINING),
        refused("sweep recipes/quickstart.yaml --over budget.epsilon=1,2 --out runs/sweep", TRAINING),
        refused("audit dpsgd.yaml", "torch"),
        refused("prior prior.yaml --out again.safetensors", "torch"),
        refused("prior --check prior.safetensors --retrain", "torch, safetensors"),
        refused("teachers pate.yaml --out shards", "torch"),
        refused("codebook encoded.yaml --out book.npz", "torch"),
    ),
    (
        refused("predict dpsgd/release visits.csv --out predictions.csv", "torch"),
        refused("export dpsgd/release --format onnx --out model.onnx", "torch"),
        Case("export dpsgd/release --format huggingface --out hub", says="hub"),
        refused("generate language/release", "torch"),
        refused("synthesize language/release --out rows.csv --rows 2", "torch"),
        refused("synthesize language/release --out rows.csv --rows 2 --compare visits.csv", "scikit-learn"),
    ),
)
"""Each group in order; different groups at once."""
