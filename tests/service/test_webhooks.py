from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.db import Reconciler, RetryPolicy, WebhookStore
from service.db.tables import JobRow
from service.domain import (
    Failure,
    Role,
    State,
    WebhookUrlError,
    address_refused,
    check_webhook_url,
)
from service.webhooks import post

from .conftest import Bench, free_settings, in_threads
from .live import Live, problem, serving

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


@dataclass
class Receiver:
    """A real HTTP server that keeps what it is sent."""

    url: str
    got: list[dict[str, Any]] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """What to answer next; then 204."""

    def wait(self, count: int, seconds: float = 15) -> list[dict[str, Any]]:
        deadline = time.monotonic() + seconds
        while len(self.got) < count:
            assert time.monotonic() < deadline, self.got
            time.sleep(0.01)
        return self.got


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.got.append(
                {"path": self.path, "headers": dict(self.headers.items()), "body": body}
            )
            status, headers = found.answers.pop(0) if found.answers else (204, {})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Receiver(f"http://127.0.0.1:{server.server_port}/hook?a=1")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    settings = free_settings(
        tmp_path_factory.mktemp("data"),
        webhook_allowed_networks=LOOPBACK,
        webhook_retry_seconds=0.05,
        webhook_tries=3,
        webhook_timeout_seconds=2,
        poll_seconds=0.02,
    )
    with serving(settings) as found:
        yield found


def deliveries(live: Live, job: dict[str, Any], until: str) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 20
    while True:
        answer = live.http.get("/v1/webhooks/deliveries", params={"job_id": job["id"]})
        assert answer.status_code == 200, answer.text
        items: list[dict[str, Any]] = answer.json()["items"]
        if items and all(item["state"] == until for item in items):
            return items
        assert time.monotonic() < deadline, items
        time.sleep(0.02)


def signatures(secret: str, got: dict[str, Any]) -> bool:
    """Check a message as a receiver would, from the standard's text alone."""
    headers = {k.lower(): v for k, v in got["headers"].items()}
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + got["body"]
    mine = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return f"v1,{mine}" in headers["webhook-signature"].split(" ")


def test_a_message_about_a_jobs_end(live: Live, receiver: Receiver) -> None:
    job = live.parse_job(
        1, webhook_url=receiver.url, labels={"ci": "7"}, name="nächtlich", source_revision="abc"
    )
    artifact = live.finish(job)
    (got,) = receiver.wait(1)
    assert got["path"] == "/hook?a=1"
    assert got["headers"]["Content-Type"] == "application/json"
    secret = live.http.get("/v1/webhooks/secret").json()["secret"]
    assert signatures(secret, got)
    assert not signatures(secret, {**got, "body": got["body"].replace(b"succeeded", b"failed...")})
    assert abs(int(got["headers"]["webhook-timestamp"]) - time.time()) < 60
    message = json.loads(got["body"])
    assert message["type"] == "job.succeeded"
    assert datetime.fromisoformat(message["timestamp"]).tzinfo is not None
    data = message["data"]
    assert (data["job_id"], data["name"], data["labels"]) == (job["id"], "nächtlich", {"ci": "7"})
    assert (data["state"], data["source_revision"], data["error"]) == ("succeeded", "abc", None)
    assert data["artifacts"] == [{k: artifact[k] for k in ("id", "kind", "name", "sha256", "size")}]
    (delivery,) = deliveries(live, job, "delivered")
    assert delivery["id"] == got["headers"]["webhook-id"]
    detail = live.http.get(f"/v1/webhooks/deliveries/{delivery['id']}").json()
    assert detail["body"].encode() == got["body"]
    assert [(a["number"], a["status"], a["error"]) for a in detail["attempts"]] == [(1, 204, None)]
    assert (detail["next_try_at"], detail["retries_left"]) == (None, 0)


def test_an_answer_from_the_cache_is_told_too(live: Live, receiver: Receiver) -> None:
    model = live.upload()["id"]
    live.finish(live.parse_job(2, model_id=model))
    hit = live.parse_job(2, model_id=model, webhook_url=receiver.url)
    assert hit["cache"] == "hit"
    (got,) = receiver.wait(1)
    assert json.loads(got["body"])["data"]["cache"] == "hit"


def test_failures_are_tried_again_under_the_same_id(live: Live, receiver: Receiver) -> None:
    receiver.answers = [(500, {}), (302, {"Location": receiver.url})]
    job = live.parse_job(3, webhook_url=receiver.url)
    live.finish(job)
    got = receiver.wait(3)
    assert len({g["headers"]["webhook-id"] for g in got}) == 1
    assert len({g["body"] for g in got}) == 1
    (delivery,) = deliveries(live, job, "delivered")
    detail = live.http.get(f"/v1/webhooks/deliveries/{delivery['id']}").json()
    # the redirect is a failure, and nothing went where it pointed
    assert [a["status"] for a in detail["attempts"]] == [500, 302, 204]
    starts = [datetime.fromisoformat(a["at"]).timestamp() for a in detail["attempts"]]
    assert starts[1] - starts[0] >= 0.04 and starts[2] - starts[1] >= 0.18
    assert len(receiver.got) == 3


def test_a_delivery_that_failed_can_be_asked_for_again(live: Live, receiver: Receiver) -> None:
    receiver.answers = [(503, {})] * 3
    job = live.parse_job(4, webhook_url=receiver.url)
    live.http.post(f"/v1/jobs/{job['id']}/cancel")
    (failed,) = deliveries(live, job, "failed")
    assert (failed["tries"], failed["event"]) == (3, "job.cancelled")
    time.sleep(0.7)
    assert len(receiver.got) == 3
    answer = live.http.post(f"/v1/webhooks/deliveries/{failed['id']}/redeliver")
    assert answer.status_code == 202
    assert answer.json()["retries_left"] > 0
    receiver.wait(4)
    (delivered,) = deliveries(live, job, "delivered")
    assert (delivered["id"], delivered["tries"]) == (failed["id"], 4)


def test_a_receiver_that_is_gone_is_left_alone(live: Live, receiver: Receiver) -> None:
    receiver.answers = [(410, {})]
    job = live.parse_job(5, webhook_url=receiver.url)
    claim = live.claim(job)
    live.context.builds.fail(claim, Failure("UNSUPPORTED_OPERATOR", "no such operator"))
    (delivery,) = deliveries(live, job, "failed")
    assert delivery["tries"] == 1
    assert json.loads(receiver.got[0]["body"])["data"]["error"] == {
        "code": "UNSUPPORTED_OPERATOR",
        "detail": "no such operator",
    }


def test_a_rotated_secret_signs_beside_the_one_before(live: Live, receiver: Receiver) -> None:
    before = live.http.get("/v1/webhooks/secret").json()["secret"]
    after = live.http.post("/v1/webhooks/secret/rotate").json()
    assert after["secret"] != before and after["rotated_at"] is not None
    assert live.http.get("/v1/webhooks/secret").json() == after
    live.finish(live.parse_job(6, webhook_url=receiver.url))
    (got,) = receiver.wait(1)
    assert signatures(before, got) and signatures(after["secret"], got)


def test_projects_have_their_own_secrets_and_deliveries(tmp_path: Path) -> None:
    settings = free_settings(tmp_path, tokens_required=True, webhook_allowed_networks=LOOPBACK)
    with serving(settings) as live, receiving() as receiver:

        def client(project: str, role: Role) -> Any:
            _, text = live.context.tokens.create(project=project, name="t", role=role)
            return lambda method, path, **more: live.http.request(
                method, path, headers={"Authorization": f"Bearer {text}"}, **more
            )

        mine, other = client("one", Role.ADMIN), client("two", Role.ADMIN)
        reader, builder = client("one", Role.READER), client("one", Role.BUILDER)
        secret = mine("GET", "/v1/webhooks/secret").json()["secret"]
        assert secret != other("GET", "/v1/webhooks/secret").json()["secret"]
        problem(builder("GET", "/v1/webhooks/secret"), 403, "FORBIDDEN")
        problem(builder("POST", "/v1/webhooks/secret/rotate"), 403, "FORBIDDEN")
        from .live import tiny_onnx

        model = builder("POST", "/v1/models", files={"file": ("m.onnx", tiny_onnx())}).json()
        job = builder(
            "POST", "/v1/jobs",
            json={"type": "parse", "model_id": model["id"], "webhook_url": receiver.url},
        ).json()  # fmt: skip
        builder("POST", f"/v1/jobs/{job['id']}/cancel")
        (got,) = receiver.wait(1)
        assert signatures(secret, got)
        (delivery,) = reader("GET", "/v1/webhooks/deliveries").json()["items"]
        assert other("GET", "/v1/webhooks/deliveries").json()["items"] == []
        path = f"/v1/webhooks/deliveries/{delivery['id']}"
        problem(other("GET", path), 404, "NOT_FOUND")
        problem(other("POST", f"{path}/redeliver"), 404, "NOT_FOUND")
        problem(reader("POST", f"{path}/redeliver"), 403, "FORBIDDEN")


# where nothing may go -----------------------------------------------------------------------

REFUSED = [
    "http://127.0.0.1/x", "http://127.1.2.3:8080", "http://localhost/", "http://a.localhost./",
    "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:10.0.0.1]/", "http://0.0.0.0/",
    "http://[::]/", "http://10.0.0.1/", "http://172.16.0.1/", "http://192.168.1.1/",
    "http://100.64.0.1/", "http://169.254.169.254/latest/meta-data", "http://[fe80::1]/",
    "http://[fe80::1%25eth0]/", "http://[fd00::1]/", "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/", "http://224.0.0.1/", "http://255.255.255.255/",
    "ftp://example.org/", "file:///etc/passwd", "https://", "https:///x", "//example.org/",
    "https://user:pw@example.org/", "https://example.org/#x", "https://example.org:0/",
    "https://example.org:99999/", "https://exam ple.org/", "https://example.org/\r\nX: y",
    "https://example.org\\@127.0.0.1/", "https://bücher.example/",
]  # fmt: skip


@pytest.mark.parametrize("url", REFUSED)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(WebhookUrlError):
        check_webhook_url(url, ())


@pytest.mark.parametrize(
    "url", ["https://example.org/x?y=1", "http://93.184.215.14:8080", "https://[2606:4700::1111]/"]
)
def test_urls_that_are_taken(url: str) -> None:
    check_webhook_url(url, ())


def test_allowed_networks_and_no_others() -> None:
    allowed = (ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/64"))
    for text, refused in (("10.1.2.3", False), ("10.2.0.1", True), ("fd00::5", False),
                          ("fd00:1::5", True), ("::ffff:10.1.2.3", False), ("127.0.0.1", True),
                          ("fe80::1%1", True)):  # fmt: skip
        assert address_refused(ipaddress.ip_address(text), allowed) is refused, text


def test_a_job_with_a_private_webhook_is_refused(tmp_path: Path) -> None:
    with serving(free_settings(tmp_path)) as live:
        answer = live.http.post(
            "/v1/jobs",
            json={
                "type": "parse",
                "model_id": live.upload()["id"],
                "webhook_url": "http://169.254.169.254/latest",
            },
        )
        found = problem(answer, 422, "ARGUMENT_ERROR")
        assert found["errors"][0]["pointer"] == "/webhook_url"
        assert "QB_WEBHOOK_ALLOWED_NETWORKS" in found["hint"]


def send(url: str, addresses: list[str], **changes: Any) -> tuple[Any, list[str]]:
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return addresses

    options: dict[str, Any] = {"allowed": (), "seconds": 2.0, "resolve": resolve, **changes}
    return post(url, {"X-A": "b"}, b"{}", **options), asked


def test_a_name_that_leads_inside_is_not_connected_to(receiver: Receiver) -> None:
    port = httpx.URL(receiver.url).port
    for addresses in (["127.0.0.1"], ["::ffff:127.0.0.1"], ["10.0.0.1", "::1"]):
        answer, _ = send(f"http://hooks.example:{port}/", addresses)
        assert answer.status is None and "refused" in answer.error
    # names that the system takes for an address
    answer = post(f"http://2130706433:{port}/", {}, b"{}", allowed=(), seconds=2)
    assert answer.status is None
    assert receiver.got == []


def test_the_checked_address_is_the_one_connected_to(receiver: Receiver) -> None:
    port = httpx.URL(receiver.url).port
    answer, asked = send(f"http://hooks.example:{port}/p", ["127.0.0.1"], allowed=LOOPBACK)
    assert answer.delivered and answer.status == 204
    # asked once: a second answer could be another one
    assert asked == ["hooks.example"]
    assert receiver.got[0]["headers"]["Host"] == f"hooks.example:{port}"
    # of several addresses only those that passed are tried
    answer, _ = send(
        f"http://hooks.example:{port}/p", ["127.0.0.1", "127.0.0.2"],
        allowed=(ipaddress.ip_network("127.0.0.1/32"),),
    )  # fmt: skip
    assert answer.delivered


def test_tls_is_checked_against_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ssl

    certificate = _certificate(tmp_path, "hooks.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hosts.append(self.headers["host"])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            pass

    hosts: list[str] = []
    server = Server(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"https://{{}}:{server.server_port}/"
    try:
        answer, _ = send(url.format("hooks.example"), ["127.0.0.1"], allowed=LOOPBACK)
        assert answer.status is None and answer.error.startswith("TLS: ")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        answer, _ = send(url.format("other.example"), ["127.0.0.1"], allowed=LOOPBACK)
        assert answer.status is None and answer.error.startswith("TLS: ")
        assert hosts == []
        answer, _ = send(url.format("hooks.example"), ["127.0.0.1"], allowed=LOOPBACK)
        assert answer.status == 200, answer
        assert hosts == [f"hooks.example:{server.server_port}"]
    finally:
        server.shutdown()
        server.server_close()


def _certificate(folder: Path, name: str) -> Path:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


@pytest.mark.parametrize("drip", [b"", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_receiver_that_drips_is_cut_off(drip: bytes) -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1)
                try:
                    peer.sendall(drip)
                    while drip and not stop.wait(0.05):
                        peer.sendall(b"x")
                    stop.wait(10)
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        answer, _ = send(f"http://a.example:{port}/", ["127.0.0.1"], allowed=LOOPBACK, seconds=0.5)
        stop.set()
        thread.join(10)
    assert answer.status is None and "no answer within 0.5 s" in answer.error
    assert answer.seconds < 3


def test_what_cannot_be_reached_is_said_plainly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    answer, _ = send(f"http://a.example:{port}/", ["127.0.0.1"], allowed=LOOPBACK)
    assert answer.error == "connection: Connection refused"

    def nowhere(host: str, port: int) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    assert "resolved" in (send("http://a.example/", [], resolve=nowhere)[0].error or "")


# the store, on both databases ---------------------------------------------------------------


def ended(bench: Bench, variant: int) -> str:
    job = bench.jobs.submit(bench.new(variant, webhook_url="https://a.example/")).job
    bench.jobs.cancel("default", job.id)
    return job.id


def test_each_message_is_claimed_by_one(bench: Bench) -> None:
    for variant in range(20):
        ended(bench, variant)
    store = WebhookStore(bench.db)
    claimed = in_threads(4, lambda _: [d.id for d in store.claim(20)])
    found = [d for part in claimed for d in part]  # type: ignore[attr-defined]
    assert len(found) == len(set(found)) == 20
    assert store.claim(20) == []


def test_a_message_whose_process_died_is_claimed_again(bench: Bench) -> None:
    ended(bench, 0)
    store = WebhookStore(bench.db, RetryPolicy(lease_s=0.2, first_s=100))
    (first,) = store.claim(5)
    time.sleep(0.25)
    (second,) = store.claim(5)
    assert (second.id, second.tries) == (first.id, 2)
    # the first one comes back after all: its try is in the log, and decides nothing
    store.record(first, status=200, error=None, seconds=0.1, delivered=True)
    store.record(second, status=500, error=None, seconds=0.1, delivered=False)
    found = store.get("default", first.id)
    assert found is not None
    delivery, tries = found
    assert delivery.state.value == "pending" and delivery.retries_left == 8
    assert [(t.number, t.status) for t in tries] == [(1, 200), (2, 500)]


def test_every_way_to_end_owes_one_message(bench: Bench) -> None:
    ways: dict[str, Callable[[str, str], object]] = {
        "succeeded": lambda b, j: bench.builds.succeed(bench.builds.claim(b, "w"), [], {}),  # type: ignore[arg-type]
        "failed": lambda b, j: bench.builds.fail(
            bench.builds.claim(b, "w"),  # type: ignore[arg-type]
            Failure("RESOURCE_LIMIT", "memory"),
        ),
        "cancelled": lambda b, j: bench.jobs.cancel("default", j),
        "timed_out": lambda b, j: overdue(bench, j),
    }
    store = WebhookStore(bench.db)
    for number, (state, end) in enumerate(ways.items()):
        made = [
            bench.jobs.submit(bench.new(number, webhook_url=f"https://{i}.example/"))
            for i in range(2)
        ]
        assert made[0].build.id == made[1].build.id
        quiet = bench.jobs.submit(bench.new(number))
        for one in made if state in ("cancelled", "timed_out") else made[:1]:
            end(one.build.id, one.job.id)
        for one in made:
            (delivery,) = store.page("default", limit=9, cursor=None, job_id=one.job.id).items
            assert delivery.event == f"job.{state}"
            assert json.loads(delivery.body)["data"]["state"] == state
        assert store.page("default", limit=9, cursor=None, job_id=quiet.job.id).items == []


def overdue(bench: Bench, job_id: str) -> None:
    with bench.db.write() as session:
        row = session.get_one(JobRow, job_id)
        row.queue_deadline = datetime.now(UTC) - timedelta(seconds=5)
    Reconciler(bench.db).run_once()
    view = bench.jobs.get("default", job_id)
    assert view is not None and view.job.state is State.TIMED_OUT


def test_pauses_grow_up_to_a_bound_and_heed_the_receiver() -> None:
    policy = RetryPolicy(first_s=5, most_s=1000)
    pauses = [policy.pause(n, None).total_seconds() for n in (1, 2, 3, 4, 10, 1000)]
    for pause, plain in zip(pauses, (5, 20, 80, 320, 1000, 1000), strict=True):
        assert plain <= pause <= plain * 1.2
    assert policy.pause(1, 60).total_seconds() == 60
    assert policy.pause(1, 10**8).total_seconds() == 1000
