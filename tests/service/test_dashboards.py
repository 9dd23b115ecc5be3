"""Each metric and label that a dashboard or an alert asks for is one that the server has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from service.settings import Settings
from worker.metrics import WorkerMetrics

from .live import serving

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "qb.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
# those that Prometheus itself adds
OWN_LABELS = {"instance", "job", "le"}


def dashboard_expressions() -> Iterator[tuple[str, str]]:
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def alert_expressions() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


EXPRESSIONS = [*dashboard_expressions(), *alert_expressions()]


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Names of all time series of the service and the worker, with their labels."""
    found: dict[str, set[str]] = {"up": set()}
    settings = Settings(data_dir=tmp_path_factory.mktemp("metrics") / "data")
    with serving(settings) as live:
        live.parse_job(0)
        claimed = live.parse_job(1)
        live.claim(claimed)
        text = live.http.get("/metrics").text
        found |= _names(live.context.metrics.registry)
    # each gauge has a value, and the queue is told of
    assert 'qb_builds_queued{queue="qb.qbcompiler"} 1.0' in text
    assert 'qb_builds_running{queue="qb.qbcompiler"} 1.0' in text
    assert "qb_workers_busy 1.0" in text and "qb_database_up 1.0" in text
    for name, labels in re.findall(r"^(qb_\w+)(?:\{(.*?)\})? ", text, re.M):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found | _names(WorkerMetrics().registry)


def _names(registry: CollectorRegistry) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for collector, names in list(registry._collector_to_names.items()):
        labels = collector._labelnames if isinstance(collector, MetricWrapperBase) else ()
        for name in names:
            found[name] = set(labels)
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_there_are_expressions() -> None:
    assert len(list(dashboard_expressions())) >= 20
    assert len(list(alert_expressions())) >= 8


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_metrics_and_labels_are_there(
    title: str, expression: str, metrics: dict[str, set[str]]
) -> None:
    wrong = list(unknown(expression, metrics))
    assert not wrong, f"{title}: {wrong}"


def unknown(expression: str, metrics: dict[str, set[str]]) -> Iterator[str]:
    plain = re.sub(r'"[^"]*"', '""', expression)
    used = set(re.findall(r"\b(?:qb_\w+|process_\w+|up)\b", plain))
    if not used:
        yield "asks for no metric"
    yield from sorted(used - set(metrics))
    labels = set().union(*(metrics.get(name, set()) for name in used)) | OWN_LABELS
    for group in re.findall(r"\bby \(([^)]*)\)", plain):
        yield from (f"label {x}" for x in re.split(r"[\s,]+", group) if x and x not in labels)
    for inside in re.findall(r"\{([^}]*)\}", plain):
        yield from (f"label {x}" for x in re.findall(r"(\w+)\s*[=!]", inside) if x not in labels)


@pytest.mark.parametrize(
    "expression",
    [
        "sum(rate(qb_nonsense_total[5m]))",
        "sum by (nonsense) (rate(qb_worker_attempts_total[5m]))",
        'qb_jobs{nonsense="a"}',
        "vector(1)",
    ],
)
def test_an_unknown_name_is_found(expression: str, metrics: dict[str, set[str]]) -> None:
    assert list(unknown(expression, metrics))


def test_each_metric_of_the_worker_is_on_the_dashboard(metrics: dict[str, set[str]]) -> None:
    text = DASHBOARD.read_text("utf-8")
    registry = WorkerMetrics().registry
    names = {f.name for f in registry.collect() if f.name.startswith("qb_")}
    assert names and not [name for name in names if name not in text]


def test_alerts_are_of_the_form_that_prometheus_reads() -> None:
    (group,) = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names)
    operations = (DEPLOY.parent / "docs" / "operations.md").read_text("utf-8")
    for rule in group["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        for brackets in ("()", "[]", "{}"):
            assert rule["expr"].count(brackets[0]) == rule["expr"].count(brackets[1])
        assert f"`{rule['alert']}`" in operations
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    assert config["rule_files"] == [ALERTS.name]


def test_panels_do_not_overlap() -> None:
    places = set()
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert not cells & places
        places |= cells


def test_metrics_are_answered_while_the_database_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    with serving(Settings(data_dir=tmp_path / "data")) as live:

        def away() -> None:
            raise OperationalError("SELECT", {}, Exception("away"))

        monkeypatch.setattr(live.context.jobs, "counts", away)
        answer = httpx.get(f"{live.url}/metrics")
        assert answer.status_code == 200
        assert "qb_database_up 0.0" in answer.text and "process_cpu_seconds_total" in answer.text
        assert "qb_jobs{" not in answer.text
