"""Take the pictures of the page in the README, on a server of their own with real jobs.

Needs Chromium, the real models (``make models``) and the packages that tests need. The pictures go
to ``docs/pictures`` with 64 colours each, so that they stay small.

    python docs/screenshots.py
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

from embedded_server import embedded_server  # noqa: E402
from prepare_ocr_calibration import write  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
COLOURS = 64


def main() -> None:
    """Run jobs, and take the pictures."""
    PICTURES.mkdir(exist_ok=True)
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        sys.exit("Chromium is not on PATH (Debian: chromium)")
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with (
        tempfile.TemporaryDirectory() as folder,
        embedded_server(Path(folder) / "data", Path(folder) / "log") as url,
        sync_playwright() as playwright,
    ):
        plain, classification = jobs(url, Path(folder))
        browser = playwright.chromium.launch(executable_path=program, args=args)
        page = opened(browser, f"{url}/#job/{classification}", height=860)
        page.wait_for_selector("#graph[data-state=ready]")
        page.select_option("#graph-colour", "error")
        page.fill("#graph-search", "conv")
        page.locator("#layers button").first.click()
        page.locator("section.graph").evaluate("x => scrollTo(0, x.offsetTop - 60)")
        save(page, "job.png")
        page = opened(browser, f"{url}/#compare/{plain}/{classification}", height=760, dark=True)
        page.wait_for_selector("#setting-differences")
        save(page, "compare.png")
        page = opened(browser, f"{url}/#new", width=390, height=844, locale="ko-KR")
        page.wait_for_selector("#preset option >> nth=1", state="attached")
        save(page, "phone.png")
        browser.close()
    for path in sorted(PICTURES.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")


def jobs(url: str, folder: Path) -> tuple[str, str]:
    """Compile a real model with and without a preset; return the jobs' ids."""
    write(folder)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(folder / "calibration", ".")
    with httpx.Client(base_url=url, timeout=120) as http:
        model = _json(
            http.post(
                "/v1/models",
                files={
                    "file": ("ppocrv4_cls.onnx", (ROOT / "models/ppocrv4_cls.onnx").read_bytes())
                },
            )
        )
        calibration = _json(
            http.post("/v1/calibrations", files={"file": ("crops.tar", archive.getvalue())})
        )
        ids = []
        for name, preset in (("defaults", None), ("classification", "classification")):
            request = {
                "type": "compile", "name": f"PP-OCRv4 direction, {name}",
                "model_id": model["id"], "calibration_id": calibration["id"],
                "target_device": "regulus-rb", "input_shapes": {"x": [1, 3, 48, 192]},
            }  # fmt: skip
            if preset is not None:
                request["config_preset"] = preset
            ids.append(_json(http.post("/v1/jobs", json=request))["id"])
        for job_id in ids:
            while (job := _json(http.get(f"/v1/jobs/{job_id}?wait=30")))["state"] != "succeeded":
                if job["error"] is not None:
                    sys.exit(f"{job_id}: {job['error']['detail']}")
        return ids[0], ids[1]


def _json(answer: httpx.Response) -> dict[str, Any]:
    if answer.is_error:
        sys.exit(answer.text)
    return dict(answer.json())


def opened(
    browser: Browser,
    url: str,
    *,
    width: int = 1200,
    height: int,
    dark: bool = False,
    locale: str = "en-US",
) -> Page:
    """Open a page of a size."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        locale=locale,
    )
    page = context.new_page()
    page.goto(url)
    return page


def save(page: Page, name: str) -> None:
    """Take a picture of what is seen."""
    # canvases draw after the next frame
    time.sleep(1)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURES / name, optimize=True)


if __name__ == "__main__":
    main()
