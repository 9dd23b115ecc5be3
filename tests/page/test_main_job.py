"""The main job through the page: drop a model and samples, follow the job, download, compare."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.server import Server, serving
from tests.service.live import npy, tar

from .conftest import OpenPage


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a worker."""
    with serving(tmp_path_factory.mktemp("page") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def samples(digits: Any) -> bytes:
    """An archive of eight digits."""
    images = digits.train_images[:8].transpose(0, 2, 3, 1)
    return tar({f"{i}.npy": npy(image.astype(np.float32)) for i, image in enumerate(images)})


def drop(page: Page, zone: str, name: str, data: bytes) -> None:
    """Drop a file as a file manager does."""
    transfer = page.evaluate_handle(
        """([name, data]) => {
          const transfer = new DataTransfer();
          const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
          transfer.items.add(new File([bytes], name));
          return transfer;
        }""",
        [name, base64.b64encode(data).decode()],
    )
    page.dispatch_event(zone, "dragover", {"dataTransfer": transfer})
    assert "over" in (page.get_attribute(zone, "class") or "")
    page.dispatch_event(zone, "drop", {"dataTransfer": transfer})


def test_from_drop_to_download(
    server: Server, open_page: OpenPage, digits_cnn: Path, samples: bytes, tmp_path: Path
) -> None:
    page = open_page(server.url + "/")
    expect(page.locator("#no-jobs")).to_contain_text("Start the first one")
    page.locator("#no-jobs a").click()
    drop(page, "#model-zone", "digits cnn.onnx", digits_cnn.read_bytes())
    drop(page, "#calibration-zone", "digits.tar", samples)
    expect(page.locator("#model-files")).to_contain_text("digits cnn.onnx")
    page.select_option("#device", "regulus-rb")
    # the schemes are those of the device
    assert page.locator("#scheme option").all_inner_texts() == ["single", "all"]
    page.select_option("#preset", "classification")
    expect(page.locator("#preset-note")).not_to_be_empty()
    page.fill("#labels", "team=vision")
    page.fill("#revision", "9fceb02")
    page.get_by_role("button", name="Start the job").click()
    page.wait_for_url("**/#job/job_*")
    expect(page.locator("#job-state")).to_have_text("succeeded", timeout=60_000)
    expect(page.locator(".stages .done")).to_have_count(7)
    expect(page.locator("h1")).to_have_text("digits cnn.onnx")
    expect(page.locator("#job-result")).to_contain_text("SQNR")
    page.wait_for_selector("#graph[data-state=ready]")
    expect(page.locator("#layers tr")).not_to_have_count(0)
    expect(page.locator("#estimate tbody tr")).to_have_count(1)
    page.locator("#estimate summary").click()
    expect(page.locator("#estimate canvas")).to_be_visible()
    page.locator("#log-box summary").click()
    expect(page.locator("#job-log")).to_contain_text("engine qbcompiler")

    job = server.job(page.url.rsplit("/", 1)[1])
    assert job["labels"] == {"team": "vision"} and job["source_revision"] == "9fceb02"
    assert not job["use_random_calib"]
    artifact = server.artifacts(job)["mxq"]
    with page.expect_download() as download:
        page.get_by_role("link", name=artifact["name"], exact=True).click()
    download.value.save_as(tmp_path / "got.mxq")
    data = (tmp_path / "got.mxq").read_bytes()
    assert hashlib.sha256(data).hexdigest() == artifact["sha256"]
    with page.expect_download() as download:
        page.get_by_role("link", name="Checklist").click()
    download.value.save_as(tmp_path / "checklist.json")
    assert b"9fceb02" in (tmp_path / "checklist.json").read_bytes()

    # the page's own command line makes the same request: the cache answers it
    page.locator("summary", has_text="Copy as curl").scroll_into_view_if_needed()
    curl = page.locator("#job-again pre").first.inner_text()
    body = curl.splitlines()[0].split(" --json ")[1].strip("'")
    answer = server.http.post(
        "/v1/jobs", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 202 and answer.json()["cache"] == "hit", answer.text

    # the next one differs in a setting; nothing is uploaded again
    page.click("#change")
    expect(page.locator("#model-files")).to_have_text("digits cnn.onnx, which the server has")
    expect(page.locator("#revision")).to_have_value("9fceb02")
    page.select_option("#preset", "")
    page.fill("#name", "without a preset")
    page.get_by_role("button", name="Start the job").click()
    page.wait_for_url("**/#job/job_*")
    expect(page.locator("h1")).to_have_text("without a preset")
    expect(page.locator("#job-state")).to_have_text("succeeded", timeout=60_000)
    other = server.job(page.url.rsplit("/", 1)[1])
    same = ("model_id", "calibration_id", "target_device", "source_revision", "labels")
    assert {key: other[key] for key in same} == {key: job[key] for key in same}
    assert other["config_preset"] is None


def test_a_job_starts_with_the_keyboard_alone(
    server: Server, open_page: OpenPage, digits_cnn: Path
) -> None:
    page = open_page(server.url + "/#new")
    page.set_input_files("#model", digits_cnn)
    page.focus("#type")
    page.keyboard.type("parse")
    assert page.input_value("#type") == "parse"
    expect(page.locator("#calibration-zone")).to_be_hidden()
    for _ in range(30):
        if page.evaluate("document.activeElement.type") == "submit":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/#job/job_*")
    # the heading has the focus, so that a screen reader begins there
    assert page.evaluate("document.activeElement.tagName") == "H1"
    expect(page.locator("#job-state")).to_have_text("succeeded", timeout=60_000)
    page.wait_for_selector("#graph[data-state=ready]")
