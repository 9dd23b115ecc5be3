"""The user's view of an MXQ: open, launch, infer, dispose."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from ..errors import ArgumentError, DeviceSchemeError, FormatError, InternalError
from ..ir import Array
from ..package import Mxq, read_mxq
from ..package.json_io import Fields
from .accelerator import Accelerator, CoreMode, Executor, ModelConfig
from .pipeline import Pipeline
from .ports import Port, read_ports

__all__ = ["Model"]

Inputs = Array | Sequence[Array] | Mapping[str, Array]


class Model:
    """An MXQ, run by the reference runtime.

    ::

        model = Model("model.mxq", ModelConfig(core_mode=CoreMode.SINGLE))
        model.launch(Accelerator("regulus-rb"))
        outputs = model.infer(image)
        model.dispose()

    Opening reads the manifest; launching loads the weights and checks their hashes. Calls of
    :meth:`infer` may come from several threads.

    Args:
        path: the file.
        config: core mode and threads.

    Raises:
        ArgumentError: the file cannot be opened.
        FormatError: it is not an MXQ, is damaged, or of a newer major version.
        DeviceSchemeError: the core mode is not one that the package was built for.
    """

    def __init__(self, path: str | os.PathLike[str], config: ModelConfig | None = None) -> None:
        self.config = config or ModelConfig()
        self._mxq: Mxq | None = read_mxq(path)
        self._pipeline: Pipeline | None = None
        try:
            self.device = self._mxq.device
            self.schemes = self._mxq.schemes
            self._integers = self._mxq.integer_io
            self.core_mode = _choose_mode(self.config.core_mode, self.schemes, str(path))
            fields = Fields(self._mxq.manifest, "manifest.json")
            self.inputs: tuple[Port, ...] = read_ports(fields, "inputs")
            self.outputs: tuple[Port, ...] = read_ports(fields, "outputs")
        except BaseException:
            self.dispose()
            raise

    @property
    def manifest(self) -> dict[str, Any]:
        """The package's manifest.

        Raises:
            ArgumentError: the model was disposed of.
        """
        return self._open().manifest

    def launch(self, accelerator: Accelerator) -> None:
        """Load the package onto ``accelerator``.

        Raises:
            DeviceSchemeError: the package was built for another device.
            FormatError: a section is damaged, or the package's parts do not fit each other.
        """
        mxq = self._open()
        if accelerator.device != mxq.device:
            raise DeviceSchemeError(
                f"this package was built for {mxq.device}, not for {accelerator.device}",
                details={"expected": mxq.device, "got": accelerator.device},
                hint=f"use Accelerator({mxq.device!r}), or compile for {accelerator.device}",
            )
        program = None
        if self.config.executor is Executor.PROGRAM:
            program = mxq.program(self.core_mode.value)
        try:
            self._pipeline = Pipeline(
                mxq.body,
                head=mxq.head,
                tail=mxq.tail,
                outputs=[p.name for p in self.outputs],
                threads=self.config.thread_count,
                program=program,
            )
        except InternalError as exc:
            raise self._unsound(exc) from exc

    def infer(self, inputs: Inputs) -> list[Array]:
        """Run the model on channel-last inputs; outputs are channel-last too.

        Args:
            inputs: one array, a list in the order of :attr:`inputs`, or arrays by input name.
                An image input takes [H, W, C] or [N, H, W, C]; any other input its own shape,
                or that shape without a batch dimension of one. A package of batch one takes a
                larger batch too and runs it sample by sample.

        Returns:
            One array for each output, in order; integers where the device's interface is made
            of integers (``model.outputs[i].to_real`` turns them into real values).

        Raises:
            ArgumentError: a shape, an element type or the number of inputs is wrong, or the
                model is not launched.
            FormatError: the package's parts do not fit each other.
        """
        return self._infer(inputs, channel_last=True)

    def infer_chw(self, inputs: Inputs) -> list[Array]:
        """Run the model on channel-first inputs, [C, H, W] or [N, C, H, W]; see :meth:`infer`."""
        return self._infer(inputs, channel_last=False)

    def _infer(self, inputs: Inputs, *, channel_last: bool) -> list[Array]:
        if self._pipeline is None:
            raise ArgumentError(
                "the model is not launched",
                hint="call launch(Accelerator(...)) first, and not after dispose()",
            )
        named = self._name(inputs)
        batches: dict[str, Array] = {}
        count: int | None = None
        for port in self.inputs:
            batch = port.accept(named[port.name], channel_last=channel_last)
            if count is not None and len(batch) != count:
                raise ArgumentError(
                    f"input {port.name!r} has a batch of {len(batch)}, another input {count}",
                    details={"input": port.name, "expected": count, "got": len(batch)},
                )
            count = len(batch)
            batches[port.name] = batch
        try:
            results = [
                self._pipeline.run({n: b[i] for n, b in batches.items()}, integers=self._integers)
                for i in range(count or 1)
            ]
        except InternalError as exc:
            raise self._unsound(exc) from exc
        return [self._collect(port, results, channel_last) for port in self.outputs]

    def _unsound(self, exc: InternalError) -> FormatError:
        """Return the error of a package whose parts do not fit each other: no hash shows that."""
        path = self._open().container.path
        return FormatError(
            f"{path} cannot be executed: {exc.message}",
            details={**exc.details, "path": str(path)},
            hint="compile the model again; if it stays so, the compiler is at fault",
        )

    def _collect(
        self, port: Port, results: Sequence[Mapping[str, Array]], channel_last: bool
    ) -> Array:
        arrays = [r[port.name] for r in results]
        if len(arrays) > 1 and port.batched:
            whole = np.concatenate(arrays, axis=0)
        elif len(arrays) > 1:
            whole = np.stack(arrays)
        else:
            whole = arrays[0]
        return port.to_channel_last(whole) if channel_last else whole

    def _name(self, inputs: Inputs) -> dict[str, Array]:
        names = [p.name for p in self.inputs]
        if isinstance(inputs, Mapping):
            unknown = [n for n in inputs if n not in names]
            missing = [n for n in names if n not in inputs]
            if unknown or missing:
                raise ArgumentError(
                    "the inputs are not those of the model",
                    details={"expected": names, "got": list(inputs)},
                    hint=f"give {', '.join(names)}",
                )
            return {n: np.asarray(inputs[n]) for n in names}
        arrays = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        if len(arrays) != len(names):
            raise ArgumentError(
                f"the model has {len(names)} inputs, got {len(arrays)}",
                details={"expected": names, "got": len(arrays)},
                hint=f"give a list in the order {', '.join(names)}",
            )
        return {n: np.asarray(a) for n, a in zip(names, arrays, strict=True)}

    def dispose(self) -> None:
        """Release the weights and the file; harmless when done twice."""
        self._pipeline = None
        if self._mxq is not None:
            self._mxq.close()
            self._mxq = None

    def _open(self) -> Mxq:
        if self._mxq is None:
            raise ArgumentError("the model was disposed of")
        return self._mxq

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.dispose()


def _choose_mode(wanted: CoreMode, schemes: Sequence[str], path: str) -> CoreMode:
    held = ", ".join(schemes) or "none"
    if wanted is CoreMode.AUTO:
        if len(schemes) != 1:
            raise DeviceSchemeError(
                f"{path} holds several core modes: {held}",
                details={"expected": list(schemes), "got": wanted.value},
                hint="name one, as in ModelConfig(core_mode=CoreMode.SINGLE)",
            )
        wanted = CoreMode(schemes[0]) if schemes[0] in set(CoreMode) else wanted
    if wanted.value not in schemes:
        raise DeviceSchemeError(
            f"{path} was built for {held}, not for core mode {wanted.value}",
            details={"expected": list(schemes), "got": wanted.value},
            hint=f"use one of {held}, or compile with --inference-scheme {wanted.value}",
        )
    return wanted
