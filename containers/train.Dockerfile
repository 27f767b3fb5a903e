# What also trains: recipes and records come in at /work, and runs go out there.
#
#   docker build -f containers/train.Dockerfile -t dprecipe-train .
#   docker run --rm --network none --user "$(id -u):$(id -g)" -v "$PWD:/work" dprecipe-train run recipes/quickstart.yaml --out runs/first
#
# That takes torch for CUDA, and trains on a GPU with docker run --gpus all. A smaller image for CPUs: --build-arg
# TORCH_INDEX=…, the index of torch's CPU wheels.

FROM python:3.13-slim-bookworm AS build
ARG TORCH_INDEX
WORKDIR /source
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY dprecipe dprecipe
COPY docs/reference/findings docs/reference/findings
COPY recipes recipes
RUN python -m pip install --no-cache-dir -c constraints.txt --upgrade pip \
    && python -m venv --without-pip /opt/dprecipe \
    && python -m pip --python /opt/dprecipe install --no-cache-dir -c constraints.txt --build-constraint constraints.txt \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} '.[train]'

FROM python:3.13-slim-bookworm
COPY --from=build /opt/dprecipe /opt/dprecipe
USER 10001:10001
WORKDIR /work
ENTRYPOINT ["/opt/dprecipe/bin/dprecipe"]
CMD ["--help"]
