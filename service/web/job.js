// One job: what it does, its log, its error, and what it made.

import {
  bytes, call, copyButton, decibel, downloadLink, facts, get, make, post, seconds, shortId, showProblem, token,
} from "./common.js";
import { ENDED, follow } from "./follow.js";
import { t } from "./i18n.js";
import { stateMark } from "./jobs.js";
import { buildView } from "./build.js";
import { commandOf, curlOf, pythonOf } from "./snippets.js";

const PHASES = ["fetch", "parse", "calibrate", "quantize", "codegen", "verify", "store"];
const MAX_LOG = 2_000_000;

function stages(job) {
  const used = job.type === "parse"
    ? ["fetch", "parse", "store"]
    : PHASES.filter((phase) => job.type !== "quantize" || phase !== "parse");
  const at = job.state === "succeeded" ? used.length : used.indexOf(job.phase);
  const spent = job.summary?.phases || {};
  return make(
    "ol",
    { class: "stages", "aria-label": t("Stages") },
    used.map((phase, i) => {
      const wrong = i === at && ["failed", "timed_out"].includes(job.state);
      const state = i < at ? "done" : i === at ? (wrong ? "wrong" : "now") : "later";
      return make(
        "li",
        { class: state, "aria-current": state === "now" ? "step" : null },
        make("span", { "aria-hidden": "true" }, { done: "✓", wrong: "✕", now: "●", later: "○" }[state]),
        ` ${t(phase)}`,
        phase in spent ? make("small", {}, ` ${seconds(spent[phase])}`) : null,
      );
    }),
  );
}

function request(job) {
  const entries = [
    [t("Type"), job.type],
    [t("Device"), job.target_device],
    [t("Scheme"), job.inference_scheme],
    [t("Preset"), job.config_preset],
    [t("Engine"), `${job.engine} ${job.engine_version}`],
    [t("Model"), make("code", {}, job.model_digest)],
    [t("Calibration"), job.use_random_calib ? t("random numbers: not for release") : job.calibration_digest && make("code", {}, job.calibration_digest)],
    [t("Source revision"), job.source_revision],
    [t("Labels"), Object.entries(job.labels).map(([k, v]) => `${k}=${v}`).join(", ")],
    [t("Build key"), make("code", {}, job.build_key)],
    [t("Made"), new Date(job.created_at).toLocaleString(document.documentElement.lang)],
  ];
  if (job.retry_of) entries.push([t("Again after"), make("a", { href: `#job/${job.retry_of}` }, shortId(job.retry_of))]);
  return facts(entries);
}

function result(job) {
  const outputs = job.summary?.accuracy?.outputs || [];
  const attempts = job.attempt > 1 ? String(job.attempt) : "";
  const refresh = job.summary?.refresh;
  return facts([
    [t("Waiting"), job.queue_position === null ? null : t("{0} before it", job.queue_position)],
    [t("Waited"), seconds(job.timings.queue_s)],
    [t("Run time"), seconds(job.timings.run_s)],
    [t("Attempts"), attempts],
    [t("Cache"), job.cache === "hit" ? t("answered from a finished build") : job.cache === "joined" ? t("shares a running build") : ""],
    [t("Bytes agree"), refresh && typeof refresh === "object" && "identical" in refresh ? (refresh.identical ? t("yes") : t("no")) : ""],
    ...outputs.map((output) => [
      t("Accuracy of {0}", output.name),
      `SQNR ${decibel(output.sqnr_db, 2)}, cosine ${output.cosine}` +
        (output.top1_agreement === null || output.top1_agreement === undefined ? "" : `, top-1 ${(100 * output.top1_agreement).toFixed(1)} %`),
    ]),
    ...(job.summary?.warnings || []).map((text) => [t("Warning"), text]),
  ]);
}

async function saved(path, name) {
  // with a token a link would not carry it
  const blob = await (await call(path)).blob();
  const address = URL.createObjectURL(blob);
  const link = make("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

function files(job, report) {
  const rows = job.artifacts.map((artifact) =>
    make(
      "li",
      {},
      make("span", { class: "kind" }, artifact.kind),
      " ",
      downloadLink(artifact),
      ` ${bytes(artifact.size)}`,
      artifact.sha256 ? make("div", {}, make("code", {}, artifact.sha256)) : null,
    ),
  );
  if (job.state === "succeeded") {
    for (const [name, text, file] of [
      ["bundle", t("Bundle with everything to build again"), `${job.id}.tar`],
      ["checklist", t("Checklist"), `${job.id}.checklist.json`],
      ["provenance", t("Provenance"), `${job.id}.provenance.json`],
    ]) {
      const path = `/v1/jobs/${job.id}/${name}`;
      const link = make("a", { href: path, download: file }, text);
      link.onclick = (event) => {
        if (!token()) return;
        event.preventDefault();
        saved(path, file).catch(report);
      };
      rows.push(make("li", {}, make("span", { class: "kind" }, name), " ", link));
    }
  }
  return make("ul", { class: "files", id: "job-files" }, rows);
}

function commands(job, modelName) {
  const kinds = {
    curl: curlOf(job, location.origin, Boolean(token())),
    CLI: commandOf(job, location.origin, modelName),
    Python: pythonOf(job, location.origin, modelName),
  };
  return make(
    "section",
    { id: "job-again" },
    make("h2", {}, t("The same by command")),
    Object.entries(kinds).map(([name, text], i) =>
      make(
        "details",
        { open: i === 0 },
        make("summary", {}, t("Copy as {0}", name)),
        make("div", { class: "code" }, copyButton(() => text), make("pre", { tabindex: "0", "aria-label": name }, text)),
      ),
    ),
  );
}

export function jobView([given], { signal, report }) {
  // out of the address bar: it must stay one part of a path
  const id = encodeURIComponent(given || "");
  const title = make("h1", { id: "job-title" }, shortId(id));
  const state = make("span", { id: "job-state", role: "status" });
  const actions = make("span", { class: "actions" });
  const steps = make("div", {});
  const bar = make("progress", { id: "job-bar", "aria-label": t("Progress") });
  const phase = make("span", { id: "job-phase" });
  const progress = make("p", { id: "job-progress", hidden: true }, bar, " ", phase);
  const error = make("div", { id: "job-error", class: "problem", role: "alert", hidden: true });
  const about = make("div", { class: "columns" });
  const built = make("div", { id: "job-build" });
  const again = make("div", {});
  const log = make("pre", { id: "job-log", tabindex: "0", role: "log", "aria-label": t("Log") });
  const logBox = make("details", { open: true, id: "log-box" }, make("summary", {}, make("h2", {}, t("Log"))), log);
  const element = make("div", {},
    make("div", { class: "bar" }, title, state, actions), steps, progress, error, about, built, logBox, again);

  const act = (text, work, attributes = {}) => {
    const button = make("button", { type: "button", ...attributes }, text);
    button.onclick = async () => {
      button.disabled = true;
      try {
        await work();
      } catch (reason) {
        report(reason);
      }
      button.disabled = false;
    };
    return button;
  };
  const goTo = async (path) => (location.hash = `#job/${(await post(path)).id}`);
  let named = null;
  let shown = "";
  let drawing = Promise.resolve();

  const drawProgress = (name, current, total) => {
    progress.hidden = false;
    if (total) {
      bar.max = total;
      bar.value = current;
      phase.textContent = t("{0}: {1} of {2}", t(name), current, total);
    } else {
      bar.removeAttribute("value");
      phase.textContent = name ? t(name) : "";
    }
  };
  const draw = async () => {
    const job = await get(`/v1/jobs/${id}`, { signal });
    if (named === null) {
      named = job.name || "";
      if (job.model_id) named = (await get(`/v1/models/${job.model_id}`, { signal }).catch(() => ({ name: named }))).name;
    }
    const name = job.name || named || shortId(job.id);
    title.textContent = name;
    document.title = `${name} - qb compile server`;
    state.replaceChildren(stateMark(job));
    if (job.state === "running") drawProgress(job.phase, job.progress?.current, job.progress?.total);
    else progress.hidden = true;
    steps.replaceChildren(stages(job));
    showProblem(error, job.error && { body: job.error });
    about.replaceChildren(
      make("div", {}, make("h2", {}, t("Request")), request(job)),
      make("div", {}, make("h2", {}, t("Result")), make("div", { id: "job-result" }, result(job)), files(job, report)),
    );
    if (shown !== job.state) {
      shown = job.state;
      // only now: a button must not be replaced while it has the focus
      const ended = ENDED.has(job.state);
      actions.replaceChildren(
        ...[
          ended ? null : act(t("Cancel"), async () => { await post(`/v1/jobs/${id}/cancel`); await draw(); }, { id: "cancel" }),
          ended && job.state !== "succeeded" ? act(t("Run again"), () => goTo(`/v1/jobs/${id}/retry`), { id: "retry" }) : null,
          make("a", { href: `#new/${job.id}`, class: "button", id: "change" }, t("Change and build again")),
          job.state === "succeeded" ? act(t("Build again and compare the bytes"), () => goTo(`/v1/jobs/${id}/reproduce`), { id: "reproduce" }) : null,
        ].filter(Boolean),
      );
      again.replaceChildren(commands(job, named));
      if (job.state === "succeeded") {
        logBox.open = false;
        buildView(built, job, { signal }).catch(report);
      }
    }
    return job;
  };
  // one after another, so that an old answer never covers a new one
  const redraw = () => (drawing = drawing.then(draw).catch(report));
  const listen = () =>
    follow(id, signal, (event, data) => {
      if (event === "log") {
        const stick = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
        log.append(data.text ?? "");
        while (log.textContent.length > MAX_LOG && log.firstChild !== log.lastChild) log.firstChild.remove();
        if (stick) log.scrollTop = log.scrollHeight;
      } else if (event === "progress") {
        drawProgress(data.phase, data.current, data.total);
      } else {
        redraw();
      }
    }).then(redraw);
  // a build that was finished before the job was asked for has no events for it, but its log
  const wholeLog = async () => {
    const text = await (await call(`/v1/jobs/${id}/log`, { signal })).text();
    log.textContent = text.slice(-MAX_LOG);
    log.scrollTop = log.scrollHeight;
  };
  draw().then((job) => (ENDED.has(job.state) ? wholeLog() : listen())).catch(report);
  return { title: t("Job"), element };
}
