"""Commands that work on an MBLT or MXQ: extract-body, export, run, and the package check."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import api
from ..errors import ArgumentError, FormatError, OutputWriteError
from ..paths import check_input, check_outputs, file_entry, write_bytes
from ..progress import JsonlReporter, Reporter

if TYPE_CHECKING:
    from ..frontend.export import ExportedModel
    from ..ir import Array
    from ..package import Mxq

__all__ = ["check_package", "run_export", "run_extract_body", "run_run"]


def run_extract_body(args: Namespace, reporter: Reporter) -> int:
    """Write the NPU body of an MBLT as its own MBLT."""
    path = api.get_body_subgraph(args.mblt, args.output)
    _written(reporter, [file_entry("mblt", path)], {})
    return 0


def run_export(args: Namespace, reporter: Reporter) -> int:
    """Write an MBLT as float ONNX, or an MXQ as ONNX with quantized tensors."""
    from ..frontend.export import export_model, save_model
    from ..package import read_mblt, read_mxq

    path = args.mxq or args.mblt
    check_input(path, "MXQ" if args.mxq else "MBLT")
    check_outputs({"the output": args.output}, [path])
    output = Path(args.output)
    with _scratch(output) as folder, contextlib.ExitStack() as stack:
        if args.mxq:
            model = _qdq_model(stack.enter_context(read_mxq(args.mxq)))
        else:
            mblt = stack.enter_context(read_mblt(args.mblt))
            mblt.verify()
            model = export_model(mblt.graph)
        made = save_model(model, folder / output.name)
        # the weights first: the model must not be there without them
        for file in reversed(made):
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
            file.replace(output.parent / file.name)
    files = [file_entry("onnx", output.parent / file.name) for file in made]
    _written(reporter, files, {})
    return 0


def _qdq_model(mxq: Mxq) -> ExportedModel:
    from ..frontend.export_qdq import export_qdq

    mxq.verify()
    return export_qdq(mxq.body, mxq.inputs, mxq.outputs, head=mxq.head, tail=mxq.tail)


def run_run(args: Namespace, reporter: Reporter) -> int:
    """Run an MXQ or MBLT on samples."""
    path = args.mxq or args.mblt
    check_input(path, "MXQ" if args.mxq else "MBLT")
    for given in args.input:
        if not Path(given).exists():
            raise ArgumentError(
                f"input {given!r} does not exist", details={"option": "--input", "path": given}
            )
    check_outputs({"the output": args.output}, [path, *args.input])
    if args.output and Path(args.output).suffix not in (".npz", ".npy"):
        raise ArgumentError("--output must end in .npz or .npy", details={"path": args.output})
    if args.mblt and args.core_mode != "auto":
        raise ArgumentError("--core-mode belongs to an MXQ")
    names, samples = _infer_mxq(args) if args.mxq else _infer_mblt(args)
    outputs = _stacked(names, samples)
    files = []
    if args.output:
        write_bytes(args.output, _encoded(outputs, Path(args.output)))
        files.append(file_entry("outputs", args.output))
    facts: list[dict[str, Any]] = [
        {
            "name": name,
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "min": float(array.min()) if array.size else None,
            "max": float(array.max()) if array.size else None,
        }
        for name, array in outputs.items()
    ]
    if isinstance(reporter, JsonlReporter):
        reporter.result(files, {"samples": len(samples), "outputs": facts})
        return 0
    for item in facts:
        size = "x".join(map(str, item["shape"])) or "scalar"
        span = "" if item["min"] is None else f", {item['min']:.6g} to {item['max']:.6g}"
        print(f"{item['name']}: {item['dtype']} {size}{span}")
    if args.output:
        print(f"{args.output} written")
    return 0


def check_package(path: str) -> dict[str, Any]:
    """Check an MXQ: hashes, contents, programs, and the same bits whichever way it is run.

    Raises:
        FormatError: a check fails; names it.
    """
    import numpy as np

    from ..calibration import RandomSpec, open_dataset
    from ..package import read_mxq
    from ..runtime.pipeline import Pipeline

    checks = []
    with read_mxq(path) as mxq:
        mxq.verify()
        checks.append(f"every section has its SHA-256 ({len(mxq.container.sections)} sections)")
        body, head, tail = mxq.body, mxq.head, mxq.tail
        checks.append(f"the integer graph loads ({len(body.layers)} layers)")
        specs = _specs(mxq.manifest)
        sample = open_dataset(RandomSpec(count=1), specs)[0]
        outputs = [p["name"] for p in mxq.manifest["outputs"]]
        results = [
            Pipeline(body, head=head, tail=tail, outputs=outputs, threads=n).run(sample)
            for n in (1, 2)
        ]
        for name in outputs:
            if not np.array_equal(results[0][name], results[1][name], equal_nan=True):
                raise FormatError(
                    f"output {name!r} depends on the number of threads", details={"path": path}
                )
        checks.append("one thread and two give the same bits")
        for scheme in mxq.schemes:
            program = mxq.program(scheme)
            if program is None:
                checks.append(f"it has no program for {scheme}")
                continue
            engine = Pipeline(body, head=head, tail=tail, outputs=outputs, program=program)
            made = engine.run(sample)
            for name in outputs:
                if not np.array_equal(results[0][name], made[name], equal_nan=True):
                    raise FormatError(
                        f"output {name!r} of the program {scheme!r} is not the integer graph's",
                        details={"path": path, "section": f"programs/{scheme}.json"},
                    )
            count = sum(map(len, program.streams))
            checks.append(
                f"the program {scheme} is sound and gives the graph's bits ({count} instructions)"
            )
        return {"device": mxq.device, "schemes": list(mxq.schemes), "checks": checks}


# -- helpers ------------------------------------------------------------------------------


def _infer_mxq(args: Namespace) -> tuple[list[str], list[Mapping[str, Array]]]:
    from ..calibration import open_dataset
    from ..runtime import Accelerator, CoreMode, Model, ModelConfig

    config = ModelConfig(core_mode=CoreMode(args.core_mode), threads=args.threads)
    with Model(args.mxq, config) as model:
        model.launch(Accelerator(model.device))
        names = [port.name for port in model.outputs]
        rules = model.manifest["config"].get("preprocessing")
        dataset = open_dataset(args.input, _specs(model.manifest), rules)
        found: list[Mapping[str, Array]] = [
            dict(zip(names, model.infer_chw(sample), strict=True)) for sample in dataset
        ]
    return names, found


def _infer_mblt(args: Namespace) -> tuple[list[str], list[Mapping[str, Array]]]:
    from ..calibration import open_dataset, specs_of_graph
    from ..package import read_mblt
    from ..runtime.float_engine import FloatEngine

    with read_mblt(args.mblt) as opened:
        opened.verify()
        graph = opened.graph
        dataset = open_dataset(args.input, specs_of_graph(graph))
        engine = FloatEngine(graph, threads=args.threads or 1)
        return list(graph.outputs), [engine.run(sample) for sample in dataset]


def _specs(manifest: Mapping[str, Any]) -> list[Any]:
    """Return the input specs that a package's manifest tells: the model's own, also where the
    device's interface is made of integers."""
    from ..calibration import InputSpec, infer_layout
    from ..ir import DType

    channels = int(manifest["config"].get("imageChannels") or 0) or None
    specs = []
    for port in manifest["mblt"]["inputs"]:
        size = tuple(int(d) for d in port["shape"])
        # a layout in the manifest is the device's channel-last one: the model's own is NCHW
        known = port.get("layout") is not None and len(size) == 4
        layout = "NCHW" if known else infer_layout(size, channels)
        # samples are real numbers; the runtime puts them on the grid of an integer interface
        dtype = DType.FLOAT32 if port.get("quant") is not None else DType(port["dtype"])
        specs.append(InputSpec(port["name"], size, dtype, layout, channels))
    return specs


def _stacked(names: Sequence[str], samples: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Join the samples' outputs: along the batch where it is one, else along a new axis."""
    import numpy as np

    joined = {}
    for name in names:
        arrays = [np.asarray(sample[name]) for sample in samples]
        batched = arrays[0].ndim >= 1 and arrays[0].shape[0] == 1
        joined[name] = np.concatenate(arrays) if batched else np.stack(arrays)
    return joined


def _encoded(outputs: Mapping[str, Array], path: Path) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    if path.suffix == ".npz":
        np.savez(buffer, **outputs)  # type: ignore[arg-type]
    elif len(outputs) == 1:
        np.save(buffer, next(iter(outputs.values())), allow_pickle=False)
    else:
        raise ArgumentError(
            f"the model has {len(outputs)} outputs; --output must end in .npz",
            details={"path": os.fspath(path), "outputs": list(outputs)},
        )
    return buffer.getvalue()


@contextlib.contextmanager
def _scratch(output: Path) -> Iterator[Path]:
    """Give a folder beside the output, removed in every case; errors there are the output's."""
    folder: Path | None = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name[:100]}.", dir=output.parent))
        yield folder
    except OSError as exc:
        raise OutputWriteError(
            f"cannot write {output}: {exc.strerror or exc}",
            details={"path": os.fspath(output), "errno": exc.errno},
            hint="choose an existing, writable folder with enough free space",
        ) from exc
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _written(reporter: Reporter, files: list[dict[str, Any]], summary: Mapping[str, Any]) -> None:
    if isinstance(reporter, JsonlReporter):
        reporter.result(files, summary)
        return
    for entry in files:
        print(f"{entry['kind']:<11}{entry['path']}  {entry['size']:,} bytes")
