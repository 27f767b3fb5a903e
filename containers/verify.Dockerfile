# What validates, plans and verifies; it has no torch and needs no network.
#
#   docker build -f containers/verify.Dockerfile -t dprecipe-verify .
#   docker run --rm --network none --read-only -v "$PWD/runs/visits/release:/release:ro" dprecipe-verify

FROM python:3.13-slim-bookworm AS build
WORKDIR /source
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY dprecipe dprecipe
COPY docs/reference/findings docs/reference/findings
COPY recipes recipes
RUN python -m pip install --no-cache-dir -c constraints.txt --upgrade pip \
    && python -m venv --without-pip /opt/dprecipe \
    && python -m pip --python /opt/dprecipe install --no-cache-dir -c constraints.txt --build-constraint constraints.txt .

FROM python:3.13-slim-bookworm
COPY --from=build /opt/dprecipe /opt/dprecipe
USER 10001:10001
WORKDIR /release
ENTRYPOINT ["/opt/dprecipe/bin/dprecipe"]
CMD ["verify", "/release"]
