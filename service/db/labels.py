"""In which order several labels are looked up."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from .tables import JobLabelRow

__all__ = ["rarest_first"]

_COUNTED = 1000


def rarest_first(
    session: Session, project: str, labels: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return labels by how many jobs of the project have them, the fewest first.

    A list by several labels walks the jobs of the first one and asks for the others, so that the
    first one decides what it costs. Neither database knows: SQLite keeps no statistics here,
    and Postgres none of a name and a value together. Labels are counted in their index, up to
    a bound; among common ones the order hardly matters.
    """
    found = sorted(labels.items())
    if len(found) < 2:
        return found

    def count(name: str, value: str) -> int:
        some = (
            select(JobLabelRow.job_id)
            .where(
                JobLabelRow.project == project,
                JobLabelRow.name == name,
                JobLabelRow.value == value,
            )
            .limit(_COUNTED)
            .subquery()
        )
        return session.execute(select(func.count()).select_from(some)).scalar_one()

    return [label for _, label in sorted((count(*label), label) for label in found)]
