"""What it costs to read a table: time and memory of `read`, beside pyarrow and pandas on the same file.

A made-up Parquet file of float32 columns, an integer label and, with `--units`, a column of names. Each reading is a
process of its own, and rounds alternate A B A B …, so that a machine whose speed drifts gives honest ratios.

| reading | what it does |
|---|---|
| `pyarrow` | `read_table`, with all its threads, into Arrow's columns |
| `pandas` | `read_parquet`, where pandas is installed |
| `read` | features, labels and units as a run takes them: in memory, or in files from 1 GiB on |
| `copy` | the same into a folder of copies, which is empty before |
| `again` | the same from that folder: what is not known unchanged is read, of the source and of the copy |
| `gather` | 1,000 batches of 1,024 records drawn at random from the files of `read`: seconds a batch |

Memory is the peak of the process's own pages (`RssAnon`), and of these and the pages of mapped files (`VmHWM`), which
the system can take back.

Run: python benchmarks/reading.py [--rows N …] [--columns N] [--units N] [--plain] [--rounds N] [--folder DIR]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

GROUP_ROWS = 1 << 17


def write_file(path: Path, rows: int, columns: int, units: int, plain: bool = False) -> None:
    """Numbers in [0, 1), a piece at a time; `units` names in no order, if any. `plain`: numbers are stored as they are;
    pyarrow would look for equal ones, of which there are few, and compress them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    drawn, writer = np.random.default_rng(0), None
    for start in range(0, rows, GROUP_ROWS):
        count = min(GROUP_ROWS, rows - start)
        table = {f"x{number}": drawn.random(count, np.float32) for number in range(columns)}
        table["y"] = drawn.integers(0, 2, count)
        if units:
            table["who"] = pa.array([f"person {number}" for number in drawn.integers(0, units, count)])
        content = pa.table(table)
        options = {"use_dictionary": ["who"], "compression": "none"} if plain else {}
        writer = writer or pq.ParquetWriter(path, content.schema, **options)
        writer.write_table(content)
    if writer is not None:
        writer.close()


def data_of(path: Path, rows: int, columns: int, units: int) -> Any:
    from dprecipe.data.schema import Data

    numbers = {f"x{number}": {"kind": "numeric", "min": 0, "max": 1} for number in range(columns)}
    train = {"source": "parquet", "path": str(path), "columns": numbers, "label": {"column": "y", "classes": 2}}
    unit = {"unit": {"column": "who", "max_records": 20}} if units else {}
    return Data.model_validate_json(json.dumps({"train": train, "size": {"max": units or rows}, **unit}))


@contextmanager
def watching_memory(result: dict[str, float]) -> Iterator[None]:
    """While the block lasts, the largest RssAnon, in GiB."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            status = Path("/proc/self/status").read_text()
            own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
            result["own"] = max(result.get("own", 0), own / 2**20)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def read_once(what: str, path: Path, rows: int, columns: int, units: int, folder: Path) -> dict[str, float]:
    """Seconds and memory of one reading, in this process."""
    from dprecipe.data.load import read

    result: dict[str, float] = {}
    data, kept = data_of(path, rows, columns, units), []

    def ours(copies: Path | None = None) -> None:
        kept.append(read(data.train, data, path.parent, "train", copies=copies)[0])

    def arrow() -> None:
        import pyarrow.parquet as pq

        kept.append(pq.read_table(path))

    def pandas() -> None:
        import pandas as pd

        kept.append(pd.read_parquet(path))

    action: Callable[[], None] = {
        "pyarrow": arrow, "pandas": pandas, "read": ours, "gather": ours,
        "copy": lambda: ours(folder), "again": lambda: ours(folder),
    }[what]  # fmt: skip
    import pyarrow.parquet  # noqa: F401  outside of what is timed

    began, used = time.monotonic(), time.process_time()
    with watching_memory(result):
        action()
    result |= {"seconds": time.monotonic() - began, "processor": time.process_time() - used}
    result["all"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if what == "gather":
        drawn, times = np.random.default_rng(1), []
        for _ in range(1000):
            batch = np.sort(drawn.choice(len(kept[0]), 1024, replace=False, shuffle=False))
            began = time.monotonic()
            kept[0].batch(batch)
            times.append(time.monotonic() - began)
        result["seconds"] = statistics.median(times)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[10**5, 10**6])
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--units", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="numbers are stored as they are")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--only", nargs="+", default=["pyarrow", "pandas", "read", "copy", "again", "gather"])
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--once", default=None)
    chosen = parser.parse_args()
    names = [name for name in chosen.only if name != "pandas" or importlib.util.find_spec("pandas")]
    if chosen.once:
        (rows,) = chosen.rows
        place = chosen.folder
        done = read_once(chosen.once, place / "t.parquet", rows, chosen.columns, chosen.units, place / "kept")
        print(json.dumps(done))
        return
    results: dict[str, Any] = {}
    for rows in chosen.rows:
        with tempfile.TemporaryDirectory(dir=chosen.folder) as text:
            place = Path(text)
            write_file(place / "t.parquet", rows, chosen.columns, chosen.units, chosen.plain)
            size = (place / "t.parquet").stat().st_size / 2**30
            print(f"{rows:,} rows x {chosen.columns} columns, {chosen.units:,} units, {size:.2f} GiB")
            figures: dict[str, list[dict[str, float]]] = {name: [] for name in names}
            for _ in range(chosen.rounds):
                for name in names:
                    if name == "copy":
                        shutil.rmtree(place / "kept", ignore_errors=True)
                    command = [sys.executable, __file__, "--once", name, "--rows", str(rows)]
                    command += ["--columns", str(chosen.columns), "--units", str(chosen.units), "--folder", text]
                    done = subprocess.run(command, check=True, capture_output=True, text=True)
                    figures[name].append(json.loads(done.stdout))
            for name, rounds in figures.items():
                seconds = sorted(one["seconds"] for one in rounds)
                middle = statistics.median(seconds)
                per = middle * 1e9 / (rows * chosen.columns)
                print(
                    f"  {name:8} {middle:9.4f} s ({seconds[0]:.4f}-{seconds[-1]:.4f})  {per:6.1f} ns a value"
                    f"  processor {statistics.median(one['processor'] for one in rounds):7.2f} s"
                    f"  own {max(one['own'] for one in rounds):6.2f} GiB"
                    f"  all {max(one['all'] for one in rounds):6.2f} GiB",
                    flush=True,
                )
            results[str(rows)] = figures
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
