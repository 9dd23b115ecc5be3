from __future__ import annotations

import base64
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.content import RangeNotSatisfiable, content_disposition, parse_range
from service.settings import Settings

from .live import Live, problem, serving

DATA = os.urandom(2_500_000)


@pytest.fixture(scope="module")
def artifact(live: Live) -> dict[str, Any]:
    return live.finish(live.parse_job(400), DATA, 'näme "1".mblt')


def test_the_whole_file(live: Live, artifact: dict[str, Any]) -> None:
    answer = live.http.get(artifact["content_url"])
    assert answer.status_code == 200
    assert answer.content == DATA
    digest = hashlib.sha256(DATA)
    headers = answer.headers
    assert artifact["sha256"] == digest.hexdigest()
    assert headers["etag"] == f'"{digest.hexdigest()}"'
    assert headers["repr-digest"] == f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
    assert headers["content-length"] == str(len(DATA))
    assert headers["accept-ranges"] == "bytes"
    assert headers["content-disposition"] == (
        "attachment; filename=\"n_me _1_.mblt\"; filename*=UTF-8''n%C3%A4me%20%221%22.mblt"
    )
    head = live.http.head(artifact["content_url"])
    assert head.status_code == 200
    assert head.content == b""
    for name in ("etag", "repr-digest", "content-length", "content-disposition", "content-type"):
        assert head.headers[name] == headers[name]


@pytest.mark.parametrize(
    ("given", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-99", 0, 100),
        ("bytes=1048570-1048590", 1048570, 1048591),
        ("bytes=2499999-", 2499999, 2500000),
        ("bytes=2400000-9999999999", 2400000, 2500000),
        ("bytes=-7", 2499993, 2500000),
        ("bytes=-99999999", 0, 2500000),
        ("Bytes = 5-6", 5, 7),
    ],
)
def test_a_range(live: Live, artifact: dict[str, Any], given: str, start: int, stop: int) -> None:
    for method in ("GET", "HEAD"):
        answer = live.http.request(method, artifact["content_url"], headers={"Range": given})
        assert answer.status_code == 206
        assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(DATA)}"
        assert answer.headers["content-length"] == str(stop - start)
        if method == "GET":
            assert answer.content == DATA[start:stop]


@pytest.mark.parametrize(
    "given", ["bytes=0-1,5-6", "items=0-1", "bytes=5-2", "bytes=-", "bytes=a-b", "bytes", "bytes=1"]
)
def test_ranges_that_are_answered_with_the_whole(
    live: Live, artifact: dict[str, Any], given: str
) -> None:
    answer = live.http.head(artifact["content_url"], headers={"Range": given})
    assert answer.status_code == 200
    assert answer.headers["content-length"] == str(len(DATA))


@pytest.mark.parametrize("given", ["bytes=2500000-", "bytes=9999999-99999999", "bytes=-0"])
def test_ranges_behind_the_end(live: Live, artifact: dict[str, Any], given: str) -> None:
    answer = live.http.get(artifact["content_url"], headers={"Range": given})
    problem(answer, 416, "RANGE_NOT_SATISFIABLE")
    assert answer.headers["content-range"] == f"bytes */{len(DATA)}"


@given(
    st.one_of(st.none(), st.text(max_size=12), st.from_regex(r"bytes=\d{0,3}-\d{0,3}")),
    st.integers(0, 200),
)
def test_no_range_header_gets_outside(header: str | None, size: int) -> None:
    try:
        span = parse_range(header, size)
    except RangeNotSatisfiable:
        return
    if span is not None:
        assert 0 <= span.start < span.stop <= size


def test_conditions(live: Live, artifact: dict[str, Any]) -> None:
    url, etag = artifact["content_url"], f'"{artifact["sha256"]}"'
    get = lambda **headers: live.http.get(  # noqa: E731
        url, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    same = get(If_None_Match=etag)
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", etag)
    assert get(If_None_Match=f'"x", W/{etag}').status_code == 304
    assert get(If_None_Match="*").status_code == 304
    assert get(If_None_Match='"other"').status_code == 200
    assert get(If_Match=etag).status_code == 200
    problem(get(If_Match='"other"'), 412, "PRECONDITION_FAILED")
    problem(get(If_Match=f"W/{etag}"), 412, "PRECONDITION_FAILED")
    assert get(If_Range=etag, Range="bytes=0-1").status_code == 206
    assert get(If_Range='"other"', Range="bytes=0-1").status_code == 200
    assert get(If_Range=f"W/{etag}", Range="bytes=0-1").status_code == 200
    modified = same.headers["last-modified"]
    assert get(If_Range=modified, Range="bytes=0-1").status_code == 206


def test_a_download_that_broke_off_goes_on(live: Live, artifact: dict[str, Any]) -> None:
    got = b""
    for _ in range(3):
        with live.http.stream(
            "GET",
            artifact["content_url"],
            headers={"Range": f"bytes={len(got)}-", "If-Range": f'"{artifact["sha256"]}"'},
        ) as answer:
            for part in answer.iter_raw(100_000):
                got += part
                if len(got) % 700_000 < 100_000 and len(got) < len(DATA):
                    break
    with live.http.stream(
        "GET", artifact["content_url"], headers={"Range": f"bytes={len(got)}-"}
    ) as answer:
        got += answer.read() if answer.status_code == 206 else b""
    assert hashlib.sha256(got).hexdigest() == artifact["sha256"]


def test_unknown_artifacts(live: Live) -> None:
    for path in ("", "/content", "/links"):
        problem(live.http.get(f"/v1/artifacts/art_{'0' * 26}{path}"), 404, "NOT_FOUND")
        problem(live.http.get(f"/v1/artifacts/job_{'0' * 26}{path}"), 422, "ARGUMENT_ERROR")
    assert live.http.head(f"/v1/artifacts/art_{'0' * 26}/content").status_code == 404


def test_a_file_that_is_gone_is_said(live: Live) -> None:
    artifact = live.finish(live.parse_job(401), b"soon gone")
    assert live.context.store.delete(artifact["sha256"])
    found = problem(live.http.get(artifact["content_url"]), 500, "INTERNAL_ERROR")
    assert "missing" in found["detail"]
    assert live.http.head(artifact["content_url"]).status_code == 500


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.mxq", 'attachment; filename="model.mxq"'),
        ("a b.mxq", 'attachment; filename="a b.mxq"'),
        ("ä.mxq", "attachment; filename=\"_.mxq\"; filename*=UTF-8''%C3%A4.mxq"),
        ('"\\%.mxq', "attachment; filename=\"___.mxq\"; filename*=UTF-8''%22%5C%25.mxq"),
        ("a\r\nX: y", "attachment; filename=\"a__X: y\"; filename*=UTF-8''a%0D%0AX%3A%20y"),
    ],
)
def test_file_names_in_headers(name: str, expected: str) -> None:
    assert content_disposition(name) == expected


# links --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(live: Live) -> dict[str, Any]:
    return live.finish(live.parse_job(402), b"0123456789", "net.mblt")


def link(live: Live, artifact: dict[str, Any], **body: int) -> dict[str, Any]:
    answer = live.http.post(f"/v1/artifacts/{artifact['id']}/links", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_a_link_serves_the_file(live: Live, small: dict[str, Any]) -> None:
    found = link(live, small, expires_in=60)
    assert found["url"].startswith(f"{live.url}/v1/links/{found['id']}/net.mblt?expires=")
    with httpx.Client() as anyone:
        answer = anyone.get(found["url"])
        assert (answer.status_code, answer.content) == (200, b"0123456789")
        assert anyone.get(found["url"], headers={"Range": "bytes=2-3"}).content == b"23"
        assert anyone.head(found["url"]).headers["content-length"] == "10"
    listed = live.http.get(f"/v1/artifacts/{small['id']}/links").json()
    assert found in listed
    assert live.http.post(f"/v1/artifacts/{small['id']}/links").status_code == 201


def test_a_link_is_revoked_at_once(live: Live, small: dict[str, Any]) -> None:
    found = link(live, small)
    path = f"/v1/artifacts/{small['id']}/links/{found['id']}"
    assert live.http.delete(path).status_code == 204
    problem(live.http.get(found["url"]), 404, "NOT_FOUND")
    assert live.http.delete(path).status_code == 204
    shown = live.http.get(f"/v1/artifacts/{small['id']}/links").json()
    assert next(item for item in shown if item["id"] == found["id"])["revoked_at"] is not None
    problem(live.http.delete(f"/v1/artifacts/{small['id']}/links/lnk_{'0' * 26}"), 404, "NOT_FOUND")


def test_a_link_that_is_altered_or_expired_is_as_if_it_never_was(
    live: Live, small: dict[str, Any]
) -> None:
    found = link(live, small, expires_in=3600)
    url = found["url"]
    texts = set()
    expires = int(re.findall(r"expires=(\d+)", url)[0])
    signature = url.rpartition("=")[2]
    flipped = ("B" if signature[0] == "A" else "A") + signature[1:]
    other = link(live, live.finish(live.parse_job(403), b"other"), expires_in=3600)
    for altered in (
        url.replace(str(expires), str(expires + 100)),
        url.replace(signature, flipped),
        url.replace(signature, signature + "A"),
        url.replace(signature, ""),
        url.replace(signature, "%C3%A4"),
        url.replace(found["id"], other["id"]),
        url.replace(found["id"], "lnk_" + "0" * 26),
    ):
        body = problem(live.http.get(altered), 404, "NOT_FOUND")
        texts.add((body["detail"], body["hint"]))
    short = link(live, small, expires_in=1)
    import time

    time.sleep(1.1)
    body = problem(live.http.get(short["url"]), 404, "NOT_FOUND")
    texts.add((body["detail"], body["hint"]))
    assert len(texts) == 1


def test_links_have_a_longest_life(live: Live, small: dict[str, Any]) -> None:
    url = f"/v1/artifacts/{small['id']}/links"
    for body in ({"expires_in": 31_000_000}, {"expires_in": 0}, {"expires_in": "1"}, {"x": 1}):
        problem(live.http.post(url, json=body), 422, "ARGUMENT_ERROR")


def test_the_signature_covers_link_artifact_and_expiry_under_its_own_key() -> None:
    from datetime import UTC, datetime

    from service.api.signing import LinkSigner

    at = datetime(2030, 1, 1, tzinfo=UTC)
    one = LinkSigner(b"k" * 32)
    signature = one.sign("lnk_1", "art_1", at)
    assert one.verify(signature, "lnk_1", "art_1", at)
    assert not one.verify(signature, "lnk_2", "art_1", at)
    assert not one.verify(signature, "lnk_1", "art_2", at)
    assert not one.verify(signature, "lnk_1", "art_1", at.replace(second=1))
    assert not LinkSigner(b"l" * 32).verify(signature, "lnk_1", "art_1", at)


# S3 -----------------------------------------------------------------------------------------


def test_with_s3_downloads_are_redirected(tmp_path: Path, s3_settings: dict[str, Any]) -> None:
    with serving(Settings(data_dir=tmp_path, poll_seconds=0.02, **s3_settings)) as live:
        artifact = live.finish(live.parse_job(1), DATA, "m.mblt")
        answer = live.http.get(artifact["content_url"])
        assert answer.status_code == 307
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["etag"] == f'"{artifact["sha256"]}"'
        assert answer.headers["repr-digest"].startswith("sha-256=:")
        followed = live.http.get(
            artifact["content_url"], headers={"Range": "bytes=5-9"}, follow_redirects=True
        )
        assert (followed.status_code, followed.content) == (206, DATA[5:10])
        assert followed.headers["content-disposition"] == 'attachment; filename="m.mblt"'
        head = live.http.head(artifact["content_url"])
        assert (head.status_code, head.headers["content-length"]) == (200, str(len(DATA)))
        same = live.http.get(
            artifact["content_url"], headers={"If-None-Match": answer.headers["etag"]}
        )
        assert same.status_code == 304
        found = link(live, artifact, expires_in=60)
        assert httpx.get(found["url"], follow_redirects=True).content == DATA
        assert live.http.get("/readyz").json()["ready"] is True


def test_with_s3_bytes_can_be_passed_on(tmp_path: Path, s3_settings: dict[str, Any]) -> None:
    settings = Settings(data_dir=tmp_path, s3_presign_downloads=False, **s3_settings)
    with serving(settings) as live:
        artifact = live.finish(live.parse_job(1), DATA, "m.mblt")
        assert live.http.get(artifact["content_url"]).content == DATA
        part = live.http.get(artifact["content_url"], headers={"Range": "bytes=100-200"})
        assert (part.status_code, part.content) == (206, DATA[100:201])
