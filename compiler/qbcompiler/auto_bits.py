"""``bit.auto``: measure, choose, check; and put what was chosen into the configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .config import CompileConfig
from .errors import QuantizationError
from .options import Plan

if TYPE_CHECKING:
    from .calibration import Dataset
    from .ir import Array, Graph, IntGraph
    from .partition import PartitionedGraph
    from .quantization import AutoBits, Choice, RangeSource, Sensitivity, Unit

__all__ = ["choose_bits"]


def choose_bits(
    plan: Plan, graph: PartitionedGraph, statistics: RangeSource, dataset: Dataset
) -> tuple[Plan, dict[str, Any] | None]:
    """Return the plan with the chosen layers in ``bit.layerOverrides``, and the report on it.

    Bits are chosen on the body's outputs, which is what they decide; a float tail only follows.
    Without ``bit.auto`` the plan comes back as it is, and None.

    Args:
        plan: the request.
        graph: the partitioned float graph, with a body.
        statistics: the calibrated ranges.
        dataset: the calibration samples, inputs of the whole model.
    """
    from .quantization import AutoBits

    wanted = AutoBits.from_config(plan.config)
    if wanted is None:
        return plan, None
    assert graph.body is not None
    search = _Search(plan, graph, graph.body, statistics, dataset, wanted)
    choice, sensitivity, share = search.run()
    config = _with_bits(plan.config, choice.raised())
    plan.reporter.info(
        f"bit.auto: {len(choice.raised())} of {len(choice.units)} candidates at 16 bits,"
        f" {share:.1%} of the multiply-adds, {choice.measured[choice.taken]} dB"
    )
    found = choice.measured[choice.taken]
    if wanted.target_db is not None and found < wanted.target_db:
        plan.reporter.warning(
            f"bit.auto reached {found} dB of {wanted.target_db:g} dB"
            + ("" if wanted.budget is None else f" within a budget of {wanted.budget:g}")
        )
    return (
        plan.with_config(bit=config.bit),
        _report(wanted, choice, sensitivity, share, search.macs, search.samples),
    )


class _Search:
    """One choice of bits."""

    def __init__(
        self,
        plan: Plan,
        graph: PartitionedGraph,
        body: Graph,
        statistics: RangeSource,
        dataset: Dataset,
        wanted: AutoBits,
    ) -> None:
        from .runtime.float_engine import FloatEngine
        from .runtime.pipeline import BodyInputs

        self._plan, self._body, self._statistics, self._wanted = plan, body, statistics, wanted
        self._samples = BodyInputs(graph.head, body.inputs, dataset)
        count = len(dataset)
        self.samples = min(wanted.samples, count)
        self._inputs = [self._samples[i * count // self.samples] for i in range(self.samples)]
        engine = FloatEngine(body, threads=1)
        self._expected = [engine.run(x) for x in self._inputs]
        self.macs: dict[str, int] = {}

    def run(self) -> tuple[Choice, Sensitivity, float]:
        """Return the choice, what it rests on, and the share of multiply-adds that it widens."""
        from .quantization import (
            Choice,
            QuantSettings,
            choose_steps,
            grid_classes,
            list_units,
            measure_sensitivity,
            rounded_values,
            search_steps,
            weighted_layers,
            wide_layers,
            wide_share,
        )

        plan, body = self._plan, self._body
        base = self._build([])
        classes = grid_classes(body, self._statistics, plan.config)
        sensitivity = measure_sensitivity(
            body,
            base,
            self._inputs,
            activations=rounded_values(body, classes),
            weights=weighted_layers(base),
            threads=plan.threads,
            progress=plan.reporter.step("quantize"),
        )
        settings = QuantSettings.from_config(plan.config).for_graph(body)
        units, self.macs = list_units(body, settings, classes, sensitivity)
        units = self._served(units)
        macs = list(self.macs.values())
        steps = choose_steps(units, macs, self._wanted, wide=wide_layers(base))
        choice = Choice(units, steps)
        choice.taken = search_steps(
            choice,
            self._wanted.aim_db,
            lambda count: self._sqnr(self._build(choice.raised(count)) if count else base),
        )
        final = self._quantize(choice.raised())
        return choice, sensitivity, wide_share(final, self.macs)

    def _quantize(self, raised: Sequence[Unit]) -> IntGraph:
        from .quantization import quantize

        config = _with_bits(self._plan.config, raised)
        return quantize(self._body, self._statistics, config, self._plan.device)

    def _build(self, raised: Sequence[Unit]) -> IntGraph:
        """Return the integer graph with the weights that the build will have, not its biases.

        Correcting biases takes far longer than all else, and only adds to what is reached here.
        """
        from .quantization import WeightMethods, improve_weights

        int_graph = self._quantize(raised)
        methods = WeightMethods.from_config(self._plan.config)
        if methods is not None:
            improve_weights(
                self._body, int_graph, self._samples, methods, threads=self._plan.threads
            )
        return int_graph

    def _served(self, units: list[Unit]) -> list[Unit]:
        """Leave out what an operator does not take with 16 bits."""
        while units:
            try:
                self._quantize(units)
            except QuantizationError as exc:
                layer = exc.details.get("layer")
                if layer is None or not self._body.has_node(layer):
                    raise
                node = self._body.node(layer)
                makers = [self._body.producer(n) for n in node.inputs if n]
                near = {layer, *node.inputs, *(m.name for m in makers if m is not None)}
                kept = [u for u in units if not near.intersection(u.names)]
                if len(kept) == len(units):
                    raise
                units = kept
            else:
                break
        return units

    def _sqnr(self, int_graph: IntGraph) -> float:
        """Return the SQNR of the worst output."""
        from .quantization import Difference
        from .runtime import IntegerEngine

        engine = IntegerEngine(int_graph, self._plan.threads)
        floats = [n for n in self._body.outputs if self._body.values[n].type.dtype.is_float]
        found = {n: Difference() for n in floats}
        for inputs, expected in zip(self._inputs, self._expected, strict=True):
            got: Mapping[str, Array] = engine.run(inputs)
            for name, difference in found.items():
                difference.add(expected[name], got[name])
        return min((d.sqnr_db for d in found.values()), default=0.0)


def _with_bits(config: CompileConfig, raised: Sequence[Unit]) -> CompileConfig:
    """Return the configuration with 16 bits for ``raised``, and nothing left to choose."""
    old = config.bit.layer_overrides
    added: dict[str, dict[str, None]] = {
        "activation": dict.fromkeys(old.activation_16bits),
        "weight": dict.fromkeys(old.weight_16bits),
    }
    for unit in raised:
        added[unit.kind].update(dict.fromkeys(unit.names))
    overrides = old.model_copy(
        update={
            "activation_16bits": list(added["activation"]),
            "weight_16bits": list(added["weight"]),
        }
    )
    update = {"layer_overrides": overrides, "auto": type(config.bit).Auto()}
    return config.model_copy(update={"bit": config.bit.model_copy(update=update)})


def _report(
    wanted: AutoBits,
    choice: Choice,
    sensitivity: Sensitivity,
    share: float,
    macs: Mapping[str, int],
    samples: int,
) -> dict[str, Any]:
    every = max(1, sum(macs.values()))
    raised = {id(u) for u in choice.raised()}
    layers = list(macs)
    rows = [
        {
            "kind": unit.kind,
            "name": unit.name,
            "sqnr_db": _decibels(float(unit.noise.max(initial=0.0))),
            "share": round(sum(macs[layers[i]] for i in unit.readers) / every, 6),
            "bits": 16 if id(unit) in raised else 8,
        }
        for unit in choice.units
    ]
    return {
        "target_sqnr": wanted.target_db,
        "budget": wanted.budget,
        "samples": samples,
        "outputs": list(sensitivity.outputs),
        "sqnr_db": {"before": choice.measured.get(0), "after": choice.measured[choice.taken]},
        "share": round(share, 6),
        "measured": [{"steps": k, "sqnr_db": choice.measured[k]} for k in sorted(choice.measured)],
        "steps": [
            {
                "raises": [choice.units[i].name for i in step.units],
                "predicted_db": step.predicted_db,
                "share": round(step.share, 6),
                "taken": index < choice.taken,
            }
            for index, step in enumerate(choice.steps)
        ],
        "sensitivity": sorted(rows, key=lambda row: row["sqnr_db"]),
    }


def _decibels(noise: float) -> float:
    return round(-10.0 * math.log10(max(noise, 1e-20)), 2)
