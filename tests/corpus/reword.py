"""Copies the package with every sentence of its documents reworded and three internal modules renamed, as a later
version: `reword(FOLDER)`. Machine-read words stay: ids, kinds, what `claim.released` names."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import dprecipe

PACKAGE = Path(dprecipe.__file__).parent
VERSION = "9.9.0"
REWORDED = (
    *(f"release/{name}.py" for name in ("account_report", "audit", "card", "certificate", "charged_account", "claim")),
    *(f"release/{name}.py" for name in ("meaning", "nist", "no_model", "origins", "registry", "report", "scores")),
    *(f"release/{name}.py" for name in ("specification", "stages", "summary", "tuned")),
    "contract/certificate.py",
    "noisy_sum/certificate.py",
    "noisy_sum/clip_rules.py",
    "noisy_sum/solve.py",
    *(f"planning/{name}.py" for name in ("accept", "audit", "candidates", "from_python", "paid", "public", "records")),
    *(f"planning/{name}.py" for name in ("split", "tuning")),
    *(f"mechanisms/*/{name}.py" for name in ("account", "certificate", "cost_statement")),
)
RENAMED = {
    "planning.candidates": "contenders",
    "models.library_files": "files_elsewhere",
    "privacy.hockey_stick": "puck",
}
"""Modules that others import by their full name."""
SENTENCE = re.compile(r"[^<>{}=/`\\|]*[a-z]{2,} [a-z]{2,}[^<>{}=/`\\|]*")
"""Text of several words, without markup."""
IDS = frozenset({"probe and declaration"})
"""Machine-read, though of several words."""


def reword(target: Path) -> None:
    """Writes the copy as `target/dprecipe`."""
    copy = target / "dprecipe"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for pattern in REWORDED:
        files = sorted(copy.glob(pattern))
        assert files, pattern
        for file in files:
            tree = Reworded().visit(ast.parse(file.read_text(encoding="utf-8")))
            file.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
    for file in copy.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for name, new in RENAMED.items():
            text = text.replace(f"dprecipe.{name} ", f"dprecipe.{name.rpartition('.')[0]}.{new} ")
        file.write_text(text, encoding="utf-8")
    for name, new in RENAMED.items():
        old = copy / f"{name.replace('.', '/')}.py"
        old.rename(old.with_stem(new))
    root = copy / "__init__.py"
    root.write_text(re.sub('__version__ = ".*"', f'__version__ = "{VERSION}"', root.read_text(encoding="utf-8")))


class Reworded(ast.NodeTransformer):
    """Puts sentences into capitals, those of f-strings, too."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str) and node.value not in IDS and SENTENCE.fullmatch(node.value):
            return ast.Constant(node.value.upper())
        return node
