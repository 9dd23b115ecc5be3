"""The main job, end to end: compile a real model on a compile server, over HTTP, and check it.

The model is PP-OCRv4's text-direction classifier; the calibration data are crops of a photographed
page (``prepare_ocr_calibration.py``). Without ``--server`` an embedded server is started for the
time of the run. The exit code is not zero when any step fails, or when the compiled model reads
the held-out crops worse than the bounds below allow.

    python examples/demo.py [--server http://127.0.0.1:8000] [--output build/demo]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
from embedded_server import embedded_server
from numpy.typing import NDArray
from prepare_ocr_calibration import write

from qbcompiler.runtime import Accelerator, CoreMode, Model, ModelConfig

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "ppocrv4_cls.onnx"
DEVICE, SCHEME, PRESET = "regulus-rb", "single", "classification"
INPUT_SHAPES = {"x": [1, 3, 48, 192]}
TERMINAL = {"succeeded", "failed", "cancelled", "timed_out"}

# what the compiled model must reach on the held-out crops
MIN_SQNR_DB, MIN_COSINE, MIN_AGREEMENT = 15.0, 0.99, 0.95

Float32 = NDArray[np.float32]


class DemoError(Exception):
    """A step failed; the message says which and why."""


class Steps:
    """Seconds of each step, and a line on the terminal as each begins."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def step(self, name: str, text: str) -> Iterator[None]:
        """Time a step."""
        say(f"==> {text}")
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    print(text, flush=True)


def checked(response: httpx.Response) -> httpx.Response:
    """Return the response.

    Raises:
        DemoError: it is a problem; the message is the server's.
    """
    if response.is_error:
        response.read()
        raise DemoError(f"{response.request.method} {response.request.url}: {response.text}")
    return response


def zipped(paths: list[Path]) -> bytes:
    """Return a ZIP archive of the files, without folders."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            archive.write(path, path.name)
    return buffer.getvalue()


def upload(client: httpx.Client, calibration: list[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Upload the model and the calibration samples; return what the server says of them."""
    with MODEL.open("rb") as file:
        model = checked(client.post("/v1/models", files={"file": (MODEL.name, file)})).json()
    inputs = ", ".join(f"{p['name']} {p['shape']}" for p in model["inputs"])
    say(f"    {model['id']}  {model['size']:,} bytes  SHA-256 {model['digest']}  input {inputs}")
    files = {"file": ("ocr_lines.zip", zipped(calibration), "application/zip")}
    samples = checked(client.post("/v1/calibrations", files=files)).json()
    say(f"    {samples['id']}  {samples['sample_count']} samples  digest {samples['digest']}")
    return model, samples


def server_events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and data of each server-sent event."""
    name, data = "message", ""
    for line in lines:
        if line.startswith("event:"):
            name = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            data += line.removeprefix("data:").strip()
        elif not line:
            if data:
                yield name, json.loads(data)
            name, data = "message", ""


def follow(client: httpx.Client, job_id: str) -> None:
    """Show a job's events until it has ended."""
    tty = sys.stdout.isatty()
    phase = ""
    with client.stream("GET", f"/v1/jobs/{job_id}/events", timeout=None) as response:
        for name, data in server_events(checked(response).iter_lines()):
            if name == "progress":
                phase = str(data.get("phase") or phase)
                show_progress(phase, int(data["current"]), data.get("total"), tty=tty)
            elif name == "phase":
                phase = str(data["phase"])
                say(f"    {phase}")
            elif name == "state":
                say(f"    job is {data['state']}")
                if data["state"] in TERMINAL:
                    return
    raise DemoError("the event stream ended before the job did")


def show_progress(phase: str, current: int, total: int | None, *, tty: bool) -> None:
    """Show a bar on a terminal, a line for each quarter in a pipe."""
    if not total or not current:
        return
    if tty:
        done = 40 * current // total
        end = "\n" if current >= total else ""
        bar = "#" * done + "." * (40 - done)
        print(f"\r    {phase:<10} [{bar}] {current}/{total}", end=end, flush=True)
    elif 4 * current // total > 4 * (current - 1) // total:
        say(f"    {phase:<10} {100 * current // total:3} %  ({current} of {total})")


def download(client: httpx.Client, artifact: dict[str, Any], target: Path) -> str:
    """Fetch an artifact through a signed link, as someone without a token would; return the link.

    Raises:
        DemoError: the bytes are not those that the server has recorded.
    """
    answer = client.post(f"/v1/artifacts/{artifact['id']}/links", json={"expires_in": 3600})
    link = str(checked(answer).json()["url"])
    digest, size = hashlib.sha256(), 0
    part = target.with_name(target.name + ".part")
    with (
        httpx.stream("GET", link, follow_redirects=True, timeout=60.0) as response,
        part.open("wb") as file,
    ):
        for chunk in checked(response).iter_bytes():
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if (digest.hexdigest(), size) != (artifact["sha256"], artifact["size"]):
        raise DemoError(f"{link} gave {size} bytes of SHA-256 {digest.hexdigest()}")
    part.replace(target)
    return link


def evaluate(mxq: Path, held_out: list[Path], labels: list[int]) -> dict[str, float]:
    """Compare the integer model with the source model, run by ONNX Runtime, on held-out crops."""
    images: Float32 = np.stack([np.load(path) for path in held_out])
    session = onnxruntime.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    nchw = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    want = np.asarray(session.run(None, {"x": nchw})[0], dtype=np.float64)

    with Model(str(mxq), ModelConfig(core_mode=CoreMode.SINGLE)) as model:
        model.launch(Accelerator(DEVICE))
        (outputs,) = model.infer(images)
    got = np.asarray(outputs, dtype=np.float64)
    if got.shape != want.shape:
        raise DemoError(f"the MXQ's output has shape {got.shape}, the model's {want.shape}")

    noise = float(np.square(want - got).sum())
    signal = float(np.square(want).sum())
    norms = float(np.linalg.norm(want) * np.linalg.norm(got))
    truth = np.array(labels)
    return {
        "sqnr_db": 10 * float(np.log10(signal / noise)) if noise else float("inf"),
        "cosine": float((want * got).sum()) / norms if norms else 0.0,
        "agreement": float((want.argmax(axis=1) == got.argmax(axis=1)).mean()),
        "float_accuracy": float((want.argmax(axis=1) == truth).mean()),
        "integer_accuracy": float((got.argmax(axis=1) == truth).mean()),
    }


def run(client: httpx.Client, output: Path) -> None:
    """Do the whole job on the server that ``client`` speaks to.

    Raises:
        DemoError: a step failed or the result is not good enough.
    """
    steps = Steps()
    with steps.step("prepare", "cutting text lines out of a photographed page"):
        calibration, held_out = write(output / "data")
        labels: dict[str, int] = json.loads((output / "data" / "held_out.json").read_text())
        say(f"    {len(calibration)} calibration crops, {len(held_out)} held out")
    with steps.step("upload", "uploading model and calibration data"):
        model, samples = upload(client, calibration)
    with steps.step("job", f"compiling for {DEVICE}"):
        request = {
            "type": "compile",
            "model_id": model["id"],
            "calibration_id": samples["id"],
            "target_device": DEVICE,
            "inference_scheme": SCHEME,
            "config_preset": PRESET,
            "compile_config": {"inputShapeDict": INPUT_SHAPES},
            "labels": {"made_by": "demo"},
        }
        job = checked(client.post("/v1/jobs", json=request)).json()
        say(f"    {job['id']}  cache {job['cache']}")
        follow(client, job["id"])
        job = checked(client.get(f"/v1/jobs/{job['id']}")).json()
        if job["state"] != "succeeded":
            raise DemoError(f"the job is {job['state']}: {json.dumps(job['error'])}")
    with steps.step("download", "downloading the MXQ through a signed link"):
        artifact = next(a for a in job["artifacts"] if a["kind"] == "mxq")
        target = output / "model.mxq"
        link = download(client, artifact, target)
    with steps.step("evaluate", "running the MXQ in the reference runtime on held-out crops"):
        result = evaluate(target, held_out, [labels[p.name] for p in held_out])
    report(job, artifact, link, target, result, steps.seconds, len(held_out))
    fell_short = [
        f"{name} {result[name]:.4f} is below {least}"
        for name, least in (
            ("sqnr_db", MIN_SQNR_DB),
            ("cosine", MIN_COSINE),
            ("agreement", MIN_AGREEMENT),
        )
        if not result[name] >= least
    ]
    if fell_short:
        raise DemoError("; ".join(fell_short))


def report(
    job: dict[str, Any],
    artifact: dict[str, Any],
    link: str,
    target: Path,
    result: dict[str, float],
    seconds: dict[str, float],
    count: int,
) -> None:
    """Print what was built and how good it is."""
    phases = (job["summary"] or {}).get("phase_seconds", {})
    rows = [
        ("link", link),
        ("file", str(target)),
        ("SHA-256", artifact["sha256"]),
        ("size", f"{artifact['size']:,} bytes"),
        ("device", job["target_device"]),
        ("scheme", job["inference_scheme"]),
        ("preset", job["config_preset"]),
        ("engine", f"{job['engine']} {job['engine_version']}"),
        ("accuracy", f"against the float model in ONNX Runtime, {count} held-out crops:"),
        ("", f"SQNR {result['sqnr_db']:.2f} dB, cosine {result['cosine']:.6f}"),
        ("", f"top-1 agreement {100 * result['agreement']:.1f} %"),
        (
            "",
            f"directions right: float {100 * result['float_accuracy']:.1f} %,"
            f" integer {100 * result['integer_accuracy']:.1f} %",
        ),
        (
            "job seconds",
            f"queued {job['timings']['queue_s']:.2f}, run {job['timings']['run_s']:.2f}",
        ),
        ("phases", ", ".join(f"{name} {value:.2f}" for name, value in phases.items())),
        ("demo seconds", ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())),
    ]
    say("")
    for name, value in rows:
        say(f"{name:<14}{value}")


@contextlib.contextmanager
def server(address: str | None, output: Path) -> Iterator[str]:
    """Yield the server's address; start one where none is given."""
    if address:
        yield address
        return
    say("==> starting the embedded server")
    with tempfile.TemporaryDirectory(prefix="qbdemo") as folder:
        log = output / "server.log"
        with embedded_server(Path(folder), log) as started:
            say(f"    {started}  (log: {log})")
            yield started


def main() -> int:
    """Run the demo; return 0 when everything went well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", help="use this server instead of starting one")
    parser.add_argument("--token", default=os.environ.get("QB_TOKEN"), help="bearer token")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "demo")
    args = parser.parse_args()
    output: Path = args.output
    output.mkdir(parents=True, exist_ok=True)
    headers = {"Authorization": f"Bearer {args.token}"} if args.token else {}
    try:
        with (
            server(args.server, output) as address,
            httpx.Client(base_url=address, headers=headers, timeout=60.0) as client,
        ):
            run(client, output)
    except (DemoError, RuntimeError, httpx.HTTPError, OSError) as exc:
        print(f"FAILED: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
