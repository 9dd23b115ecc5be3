"""Lists by several labels: which is looked up first, and what is found."""

from __future__ import annotations

import pytest

from benchmarks.service_fill import fill
from service.db import Database, JobFilter, JobStore
from service.db import labels as labels_module
from service.db.labels import rarest_first

JOBS = 40


@pytest.fixture
def filled(db: Database) -> tuple[Database, str]:
    return db, fill(db.url.render_as_string(hide_password=False), JOBS)


def test_the_rarest_label_leads_whatever_its_name(filled: tuple[Database, str]) -> None:
    db, commit = filled
    wanted = {"branch": "b2", "commit": commit, "nightly": "yes", "aaa": "none"}
    with db.read() as session:
        found = rarest_first(session, "default", wanted)
        assert found == [("aaa", "none"), ("branch", "b2"), ("commit", commit), ("nightly", "yes")]
        # none, 20 and 20 jobs: by name it would be last
        found = rarest_first(session, "default", {"nightly": "no", "team": "a", "zzz": "none"})
        assert found == [("zzz", "none"), ("nightly", "no"), ("team", "a")]
        # what another project has does not count
        assert rarest_first(session, "other", wanted) == sorted(wanted.items())


def test_counting_stops_at_a_bound(
    filled: tuple[Database, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    db, commit = filled
    monkeypatch.setattr(labels_module, "_COUNTED", 5)
    with db.read() as session:
        # 20 and 10 jobs look alike: by name then
        found = rarest_first(session, "default", {"nightly": "yes", "commit": commit})
    assert found == [("commit", commit), ("nightly", "yes")]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"team": "b", "branch": "b1"}, [31, 21, 11, 1]),
        ({"team": "b", "nightly": "yes"}, []),
        ({"team": "a", "nightly": "yes", "branch": "b8"}, [38, 28, 18, 8]),
        ({"team": "a", "unheard": "of"}, []),
    ],
)
def test_lists_by_several_labels_are_pages_in_order(
    filled: tuple[Database, str], labels: dict[str, str], expected: list[int]
) -> None:
    db, _ = filled
    seen: list[str] = []
    cursor = None
    while True:
        page = JobStore(db).page("default", JobFilter(labels=labels), limit=3, cursor=cursor)
        seen += [view.job.id for view in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [f"job_bench{i:09}" for i in expected]


def test_a_list_by_a_rare_and_a_common_label(filled: tuple[Database, str]) -> None:
    db, commit = filled
    labels = {"branch": "b3", "commit": commit}
    page = JobStore(db).page("default", JobFilter(labels=labels), limit=3, cursor=None)
    assert [view.job.id for view in page.items] == ["job_bench000000023"]
