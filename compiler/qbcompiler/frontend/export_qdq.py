"""An integer graph as ONNX: float layers between ``QuantizeLinear`` and ``DequantizeLinear``.

Every tensor of the integer graph is there as the integers that the runtime has, made by a
``QuantizeLinear`` on the tensor's grid and read through a ``DequantizeLinear``. Weights and biases
stay integers with a scale for each output channel. Between them stands the layer's float form
(:meth:`~qbcompiler.ops.OpSpec.real_form`). Layers of the CPU before and after the body are written
as they are.

A tie or a last-bit error of float32 moves an integer by one step, and a deep network can turn one
step in an early layer into many at its end. So where a layer rounds by its own multiplier and
shift, a function of the model does that in float64, which is exact: ``Requantize`` after a sum of
products, ``Affine`` for sums of scaled activations, ``Normalize`` before the map of a
normalization. They give real numbers on the output's grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..errors import InternalError
from ..ir import (
    Array,
    DType,
    Graph,
    IntGraph,
    IntLayer,
    IntValue,
    Node,
    QuantParams,
    TensorType,
)
from ..ops import (
    Affine,
    NormalForm,
    Quantized,
    QuantRule,
    RealForm,
    Registry,
    TableForm,
    default_registry,
)
from .export import PROTOBUF_LIMIT, Emitter, ExportedModel, value_info, write_node
from .qdq_functions import DOMAIN, affine_name, functions

__all__ = ["export_qdq"]


def export_qdq(
    body: IntGraph,
    inputs: Mapping[str, TensorType],
    outputs: Mapping[str, TensorType],
    *,
    head: Graph | None = None,
    tail: Graph | None = None,
    registry: Registry | None = None,
) -> ExportedModel:
    """Write a package as one ONNX model.

    Args:
        body: the integer graph.
        inputs, outputs: the package's ports. Where the port of a body's tensor has the tensor's
            own integer type, the integers themselves pass.
        head, tail: float graphs before and after the body.
        registry: operators; the built-in ones by default.

    Returns:
        The model; constants are detached where it would be over protobuf's 2 GB.

    Raises:
        InternalError: a layer cannot be written.
    """
    size = sum(t.nbytes for layer in body.layers for t in layer.tensors.values())
    size += sum(v.type.nbytes for g in (head, tail) if g is not None for v in g.constants())
    writer = _Writer(body, inputs, outputs, registry or default_registry())
    return writer.write(head, tail, detach=size >= PROTOBUF_LIMIT - (64 << 20))


class _Writer:
    """Writes head, body and tail into one graph.

    A tensor of the body has up to three names: its integers, the real numbers that a layer
    makes (before quantization) and those that layers read (after it).
    """

    def __init__(
        self,
        body: IntGraph,
        inputs: Mapping[str, TensorType],
        outputs: Mapping[str, TensorType],
        specs: Registry,
    ) -> None:
        self._body = body
        self._inputs, self._outputs = inputs, outputs
        self._specs = specs
        self._graph = Graph(name=body.name)
        self._reads: dict[str, str] = {}  # what layers of the body read for a value
        self._integers: dict[str, str] = {}
        # what head and tail read for a value whose own name its integers have
        self._floats: dict[str, str] = {}

    def write(self, head: Graph | None, tail: Graph | None, *, detach: bool) -> ExportedModel:
        """Return the model."""
        graph = self._graph
        for part in (head, tail):
            for value in part.values.values() if part is not None else ():
                if value.name not in graph.values:
                    graph.add_value(value.name, value.type, value.data)
        for name, type_ in (*self._inputs.items(), *self._outputs.items()):
            if name not in graph.values:
                graph.add_value(name, type_)
        self._emitter = emitter = Emitter(graph, detach=detach)
        given = [n for n in self._body.inputs if n in self._inputs]
        for name in given:
            self._enter(name)
        self._float_part(head)
        for name in self._body.inputs:
            if name not in self._inputs:
                self._enter(name)
        for layer in self._body.layers:
            self._layer(layer)
        self._float_part(tail)
        for name in self._outputs:
            emitter.use_constant(name)
        model = emitter.model(
            self._body.name,
            [value_info(n, t) for n, t in self._inputs.items()],
            [value_info(n, t) for n, t in self._outputs.items()],
        )
        used = {n.op_type for n in emitter.nodes if n.domain == DOMAIN}
        model.proto.functions.extend(functions(sorted(used)))
        return model

    def _float_part(self, part: Graph | None) -> None:
        for node in part.nodes if part is not None else ():
            names = [self._floats.get(n, n) for n in node.inputs]
            write_node(replace(node, inputs=names), self._graph, self._emitter, self._specs)

    # -- tensors of the body ---------------------------------------------------------------

    def _enter(self, name: str) -> None:
        """Bring an input of the body onto its grid."""
        value = self._body.values[name]
        given = self._inputs.get(name)
        if value.quant is None:
            self._reads[name] = self._integers[name] = name
        elif given is not None and given.dtype is value.type.dtype:
            self._integers[name] = name
            self._dequantize(value)
            self._floats[name] = self._reads[name]
        else:
            source = name
            if self._graph.values[name].type.dtype is not DType.FLOAT32:
                source = self._new(f"{name}_float32", value.type.shape)
                self._emitter.emit("Cast", [name], [source], to=DType.FLOAT32)
            self._quantize(source, value)
            self._dequantize(value)

    def _leave(self, name: str) -> None:
        """Give a tensor of the body to the ports and the tail, under its own name."""
        value, emitter = self._body.values[name], self._emitter
        outside = self._graph.values.get(name)
        if value.quant is not None:
            self._dequantize(value)
        if outside is None:
            return
        port = self._outputs.get(name)
        if port is not None and port.dtype is value.type.dtype:
            emitter.emit("Identity", [self._integers[name]], [name])
            self._floats[name] = self._reads[name]
        elif outside.type.dtype is DType.FLOAT32:
            emitter.emit("Identity", [self._reads[name]], [name])
        else:
            emitter.emit("Cast", [self._reads[name]], [name], to=outside.type.dtype)

    def _quantize(self, source: str, value: IntValue) -> None:
        quant = value.quant
        assert quant is not None
        made = self._new(f"{value.name}_quantized", value.type.shape, value.type.dtype)
        self._integers[value.name] = made
        self._emitter.emit("QuantizeLinear", [source, *self._grid(quant)], [made], axis=quant.axis)

    def _dequantize(self, value: IntValue) -> None:
        quant = value.quant
        assert quant is not None
        made = self._new(f"{value.name}_dequantized", value.type.shape)
        self._reads[value.name] = made
        source = self._integers[value.name]
        self._emitter.emit(
            "DequantizeLinear", [source, *self._grid(quant)], [made], axis=quant.axis
        )

    def _grid(self, quant: QuantParams) -> list[str]:
        """Return the constants of a grid: scale and zero point."""
        scales = np.asarray(quant.scales, dtype=np.float32)
        if quant.axis is None:
            scales = scales.reshape(())
        zero = np.full(scales.shape, quant.zero_point, dtype=quant.dtype.numpy)
        return [self._emitter.const(scales, "scale"), self._emitter.const(zero, "zero_point")]

    def _new(
        self,
        hint: str,
        shape: tuple[int, ...],
        dtype: DType = DType.FLOAT32,
        data: Array | None = None,
    ) -> str:
        """Add a value under a name that nothing has; return the name."""
        name = self._emitter.reserve(self._graph.fresh(hint))
        self._graph.add_value(name, TensorType(dtype, shape), data)
        return name

    # -- layers of the body ----------------------------------------------------------------

    def _layer(self, layer: IntLayer) -> None:
        values = self._body.values
        params = {n: values[n].quant for n in (*layer.inputs, *layer.outputs) if n}
        self._emitter.enter(layer.name)
        try:
            form = self._specs[layer.op].real_form(layer, params)
        except (KeyError, TypeError, ValueError) as exc:
            raise InternalError(
                f"layer {layer.name!r} ({layer.op}) has no float form: {exc}",
                details={"layer": layer.name, "operator": layer.op},
            ) from exc
        if isinstance(form, TableForm):
            self._table(layer, form)
        elif isinstance(form, Affine):
            out = values[layer.outputs[0]]
            self._quantize(self._affine(form, layer, out.type.shape), out)
        elif isinstance(form, NormalForm):
            self._normal(form, layer)
        else:
            self._real(form, layer)
        for name in filter(None, layer.outputs):
            self._leave(name)

    def _real(self, form: RealForm, layer: IntLayer) -> None:
        values = self._body.values
        made = [self._new(f"{n}_real", values[n].type.shape) if n else "" for n in layer.outputs]
        inputs = [self._input(item, layer) for item in form.inputs]
        if form.op == "MatMul":
            inputs = [
                self._unsigned(item) if isinstance(item, str) and item else name
                for item, name in zip(form.inputs, inputs, strict=True)
            ]
        node = Node(layer.name, form.op, inputs, made, form.attrs, layer.source)
        write_node(node, self._graph, self._emitter, self._specs)
        self._emitter.enter(layer.name)
        for name, real in zip(layer.outputs, made, strict=True):
            quant = values[name].quant if name else None
            if quant is None:
                if name:
                    self._reads[name] = self._integers[name] = real
                continue
            if form.rounding is not None:
                ratio = form.rounding.ratio
                unit = np.where(ratio == 0.0, 1.0, ratio * quant.scale)
                numbers = [unit, ratio, np.asarray(quant.scale, dtype=np.float32)]
                names = [self._emitter.const(v, "requantize") for v in numbers]
                rounded = self._emitter.temp(f"{name}_rounded")
                self._emitter.emit("Requantize", [real, *names], [rounded], domain=DOMAIN)
                real = rounded
            elif (
                self._specs[layer.op].rule is QuantRule.RANGE
                and quant.axis is None
                and quant != values[layer.inputs[0]].quant  # else elements only move
            ):
                # keeps ONNX Runtime from putting an integer kernel of its own in the place
                step = self._emitter.const(np.asarray(quant.scale, dtype=np.float64), "step")
                rounded = self._emitter.temp(f"{name}_rounded")
                self._emitter.emit("ToGrid", [real, step], [rounded], domain=DOMAIN)
                real = rounded
            self._quantize(real, values[name])

    def _normal(self, form: NormalForm, layer: IntLayer) -> None:
        """Write a normalization: what it has before its affine map, and the map."""
        out = self._body.values[layer.outputs[0]]
        source = self._body.values[form.input].quant
        assert source is not None
        emitter, wide = self._emitter, np.float64
        numbers = [
            source.scale,
            form.size,
            float(form.centred),
            4.0**form.half,
            form.epsilon,
            2.0 ** (form.half + form.fraction),
        ]
        names = [emitter.const(np.asarray(x, dtype=wide), "normalize") for x in numbers]
        groups = emitter.const(np.asarray([-1, form.size], dtype=np.int64), "groups")
        normal = emitter.temp(f"{layer.name}_normal")
        args = [self._reads[form.input], names[0], groups, *names[1:]]
        emitter.emit("Normalize", args, [normal], domain=DOMAIN)
        terms = [(normal, 1.0, form.multiplier)]
        made = self._affine_map(layer, terms, form.constant, form.shift, out.type.shape)
        self._quantize(made, out)

    def _affine(self, form: Affine, layer: IntLayer, shape: tuple[int, ...]) -> str:
        """Write an affine map; return the name of its result, real numbers on a grid."""
        terms = []
        for name, multiplier in zip(form.inputs, form.multipliers, strict=True):
            source = self._body.values[name].quant
            assert source is not None
            terms.append((self._reads[name], source.scale, multiplier))
        return self._affine_map(layer, terms, form.constant, form.shift, shape)

    def _affine_map(
        self,
        layer: IntLayer,
        terms: Sequence[tuple[str, float, Array]],
        constant: Array,
        shift: int,
        shape: tuple[int, ...],
    ) -> str:
        """Write the map of terms, each a name with its unit and its multipliers."""
        out = self._body.values[layer.outputs[0]].quant
        assert out is not None
        args: list[str] = []
        for name, unit, multiplier in terms:
            scale = self._emitter.const(np.asarray(unit, dtype=np.float64), "scale")
            factor = self._emitter.const(np.asarray(multiplier, dtype=np.float64), "multiplier")
            args += [name, scale, factor]
        for number in (
            np.asarray(constant, dtype=np.float64),
            np.asarray(2.0**-shift),
            np.asarray(out.scale, dtype=np.float32),
        ):
            args.append(self._emitter.const(number, "affine"))
        made = self._new(f"{layer.name}_affine", shape)
        self._emitter.emit(affine_name(len(terms)), args, [made], domain=DOMAIN)
        return made

    def _unsigned(self, name: str) -> str:
        """Return another name of a tensor's real numbers, made from 8-bit unsigned integers.

        Where both factors of a product are signed, ONNX Runtime takes an integer kernel that
        saturates on x86 processors without VNNI.
        """
        quant = self._body.values[name].quant
        assert quant is not None
        if quant.bits > 8:  # there is no such kernel for 16 bits
            return self._reads[name]
        scale, read = np.asarray(quant.scale, dtype=np.float32), self._emitter.temp("unsigned")
        zero = np.asarray(quant.zero_point + 128, dtype=np.uint8)
        grid = [self._emitter.const(scale, "scale"), self._emitter.const(zero, "zero_point")]
        made = self._emitter.temp("unsigned")
        self._emitter.emit("QuantizeLinear", [self._reads[name], *grid], [made])
        self._emitter.emit("DequantizeLinear", [made, *grid], [read])
        return read

    def _input(self, item: str | Affine | Array | Quantized, layer: IntLayer) -> str:
        if isinstance(item, str):
            return self._reads[item] if item else ""
        if isinstance(item, Affine):
            return self._affine(item, layer, self._body.values[item.inputs[0]].type.shape)
        if not isinstance(item, Quantized):
            data = np.ascontiguousarray(item).reshape(item.shape)  # keeps rank 0
            return self._new(f"{layer.name}_constant", item.shape, DType.of(item.dtype), data)
        role = "bias" if item.data.ndim == 1 else "weight"
        hint, data = f"{layer.name}_{role}", item.data
        if data.dtype == np.int64 or (data.ndim > 2 and layer.op == "MatMul"):
            # ONNX has no scale for int64 (a bias over 16-bit operands), and ONNX Runtime's integer
            # products have none for each channel of several matrices
            return self._new(hint, data.shape, data=data.astype(np.float32) * item.scales)
        name = self._new(hint, data.shape)
        grid = [self._emitter.const(item.scales, "scale")]
        if layer.op == "MatMul" and data.dtype == np.int8:
            # unsigned for the reason that _unsigned gives
            data = (data.astype(np.int16) + 128).astype(np.uint8)
            zero = np.full(item.scales.shape, 128, dtype=np.uint8)
            grid.append(self._emitter.const(zero, "zero_point"))
        source = self._emitter.const(data, f"{hint}_quantized")
        self._emitter.emit("DequantizeLinear", [source, *grid], [name], axis=item.axis)
        return name

    def _table(self, layer: IntLayer, form: TableForm) -> None:
        """Write a table: the output's integers, gathered by the input's."""
        emitter = self._emitter
        (source,), (out,) = layer.inputs, layer.outputs
        type_ = self._body.values[out].type
        wide, index = emitter.temp("wide"), emitter.temp("index")
        first = np.asarray(form.row, dtype=np.int32) * 256 + 128
        emitter.emit("Cast", [self._integers[source]], [wide], to=DType.INT32)
        emitter.emit("Add", [wide, emitter.const(first, "row")], [index])
        made = self._new(f"{out}_quantized", type_.shape, type_.dtype)
        self._integers[out] = made
        table = emitter.const(np.ascontiguousarray(form.table).reshape(-1), "table")
        emitter.emit("Gather", [table, index], [made], axis=0)
