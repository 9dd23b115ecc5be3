"""An engine that behaves, and misbehaves, as it is told.

``python stand_in.py BEHAVIOUR compile --output … …``: speaks the JSON-lines protocol and takes
the compiler's options.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def say(**message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def option(name: str) -> str | None:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


def write(path: str, data: bytes) -> dict[str, object]:
    Path(path).write_bytes(data)
    return {
        "kind": Path(path).suffix[1:] if not path.endswith(".json") else "report",
        "path": path,
        "sha256": hashlib.sha256(data).hexdigest(),
        "size": len(data),
    }


def succeed(**more: object) -> None:
    model = option("--model") or option("--mblt")
    assert model is not None
    digest = hashlib.sha256(Path(model).read_bytes()).hexdigest()
    files = []
    for name in ("--mblt-save-path", "--output", "--report-path"):
        path = option(name)
        if path:
            files.append(write(path, f"{Path(path).suffix} of {digest}".encode()))
    say(type="result", files=files, summary={"made_by": "stand-in"}, **more)


def main() -> None:
    behaviour = sys.argv[1]
    if "check" in sys.argv:
        print("stand-in engine 1")
        return
    say(type="status", state="started")
    say(type="status", state="phase", phase="parse")
    if behaviour == "good":
        for i in range(3):
            say(type="progress", phase="parse", current=i + 1, total=3)
        print("a plain line")
        sys.stderr.write("a line on standard error\n")
        say(type="log", level="warning", message="beware")
        succeed()
    elif behaviour == "unknown_fields":
        say(type="novelty", value=1)
        say(type="progress", phase="dreaming", current=1, total=2)
        say(type="progress", phase="quantize", current="many", total=True, mood="fine")
        print("[1, 2]")
        print('{"type": 7}')
        print('{"type": "progress"')
        print('{"a":' * 3000)
        succeed(mood="fine")
    elif behaviour.startswith("slow:"):
        until = time.monotonic() + float(behaviour.partition(":")[2])
        while time.monotonic() < until:
            say(type="progress", phase="calibrate", current=1, total=2)
            time.sleep(0.05)
        succeed()
    elif behaviour.startswith("gate:"):
        # waits for a file; says so in the log
        gate = Path(behaviour.partition(":")[2])
        say(type="status", state="phase", phase="calibrate")
        say(type="log", level="info", message=f"waiting as {os.getpid()}")
        while not gate.exists():
            time.sleep(0.02)
        succeed()
    elif behaviour == "hang":
        time.sleep(3600)
    elif behaviour == "ignore_sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say(type="log", level="info", message="deaf")
        time.sleep(3600)
    elif behaviour == "no_result":
        pass
    elif behaviour == "fault":
        say(type="error", code="MODEL_LOAD_ERROR", message="not a model", hint="give a model",
            details={"path": "model.onnx"})  # fmt: skip
        sys.exit(3)
    elif behaviour == "bare_exit":
        sys.stderr.write("something is wrong\n")
        sys.exit(9)
    elif behaviour == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif behaviour == "wrong_digest":
        path = option("--output")
        assert path is not None
        entry = write(path, b"whole")
        Path(path).write_bytes(b"half")
        say(type="result", files=[entry], summary={})
    elif behaviour == "outside":
        say(type="result", files=[{"kind": "mxq", "path": "/etc/hostname"}], summary={})
    elif behaviour == "flood":
        line = "x" * 1000
        for _ in range(30_000):
            print(line)
        succeed()
    elif behaviour == "long_line":
        sys.stdout.write("y" * (5 << 20) + "\n")
        succeed()
    elif behaviour == "eat_memory":
        hoard = []
        for _ in range(100):
            hoard.append(bytearray(os.urandom(1 << 20)) * 16)
            time.sleep(0.05)
        succeed()
    elif behaviour.startswith("need_memory:"):
        # says so itself, as a compiler whose allocation was refused does
        if Path(behaviour.partition(":")[2]).exists():
            succeed()
        else:
            say(
                type="error", code="RESOURCE_LIMIT", message="out of memory",
                details={"resource": "memory"},
            )  # fmt: skip
            sys.exit(5)
    elif behaviour == "eat_disk":
        for i in range(100):
            Path(f"big{i}").write_bytes(b"z" * (8 << 20))
            time.sleep(0.1)
        succeed()
    elif behaviour == "big_file":
        path = option("--output")
        assert path is not None
        try:
            with Path(path).open("wb") as file:
                for _ in range(64):
                    file.write(b"z" * (1 << 20))
        except OSError as exc:
            say(type="error", code="OUTPUT_WRITE_ERROR", message=exc.strerror)
            sys.exit(4)
        succeed()
    elif behaviour == "children":
        code = "import time; time.sleep(3600)"
        child = subprocess.Popen([sys.executable, "-c", code])
        stray = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        say(type="log", level="info", message=f"children {child.pid} {stray.pid}")
        time.sleep(0.3)
        succeed()
    else:
        sys.exit(f"unknown behaviour {behaviour}")


if __name__ == "__main__":
    main()
