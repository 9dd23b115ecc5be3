"""A browser, and a service whose jobs the tests finish as they like."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from service.settings import Settings
from tests.service.live import Live, serving

OpenPage = Callable[..., Page]


# its event loop runs in the tests' own thread, where later tests begin others
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The system's Chromium, without a window."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(names)} is on PATH (Debian: chromium)")
    # its sandbox refuses to run as root
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=args)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open an address; at the end, no script may have failed and the policy must have held."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []
    expected: list[str] = []

    def open_(url: str, *, errors: tuple[str, ...] = (), **options: object) -> Page:
        context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "locale": "en-US", **options}  # type: ignore[arg-type]
        )
        contexts.append(context)
        expected.extend(errors)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert [text for text in wrong if not any(part in text for part in expected)] == []


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service without workers."""
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("data"), poll_seconds=0.02, sse_keepalive_seconds=0.3
    )
    with serving(settings) as found:
        yield found
