"""Doubts about samples that are no errors, gathered over the data set."""

from __future__ import annotations

import threading

__all__ = ["Doubts"]


class Doubts:
    """Counts doubts by what they say; the text does not depend on the order of reading."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notes: list[str] = []
        self._samples: dict[str, dict[int, str]] = {}

    def note(self, text: str) -> None:
        """Add a doubt about the whole data set."""
        with self._lock:
            if text not in self._notes:
                self._notes.append(text)

    def add(self, text: str, index: int, sample: str) -> None:
        """Add a doubt about one sample."""
        with self._lock:
            self._samples.setdefault(text, {})[index] = sample

    def lines(self) -> list[str]:
        """Return one line for each doubt, sample counts and the first sample's name included."""
        with self._lock:
            lines = list(self._notes)
            for text in sorted(self._samples):
                samples = self._samples[text]
                first = samples[min(samples)]
                count = "1 sample" if len(samples) == 1 else f"{len(samples)} samples"
                lines.append(f"{text} ({count}, first {first!r})")
            return lines
