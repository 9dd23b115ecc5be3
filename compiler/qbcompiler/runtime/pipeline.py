"""A whole package as one function: CPU head, integer body, CPU tail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..errors import ArgumentError
from ..ir import Array, Graph, IntGraph
from ..ir.program import Program
from ..ops import Registry
from .integer_engine import IntegerEngine, Visit, to_real

__all__ = ["BodyInputs", "Inputs", "Pipeline"]


class Pipeline:
    """Runs head and tail in floating point around the integer body.

    Tensors pass by name; the body's outputs are real values by the time the tail reads them.

    Args:
        body: the integer graph.
        head, tail: float graphs, or None.
        outputs: the whole model's outputs, in order.
        threads: threads for one layer.
        program: the body's program to execute; the integer graph by default.
        registry: operators; the built-in ones by default.
    """

    def __init__(
        self,
        body: IntGraph,
        *,
        head: Graph | None = None,
        tail: Graph | None = None,
        outputs: Sequence[str] | None = None,
        threads: int = 1,
        program: Program | None = None,
        registry: Registry | None = None,
    ) -> None:
        if program is None:
            self.body = IntegerEngine(body, threads, registry=registry)
        else:
            from .program_engine import ProgramEngine

            self.body = ProgramEngine(body, program, threads, registry=registry)
        self.outputs = list(body.outputs if outputs is None else outputs)
        self._head_inputs = list(head.inputs) if head is not None else []
        self._tail_inputs = list(tail.inputs) if tail is not None else []
        self._head = self._tail = None
        if head is not None or tail is not None:
            from .float_engine import FloatEngine

            if head is not None:
                self._head = FloatEngine(head, threads=threads, registry=registry)
            if tail is not None:
                self._tail = FloatEngine(tail, threads=threads, registry=registry)

    def before_body(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return ``inputs`` and what the head makes of them, by name."""
        known = dict(inputs)
        if self._head is not None:
            known.update(self._head.run(_pick(known, self._head_inputs)))
        return known

    def run(
        self,
        inputs: Mapping[str, Array],
        *,
        integers: bool = False,
        visit: Visit | None = None,
    ) -> dict[str, Array]:
        """Execute the model once.

        Args:
            inputs: every model input by name, in logical shape.
            integers: give those outputs that the body makes as integers.
            visit: as for :meth:`IntegerEngine.run`.
        """
        known = self.before_body(inputs)
        raw = self.body.run(_pick(known, self.body.graph.inputs), integers=True, visit=visit)
        values = self.body.graph.values
        known.update((n, to_real(q, values[n])) for n, q in raw.items())
        if self._tail is not None:
            known.update(self._tail.run(_pick(known, self._tail_inputs)))
        if integers:
            known.update(raw)
        return _pick(known, self.outputs)


class Inputs(Protocol):
    """Model inputs by name, made when asked for."""

    def __len__(self) -> int:
        """Return how many samples there are."""
        ...

    def __getitem__(self, index: int, /) -> Mapping[str, Array]:
        """Return one sample."""
        ...


class BodyInputs:
    """What the body reads for each sample of the whole model's inputs.

    Args:
        head: the float graph before the body, or None.
        names: the body's inputs.
        samples: inputs of the model.
    """

    def __init__(self, head: Graph | None, names: Sequence[str], samples: Inputs) -> None:
        self._names, self._samples = list(names), samples
        self._inputs = list(head.inputs) if head is not None else []
        self._head = None
        if head is not None:
            from .float_engine import FloatEngine

            self._head = FloatEngine(head, threads=1)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int, /) -> dict[str, Array]:
        known = dict(self._samples[index])
        if self._head is not None:
            known.update(self._head.run(_pick(known, self._inputs)))
        return _pick(known, self._names)


def _pick(known: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    for name in names:
        if name not in known:
            raise ArgumentError(
                f"input {name!r} is missing",
                details={"expected": list(names), "got": sorted(known)},
            )
    return {n: known[n] for n in names}
