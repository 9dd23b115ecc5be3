"""Engines are kept from the network and from files outside, and compile all the same."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import BUILTIN_ENGINE, EngineSettings, Settings, SettingsError
from worker.engine import Control, Ending, Outcome, check_sandbox, probe_version, run_engine
from worker.engine import command as command_module
from worker.engine.command import engine_env, engine_sandbox
from worker.sandbox import Sandbox, SandboxMode, Support, installation_of, kernel_support, without

from .test_engine import STAND_IN, Heard

whole = pytest.mark.skipif(
    bool(kernel_support().missing()), reason=f"this kernel has {kernel_support()} only"
)

# tries each expression and prints what became of it, as JSON
TRY = """
import json, os, socket, subprocess, sys, ctypes, signal
done = {}
for name, text in json.loads(sys.argv[1]).items():
    try:
        done[name] = repr(eval(text))
    except OSError as exc:
        done[name] = type(exc).__name__
print("done", json.dumps(done))
print('{"type": "result", "files": []}')
"""


def settings(folder: Path, **more: object) -> Settings:
    return Settings(data_dir=folder / "data", **more)  # type: ignore[arg-type]


def attempt(
    folder: Path, sandbox: Sandbox | None, **expressions: str
) -> tuple[dict[str, str], list[str], Outcome]:
    scratch = folder / "scratch"
    (scratch / "out").mkdir(parents=True, exist_ok=True)
    heard = Heard()
    outcome = run_engine(
        [sys.executable, "-c", TRY, json.dumps(expressions)],
        scratch=scratch,
        output=scratch / "out",
        env=engine_env(scratch, 1),
        control=Control(run_limit_s=30),
        sink=heard,
        sandbox=sandbox,
    )
    said = [line for line in heard.lines if line.startswith("done ")]
    return (json.loads(said[0][5:]) if said else {}), heard.lines, outcome


def builtin(folder: Path, mode: str = "require", cache: Path | None = None) -> Sandbox:
    return engine_sandbox(settings(folder, sandbox=mode), BUILTIN_ENGINE, cache)


@whole
def test_files_outside_are_refused_and_those_inside_are_not(tmp_path: Path) -> None:
    secret = tmp_path / "data" / "signing.key"
    secret.parent.mkdir()
    secret.write_text("a secret")
    (tmp_path / "neighbour").mkdir()
    cache = tmp_path / "data" / "cache" / "p1"
    tries = {
        "secret": f"open({str(secret)!r}).read()",
        "by_link": "os.symlink(" + repr(str(secret)) + ", 'link') or open('link').read()",
        "accounts": "open('/etc/passwd').read()",
        "neighbours": f"os.listdir({str(tmp_path)!r})",
        "write": f"open({str(tmp_path / 'neighbour' / 'x')!r}, 'w')",
        "write_code": f"open({json.__file__!r}, 'a')",
        "truncate": f"os.truncate({str(secret)!r}, 0)",
        "remove": f"os.remove({str(secret)!r})",
        "worker": f"open('/proc/{os.getpid()}/environ').read()",
        "own": "open('mine', 'w').write('x') and open('mine').read()",
        "cache": f"open({str(cache / 'x')!r}, 'w').write('xy')",
        "null": "open('/dev/null', 'w').write('x')",
    }
    open_to, _, _ = attempt(tmp_path, None, **{k: v for k, v in tries.items() if k == "secret"})
    assert open_to == {"secret": "'a secret'"}
    done, lines, outcome = attempt(tmp_path, builtin(tmp_path, cache=cache), **tries)
    assert outcome.ending is Ending.SUCCEEDED, lines
    inside = {"own": "'x'", "cache": "2", "null": "1"}
    assert {k: done[k] for k in inside} == inside
    assert {k: v for k, v in done.items() if k not in inside} == dict.fromkeys(
        tries.keys() - inside.keys(), "PermissionError"
    )
    assert secret.read_text() == "a secret"


@whole
def test_sockets_namespaces_and_other_processes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "scratch" / "broker"
    path.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))
        unix.listen()
        address = listener.getsockname()
        tries = {
            "tcp": f"socket.create_connection({address!r}, 2)",
            "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
            "raw": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
            "unix": f"socket.socket(socket.AF_UNIX).connect({str(path)!r})",
            "signal": f"os.kill({os.getpid()}, 0)",
            "chroot": "os.chroot('.')",
        }
        _, lines, _ = attempt(tmp_path, None, tcp=tries["tcp"])
        assert any("socket.socket" in line for line in lines)
        done, lines, _ = attempt(
            tmp_path,
            builtin(tmp_path),
            **tries,
            child="subprocess.run([sys.executable, '-c', 'import socket; socket.socket()'],"
            " stderr=subprocess.DEVNULL).returncode",
            user_namespace="ctypes.CDLL(None).unshare(0x10000000)",
            ring="ctypes.CDLL(None).syscall(425, 1, 0)",
            pair="len(socket.socketpair())",
        )
    assert {done[name] for name in tries} == {"PermissionError"}, done
    assert (done["child"], done["user_namespace"], done["ring"]) == ("1", "-1", "-1")
    assert done["pair"] == "2"


@whole
def test_an_engine_may_be_given_network_and_files(tmp_path: Path) -> None:
    licence, device = tmp_path / "licence", tmp_path / "device"
    licence.write_text("valid")
    device.mkdir()
    engine = EngineSettings(
        command=[sys.executable], version="1", readable=[licence], writable=[device], network=True
    )
    sandbox = engine_sandbox(settings(tmp_path, engines={"other": engine}), "other")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done, _, _ = attempt(
            tmp_path,
            sandbox,
            licence=f"open({str(licence)!r}).read()",
            change=f"open({str(licence)!r}, 'w')",
            device=f"open({str(device / 'x')!r}, 'w').write('abc')",
            connect=f"socket.create_connection({listener.getsockname()!r}, 5).close()",
        )
    assert done == {
        "licence": "'valid'",
        "change": "PermissionError",
        "device": "3",
        "connect": "None",
    }


@whole
def test_the_built_in_engine_compiles_in_it(tmp_path: Path, digits_cnn: Path) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "out").mkdir(parents=True)
    (scratch / "model.onnx").write_bytes(digits_cnn.read_bytes())
    heard = Heard()
    outcome = run_engine(
        [
            *(sys.executable, "-m", "qbcompiler", "compile", "--model", "model.onnx"),
            *("--target-device", "regulus-rb", "--use-random-calib", "--output", "out/m.mxq"),
        ],
        scratch=scratch,
        output=scratch / "out",
        env=engine_env(scratch, 1, tmp_path / "cache"),
        control=Control(run_limit_s=60, memory_limit_mb=4096),
        sink=heard,
        sandbox=builtin(tmp_path, cache=tmp_path / "cache"),
    )
    assert outcome.ending is Ending.SUCCEEDED, heard.lines
    assert {f.kind for f in outcome.files} >= {"mxq"}
    assert not [line for line in heard.lines if "sandbox" in line]


@whole
def test_another_engine_runs_in_it(tmp_path: Path) -> None:
    engine = EngineSettings(command=[sys.executable, str(STAND_IN), "good"], version="1")
    chosen = settings(tmp_path, sandbox="require", engines={"stand-in": engine})
    assert probe_version(chosen, "stand-in") == "stand-in engine 1"
    assert probe_version(chosen, BUILTIN_ENGINE)


def test_no_secret_and_no_open_file_is_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QB_SIGNING_SECRET", "topsecret" * 5)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "alsosecret")
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        done, _, _ = attempt(
            tmp_path,
            builtin(tmp_path, "auto"),
            env="sorted(os.environ)",
            files="sorted(os.readlink(f'/proc/self/fd/{n}').split(':')[0]"
            " for n in os.listdir('/proc/self/fd') if int(n) > 2 and"
            " os.path.lexists(f'/proc/self/fd/{n}'))",
        )
    assert "SECRET" not in done["env"] and "QB_" not in done["env"]
    assert str(tmp_path / "open") not in done["files"]


def test_memory_files_and_processes_are_bounded(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "out").mkdir(parents=True)
    code = (
        "import resource as r, json\n"
        "print(json.dumps([r.getrlimit(x) for x in"
        " (r.RLIMIT_CORE, r.RLIMIT_FSIZE, r.RLIMIT_DATA, r.RLIMIT_NOFILE)]))\n"
        "print(r.getrlimit(r.RLIMIT_NPROC)[1] > 4096)\n"
        "try:\n    bytearray(3 << 30)\nexcept MemoryError:\n    print('no memory')"
    )
    heard = Heard()
    run_engine(
        [sys.executable, "-c", code],
        scratch=scratch,
        output=scratch / "out",
        env=engine_env(scratch, 1),
        control=Control(memory_limit_mb=256, disk_limit_mb=100),
        sink=heard,
    )
    files, data = 100 << 20, (512 << 20) + (1 << 30)
    assert json.loads(heard.lines[0]) == [[0, 0], [files, files], [data, data], [4096, 4096]]
    assert heard.lines[1:] == ["True", "no memory"]


def test_too_many_processes_end_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.engine.process._MAX_PROCESSES", 5)
    tries = "[subprocess.Popen(['sleep', '20']) for _ in range(8)][0].wait()"
    _, _, outcome = attempt(tmp_path, None, fork=tries)
    assert outcome.ending is Ending.FAILED and outcome.failure is not None
    assert outcome.failure.code == "RESOURCE_LIMIT" and "processes" in outcome.failure.message


def test_what_the_kernel_lacks_is_said_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_module, "kernel_support", lambda: Support(0, True))
    said = check_sandbox(settings(tmp_path))
    assert "network and system calls by seccomp" in said and "NOT kept from files" in said
    with pytest.raises(SettingsError, match="Landlock"):
        check_sandbox(settings(tmp_path, sandbox="require"))
    assert "off" in check_sandbox(settings(tmp_path, sandbox="off"))
    assert len(Support(3, False).missing()) == 1 and Support(7, True).missing() == ()


def test_off_means_off(tmp_path: Path) -> None:
    done, _, _ = attempt(
        tmp_path, builtin(tmp_path, "off"), socket="socket.socket().close()",
        read=f"len(open({__file__!r}).read()) > 9",
    )  # fmt: skip
    assert done == {"socket": "None", "read": "True"}


def test_the_data_folder_is_in_no_grant(tmp_path: Path) -> None:
    root = tmp_path / "opt"
    for name in ("bin", "lib", "var/objects"):
        (root / name).mkdir(parents=True)
    program = root / "bin" / "engine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert set(installation_of([str(program)], tmp_path / "elsewhere")) == {str(root)}
    inside = installation_of([str(program)], root / "var")
    assert set(inside) == {str(root / "bin"), str(root / "lib")}
    assert list(without(root / "var" / "objects", root / "var")) == []
    with pytest.raises(ValidationError, match="not an absolute path"):
        EngineSettings(command=["x"], version="1", readable=[Path("a/b")])


@whole
def test_without_grants_not_even_the_interpreter_starts(tmp_path: Path) -> None:
    _, lines, outcome = attempt(tmp_path, Sandbox(SandboxMode.REQUIRE), own="1")
    assert outcome.exit_code == 127 and outcome.ending is Ending.FAILED
    assert any("Permission denied" in line for line in lines), lines
