# One image for every role: `qbserver serve` (default), `qbserver worker`, `qbserver migrate`.
# See docs/operations.md. Nothing is compiled: all wheels come hash-checked from the lock file.

FROM python:3.11.14-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
RUN python -m venv /opt/qb
COPY requirements/runtime.txt /src/requirements/runtime.txt
RUN /opt/qb/bin/pip install --require-hashes -r /src/requirements/runtime.txt
COPY pyproject.toml README.md LICENSE /src/
COPY compiler /src/compiler
# the pages of error codes, to which a link in the compiler points
COPY docs/errors /src/docs/errors
COPY service /src/service
COPY worker /src/worker
COPY migrations /src/migrations
RUN /opt/qb/bin/pip install --no-deps --no-build-isolation /src \
    && /opt/qb/bin/python -m compileall -q -j 0 /opt/qb/lib \
    && /opt/qb/bin/pip uninstall --yes pip

FROM python:3.11.14-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /var/lib/qb --create-home qb
COPY --from=build /opt/qb /opt/qb
ENV PATH=/opt/qb/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    QB_HOST=0.0.0.0 \
    QB_PORT=8000 \
    QB_DATA_DIR=/var/lib/qb
USER 10001
WORKDIR /var/lib/qb
VOLUME /var/lib/qb
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f\"http://127.0.0.1:{os.environ['QB_PORT']}/healthz\", timeout=4)"]
# builds stop in order on SIGTERM
STOPSIGNAL SIGTERM
CMD ["qbserver", "serve"]
