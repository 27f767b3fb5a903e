#!/usr/bin/env bash
# benchmarks/gpu_check.py on a GPU machine without a network, for at most eight minutes.
#
# Before, with a network:  make gpu-wheels   (the packages that such a machine lacks, as wheels in .whl/)
# There, in the root:      OUT=folder benchmarks/gpu_lent.sh [--stages wrn,tests]
#
# It needs Python 3.12 with torch (built for CUDA), lightning, transformers, timm, pytest, pytest-xdist and
# pytest-timeout. Everything it finds out is written to $OUT as soon as it is known.
set -euo pipefail
cd "$(dirname "$0")/.."
OUT="${OUT:-gpu-check}"
SITE="${TMPDIR:-/tmp}/dprecipe-site"
mkdir -p "$OUT"
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$SITE" .whl/*.whl
export PYTHONPATH="$SITE:$PWD${PYTHONPATH:+:$PYTHONPATH}" TORCHINDUCTOR_CACHE_DIR="${TMPDIR:-/tmp}/dprecipe-inductor"
nvidia-smi >"$OUT/smi.txt" 2>&1 || true
exec python3 benchmarks/gpu_check.py --out "$OUT" "$@"
