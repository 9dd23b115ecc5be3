"""What the page shows of jobs: hostile names, large graphs, comparison, languages, keys."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from service.domain import Failure, Role
from service.settings import Settings
from tests.service.live import Live, serving, tiny_onnx

from .builds import chain, finish, report
from .conftest import OpenPage

WEB = Path(__file__).resolve().parents[2] / "service" / "web"
HOSTILE = '<img src=x onerror="window.hacked=1">"\'><script>window.hacked=1</script>javascript:0'


@pytest.fixture(scope="module")
def two(live: Live) -> list[dict[str, Any]]:
    """Two builds of the same graph; the second has the smaller error."""
    jobs = []
    for i in range(2):
        job = live.parse_job(10 + i, name=f"build {i}", labels={"set": "two"})
        graph = chain(30, cpu=3)
        finish(live, job, graph, report(graph, better=5.0 * i), summary={"phases": {"parse": 1.5}})
        jobs.append(job)
    return jobs


def ready(page: Page) -> Any:
    page.wait_for_selector("#graph[data-state=ready]")
    return page.evaluate("({...document.querySelector('#graph').dataset})")


def test_hostile_names_are_text(live: Live, open_page: OpenPage) -> None:
    model = live.upload(tiny_onnx(), name="<b>model</b>.onnx")
    job = live.parse_job(
        1, model_id=model["id"], name=HOSTILE, labels={"a": HOSTILE[:60]}, source_revision=HOSTILE
    )
    graph = chain(3)
    for layer in graph["layers"]:
        layer.update(name=HOSTILE + layer["name"], op=HOSTILE, attrs={HOSTILE: HOSTILE})
        layer["reason"] = HOSTILE
    advice = [{"try": HOSTILE, "because": HOSTILE}]
    found = report(graph, advice=advice)
    finish(live, job, graph, found, log=HOSTILE + "\n", summary={"warnings": [HOSTILE]})
    page = open_page(live.url + "/", errors=("status of 422",))
    page.get_by_role("link", name=HOSTILE).click()
    ready(page)
    expect(page.locator("h1")).to_have_text(HOSTILE)
    expect(page.locator("#job-result")).to_contain_text(HOSTILE)
    page.fill("#graph-search", "onerror")
    page.locator("#graph-hits button").first.click()
    expect(page.locator("#layer")).to_contain_text(HOSTILE)
    page.locator("#log-box summary").click()
    expect(page.locator("#job-log")).to_have_text(re.compile("<script>"))
    page.goto(f"{live.url}/#compare/{job['id']}/{job['id']}")
    expect(page.locator("#comparison")).to_contain_text(HOSTILE)
    page.goto(f"{live.url}/#job/<img src=x onerror=alert(1)>/x")
    expect(page.get_by_role("alert").first).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script, main b").count() == 0


def test_an_error_has_its_hint_and_the_page_of_its_code(live: Live, open_page: OpenPage) -> None:
    job = live.parse_job(2)
    layers = [{"name": HOSTILE, "op": "Loop", "place": "body", "device": "cpu", "reason": "why"}]
    failure = Failure(
        "UNSUPPORTED_OPERATOR", HOSTILE, hint="use another operator", details={"layers": layers}
    )
    live.context.builds.fail(live.claim(job), failure)
    page = open_page(f"{live.url}/#job/{job['id']}")
    error = page.locator("#job-error")
    expect(error).to_contain_text(HOSTILE)
    expect(error).to_contain_text("What to do: use another operator")
    expect(error.get_by_role("link")).to_have_attribute("href", "/errors/UNSUPPORTED_OPERATOR")
    expect(page.locator("#error-layers tbody tr")).to_have_text(f"{HOSTILE}LoopCPU, bodywhy")
    page.click("#retry")
    expect(page.locator("#job-state")).to_have_text("queued")
    page.click("#cancel")
    expect(page.locator("#job-state")).to_have_text("cancelled")


def test_a_graph_of_a_thousand_layers_is_usable(live: Live, open_page: OpenPage) -> None:
    graph = chain(1000, cpu=500)
    job = live.parse_job(3)
    finish(live, job, graph, report(graph))
    page = open_page(f"{live.url}/#job/{job['id']}")
    found = ready(page)
    assert int(found["nodes"]) == 1002
    # bounds that only a change of kind exceeds: alone, the layout takes under a second
    assert int(found["layoutMs"]) < 10_000
    canvas = page.locator("#graph")
    canvas.scroll_into_view_if_needed()
    page.get_by_role("button", name="All of it").click()
    frames = page.evaluate(
        """async () => {
          const canvas = document.querySelector("#graph");
          const times = [];
          for (let i = 0; i < 20; i += 1) {
            canvas.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft", shiftKey: true}));
            await new Promise(requestAnimationFrame);
            await new Promise(requestAnimationFrame);
            times.push(Number(canvas.dataset.drawMs));
          }
          return times.sort((a, b) => a - b);
        }"""
    )
    assert frames[10] < 100, "milliseconds to draw all layers"
    page.fill("#graph-search", "layer_777")
    page.press("#graph-search", "Enter")
    expect(page.locator("#layer")).to_contain_text("layer_777")
    expect(canvas).to_have_attribute("data-chosen", "layer_777")
    page.locator("#all-layers").click()
    expect(page.locator("#layers tr")).to_have_count(1000)


def test_the_graph_is_used_by_keys(
    live: Live, two: list[dict[str, Any]], open_page: OpenPage
) -> None:
    page = open_page(f"{live.url}/#job/{two[0]['id']}")
    ready(page)
    page.focus("#graph")
    for _ in range(5):
        page.keyboard.press("ArrowDown")
    layer = page.locator("#layer")
    # the first is the graph's input
    expect(layer).to_contain_text("layer_3")
    expect(layer).to_contain_text("CPU, body")
    expect(layer).to_contain_text("42.00 dB")
    page.keyboard.press("End")
    expect(layer).to_contain_text("output")
    page.keyboard.press("Home")
    expect(layer).to_contain_text("input")


def pixels(page: Page, colour: list[int]) -> int:
    """Count a canvas's pixels of one colour."""
    return int(
        page.evaluate(
            """(wanted) => {
              const canvas = document.querySelector("#graph");
              const {data} = canvas.getContext("2d")
                .getImageData(0, 0, canvas.width, canvas.height);
              let found = 0;
              for (let i = 0; i < data.length; i += 4) {
                if (wanted.every((x, j) => Math.abs(data[i + j] - x) < 3)) found += 1;
              }
              return found;
            }""",
            colour,
        )
    )


def test_npu_layers_are_blue_and_cpu_layers_black(
    live: Live, two: list[dict[str, Any]], open_page: OpenPage
) -> None:
    page = open_page(f"{live.url}/#job/{two[0]['id']}")
    ready(page)
    page.wait_for_function("document.querySelector('#graph').dataset.drawMs")
    blue, black = [0x1F, 0x5F, 0xBF], [0x16, 0x19, 0x1C]
    assert pixels(page, blue) > 2000 and pixels(page, black) > 500
    page.select_option("#graph-colour", "error")
    page.wait_for_timeout(200)
    assert pixels(page, blue) == 0
    # the canvas follows the theme
    page.select_option("#graph-colour", "")
    page.select_option("#theme", "dark")
    page.wait_for_timeout(200)
    assert pixels(page, [0x14, 0x17, 0x1A]) > 20_000


def test_layers_by_error_lead_to_the_graph(
    live: Live, two: list[dict[str, Any]], open_page: OpenPage
) -> None:
    page = open_page(f"{live.url}/#job/{two[0]['id']}")
    ready(page)
    first = page.locator("#layers tr").first
    expect(first).to_contain_text("layer_29")
    page.select_option("#layer-order", "index")
    expect(first).to_contain_text("layer_0")
    first.get_by_role("button").click()
    expect(page.locator("#graph")).to_have_attribute("data-chosen", "layer_0")
    expect(page.locator(".plot canvas")).to_be_visible()


def test_two_builds_are_compared(
    live: Live, two: list[dict[str, Any]], open_page: OpenPage
) -> None:
    page = open_page(live.url + "/")
    page.fill("#filter-label", "set=two")
    page.press("#filter-label", "Enter")
    expect(page.locator("#jobs tr")).to_have_count(2)
    for box in page.locator("#jobs input").all():
        box.check()
    page.click("#compare")
    settings = page.locator("#setting-differences")
    expect(settings).to_contain_text("/config/inputShapeDict/x/3")
    expect(settings).to_contain_text("18")
    differences = page.locator("#layer-differences tbody tr").first
    expect(differences).to_contain_text(re.compile(r"[+-]5\.00 dB"))


def test_the_list_is_live_and_filtered(live: Live, open_page: OpenPage) -> None:
    page = open_page(live.url + "/")
    page.select_option("#filter-state", "running")
    expect(page.locator("#no-jobs")).to_have_text("No job is like that.")
    job = live.parse_job(4, name="comes while looking")
    claim = live.claim(job)
    row = page.locator("#jobs tr")
    expect(row).to_contain_text("comes while looking")
    page.select_option("#filter-state", "")
    live.context.builds.fail(claim, Failure("INTERNAL_ERROR", "x"))
    expect(page.locator(f"[data-job={job['id']}]")).to_contain_text("failed")


def test_the_log_comes_as_it_is_written(live: Live, open_page: OpenPage) -> None:
    job = live.parse_job(5)
    claim = live.claim(job)
    page = open_page(f"{live.url}/#job/{job['id']}")
    log = page.locator("#job-log")
    for i in range(3):
        live.context.builds.append_log(claim, f"line {i}\n")
        expect(log).to_contain_text(f"line {i}")


def test_a_job_from_the_cache_shows_the_log_of_its_build(live: Live, open_page: OpenPage) -> None:
    job = live.parse_job(6)
    finish(live, job, chain(3), log="the first job's work\n")
    again = live.parse_job(6, model_id=job["model_id"])
    assert again["cache"] == "hit"
    page = open_page(f"{live.url}/#job/{again['id']}")
    page.locator("#log-box summary").click()
    expect(page.locator("#job-log")).to_have_text("the first job's work\n")


def test_the_skip_link_leads_into_the_view(live: Live, open_page: OpenPage) -> None:
    page = open_page(live.url + "/#new")
    expect(page.locator("h1")).to_have_text("New job")
    page.keyboard.press("Tab")
    expect(page.locator("#skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#view")).to_be_focused()
    expect(page.locator("h1")).to_have_text("New job")


def test_the_configuration_is_checked_while_typing(live: Live, open_page: OpenPage) -> None:
    page = open_page(live.url + "/#new")
    page.locator("#config-box summary").click()
    state = page.locator("#config-state")
    page.fill("#config", '{"calibration": {"methd": 1}}')
    expect(state).to_contain_text("/calibration/methd unknown; did you mean method?")
    page.fill("#config", '{"calibration": {"method": 9}}')
    expect(state).to_contain_text("/calibration/method")
    page.fill("#config", '{"calibration": ')
    expect(state).to_contain_text("JSON")
    page.fill("#config", "[]")
    expect(state).to_contain_text("must be an object")
    page.fill("#config", '{"calibration": {"method": 2}}')
    expect(state).to_have_text("The configuration is valid.")
    page.select_option("#preset", "classification")
    page.get_by_role("button", name="Start from the preset's settings").click()
    expect(page.locator("#config")).to_have_value(re.compile("calibration"))
    expect(state).to_have_text("The configuration is valid.")


def test_a_form_that_is_wrong_says_so(live: Live, open_page: OpenPage) -> None:
    page = open_page(live.url + "/#new", errors=("status of 422",))
    error = page.locator("#form-error")
    start = page.get_by_role("button", name="Start the job")
    start.click()
    expect(error).to_contain_text("Choose a model first.")
    model = {"name": "no.onnx", "mimeType": "", "buffer": b"no model"}
    page.set_input_files("#model", model)
    page.fill("#shapes", "x=1,a")
    start.click()
    expect(error).to_contain_text("write it like x=1,3,224,224")
    page.fill("#shapes", "")
    start.click()
    expect(error).to_contain_text("What to do")
    expect(error.get_by_role("link")).to_have_attribute("href", re.compile("^/errors/[A-Z_]+$"))


def test_commands_quote_what_they_carry(live: Live, open_page: OpenPage) -> None:
    hostile = "it's $(touch hacked) `x` \"\n한.onnx"
    request = {
        "type": "compile", "model_id": "mdl_x", "calibration_id": "cal_x", "name": hostile,
        "source_revision": hostile, "target_device": "regulus-rb", "cpu_offload": True,
        "input_shapes": {hostile: [1, 3, 8, 8]}, "compile_config": {"a": [None, True, hostile]},
    }  # fmt: skip
    job = {"id": "job_x", "type": "compile", "request": request, "artifacts": []}
    page = open_page(live.url + "/")
    curl, command, python = page.evaluate(
        """async ([job, name]) => {
          const made = await import("/web/snippets.js");
          return [made.curlOf(job, location.origin, true),
                  made.commandOf(job, location.origin, name),
                  made.pythonOf(job, location.origin, name)];
        }""",
        [job, "../-rf " + hostile],
    )
    words = shlex.split(curl)
    assert json.loads(words[words.index("--json") + 1]) == request
    config, _, rest = command.partition("\nEND\n")
    assert json.loads(config.partition("\n")[2]) == request["compile_config"]
    words = shlex.split(rest)
    assert words[words.index("--model") + 1] == "./-rf " + hostile
    assert words[words.index("--source-revision") + 1] == hostile
    assert words[words.index("--input-shape") + 1] == f"{hostile}=1,3,8,8"
    call = ast.parse(python).body[1].value  # type: ignore[attr-defined]
    given = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
    assert given["compile_config"] == request["compile_config"]
    assert given["input_shape_dict"] == request["input_shapes"]
    assert given["cpu_offload"] is True and given["server"] == live.url


def test_every_text_has_a_korean_one(live: Live, open_page: OpenPage) -> None:
    texts = set(re.findall(r'data-(?:text|label)="([^"]*)"', (WEB / "index.html").read_text()))
    for path in WEB.glob("*.js"):
        for quoted in re.findall(r'\bt\(\s*("(?:[^"\\]|\\.)*")', path.read_text()):
            texts.add(json.loads(quoted))
    page = open_page(live.url + "/", locale="ko-KR")
    korean = page.evaluate("import('/web/ko.js').then(({KO}) => KO)")
    assert texts - korean.keys() == set()
    for text, translated in korean.items():
        found, wanted = (set(re.findall(r"\{\d\}", x)) for x in (translated, text))
        assert found == wanted, text
    # what is a name in every language
    assert [x for x in korean if not re.search("[가-힣]", korean[x])] == ["API"]
    expect(page.locator("h1")).to_have_text("작업")
    assert page.evaluate("document.documentElement.lang") == "ko"
    page.select_option("#language", "en")
    expect(page.locator("h1")).to_have_text("Jobs")
    page.reload()
    expect(page.locator("h1")).to_have_text("Jobs")


@pytest.mark.parametrize("view", ["", "new", "keys"])
def test_every_control_has_a_name(live: Live, open_page: OpenPage, view: str) -> None:
    page = open_page(f"{live.url}/#{view}")
    expect(page.locator("h1")).to_be_visible()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("input, select, textarea, button, a, canvas")]
          .filter((x) => !x.labels?.length)
          .filter((x) => !x.getAttribute("aria-label") && !x.textContent.trim())
          .map((x) => x.outerHTML)"""
    )
    assert nameless == []


def test_nothing_is_wider_than_a_phone(
    live: Live, two: list[dict[str, Any]], open_page: OpenPage
) -> None:
    page = open_page(live.url + "/", viewport={"width": 360, "height": 740})
    for view in (
        "",
        "new",
        "keys",
        f"job/{two[0]['id']}",
        f"compare/{two[0]['id']}/{two[1]['id']}",
    ):
        page.goto(f"{live.url}/#{view}")
        page.wait_for_timeout(300)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, (view, width)


def test_a_server_with_tokens_asks_for_one(tmp_path: Path, open_page: OpenPage) -> None:
    settings = Settings(data_dir=tmp_path, poll_seconds=0.02, tokens_required=True)
    with serving(settings) as live:
        _, token = live.context.tokens.create(project="default", name="b", role=Role.BUILDER)
        live.http.headers["Authorization"] = f"Bearer {token}"
        job = live.parse_job(name="behind a token")
        finish(live, job, chain(3))
        page = open_page(live.url + "/", errors=("status of 401",))
        page.get_by_role("dialog").get_by_label("asks for a token").fill(token)
        page.keyboard.press("Enter")
        page.get_by_role("link", name="behind a token").click()
        ready(page)
        # a plain link would not carry the token
        with page.expect_download() as download:
            page.get_by_role("link", name="m.mblt", exact=True).click()
        download.value.save_as(tmp_path / "m.mblt")
        assert (tmp_path / "m.mblt").read_bytes()[:2] == b"PK"
        page.goto(live.url + "/#keys")
        expect(page.locator("#token-state")).to_have_text("A token is in use.")
        # not kept for other tabs
        assert page.evaluate("JSON.stringify(localStorage)").count(token) == 0
        page.get_by_role("button", name="Forget it").click()
        expect(page.locator("#token-state")).to_have_text("No token is in use.")
