"""The server's pages of error codes."""

from __future__ import annotations

import re

from qbcompiler.errors import error_page, explained_codes

from .live import Live


def test_the_server_serves_each_page_and_problems_lead_there(live: Live):
    browser = {"Accept": "text/html,application/xhtml+xml"}
    for code in explained_codes():
        plain = live.http.get(f"/errors/{code}")
        assert plain.status_code == 200 and plain.text == error_page(code)
        assert plain.headers["content-type"].startswith("text/markdown")
        shown = live.http.get(f"/errors/{code}", headers=browser)
        assert (
            f"<h1>{code}</h1>" in shown.text
            and "default-src 'none'" in shown.headers["content-security-policy"]
        )
    index = live.http.get("/errors", headers=browser).text
    for linked in re.findall(r'(?:href|src)="(/[^"]*)"', index):
        assert live.http.get(linked).status_code == 200, linked
    assert all(f'href="/errors/{code}"' in index for code in explained_codes())
    problem = live.http.get("/v1/jobs/job_x").json()
    assert problem["help"] == f"/errors/{problem['code']}"
    assert live.http.get(problem["help"]).text.startswith(f"# {problem['code']}\n")
    assert live.http.get("/errors/NO_SUCH_CODE").status_code == 404
