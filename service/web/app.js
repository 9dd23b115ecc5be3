// The page at /: jobs live, one job, and a form for a new one.

import { authorization, bytes, call, facts, find, get, make, seconds, showProblem } from "./common.js";

const ENDED = new Set(["succeeded", "failed", "cancelled", "timed_out"]);
let leave = () => {};

// -- the list -------------------------------------------------------------------------------

function accuracy(job) {
  const output = job.summary?.accuracy?.outputs?.[0];
  if (!output) return "";
  const top1 = output.top1_agreement;
  const share = top1 === null || top1 === undefined ? "" : `, top-1 ${(100 * top1).toFixed(1)} %`;
  return output.sqnr_db === null ? "exact" : `${output.sqnr_db.toFixed(1)} dB${share}`;
}

function row(job) {
  const link = make("a", { href: `#job/${job.id}` }, job.name || job.id.slice(0, 14) + "…");
  const state = job.state === "running" && job.phase ? `running: ${job.phase}` : job.state;
  return make(
    "tr",
    {},
    make("td", {}, link),
    make("td", {}, job.type),
    make("td", { class: `state ${job.state}` }, state),
    make("td", {}, job.target_device || ""),
    make("td", {}, job.inference_scheme || ""),
    make("td", {}, job.config_preset || ""),
    make("td", {}, accuracy(job)),
    make("td", { class: "number" }, seconds(job.timings.run_s)),
    make("td", {}, new Date(job.created_at).toLocaleString()),
  );
}

function showJobs() {
  const older = [];
  let cursor = null;
  const query = (extra) => {
    const search = new URLSearchParams({ limit: "30", ...extra });
    if (find("filter-state").value) search.set("state", find("filter-state").value);
    if (find("filter-device").value) search.set("target_device", find("filter-device").value);
    return `/v1/jobs?${search}`;
  };
  const draw = async () => {
    const page = await get(query({}));
    if (older.length === 0) cursor = page.next_cursor;
    const seen = new Set(page.items.map((job) => job.id));
    const all = [...page.items, ...older.filter((job) => !seen.has(job.id))];
    find("jobs").replaceChildren(...all.map(row));
    find("no-jobs").hidden = all.length > 0;
    find("more").hidden = !cursor;
  };
  const again = () => {
    older.length = 0;
    draw().catch(report);
  };
  find("more").onclick = async () => {
    const page = await get(query({ cursor }));
    older.push(...page.items);
    cursor = page.next_cursor;
    draw().catch(report);
  };
  find("filter-state").onchange = again;
  find("filter-device").onchange = again;
  draw().catch(report);
  const timer = setInterval(() => draw().catch(report), 2000);
  leave = () => clearInterval(timer);
}

function report(error) {
  find("health").textContent = error.message;
}

// -- one job --------------------------------------------------------------------------------

function curlOf(job) {
  const body = JSON.stringify(job.request, null, 2).replaceAll("'", "'\\''");
  return `curl -fsS ${location.origin}/v1/jobs -H 'Content-Type: application/json' -d '${body}'`;
}

function drawJob(job) {
  find("job-title").textContent = job.name || job.id;
  find("job-state").textContent = job.state;
  find("job-state").className = `state ${job.state}`;
  find("cancel").hidden = ENDED.has(job.state);
  find("retry").hidden = !ENDED.has(job.state) || job.state === "succeeded";
  find("job-progress").hidden = job.state !== "running";
  if (job.state === "running") drawProgress(job.phase, job.progress?.current, job.progress?.total);
  showProblem(find("job-error"), job.error);
  facts(find("job-facts"), [
    ["job", job.id],
    ["type", job.type],
    ["device", job.target_device],
    ["scheme", job.inference_scheme],
    ["preset", job.config_preset],
    ["CPU offloading", job.cpu_offload ? "yes" : null],
    ["engine", `${job.engine} ${job.engine_version}`],
    ["model SHA-256", job.model_digest],
    ["calibration", job.use_random_calib ? "random: not for release" : job.calibration_digest],
    ["source revision", job.source_revision],
    ["cache", job.cache],
    ["waiting", job.queue_position === null ? null : `${job.queue_position} before it`],
  ]);
  const outputs = job.summary?.accuracy?.outputs || [];
  facts(find("job-result"), [
    ["waited", seconds(job.timings.queue_s)],
    ["ran", seconds(job.timings.run_s)],
    ...outputs.map((output) => [
      `accuracy of ${output.name}`,
      `SQNR ${output.sqnr_db === null ? "exact" : `${output.sqnr_db.toFixed(2)} dB`}, cosine ` +
        `${output.cosine}` +
        (output.top1_agreement === null ? "" : `, top-1 ${(100 * output.top1_agreement).toFixed(1)} %`),
    ]),
    ...(job.summary?.warnings || []).map((text) => ["warning", text]),
  ]);
  find("job-files").replaceChildren(...job.artifacts.map(fileOf));
  find("job-curl").textContent = curlOf(job);
}

function fileOf(artifact) {
  const link = make("a", { href: artifact.content_url, download: artifact.name }, artifact.name);
  // with a token, a plain link would not carry it: ask for a signed one
  link.onclick = async (event) => {
    if (!authorization().Authorization) return;
    event.preventDefault();
    const answer = await call(`/v1/artifacts/${artifact.id}/links`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ expires_in: 300 }),
    });
    location.href = (await answer.json()).url;
  };
  return make("li", {}, link, ` ${bytes(artifact.size)} `, make("code", {}, artifact.sha256));
}

function drawProgress(phase, current, total) {
  const bar = find("job-bar");
  if (total) {
    bar.max = total;
    bar.value = current;
    find("job-phase").textContent = `${phase} ${current} of ${total}`;
  } else {
    bar.removeAttribute("value");
    find("job-phase").textContent = phase || "";
  }
}

function showJob(id) {
  const closing = new AbortController();
  leave = () => closing.abort();
  const log = find("job-log");
  log.textContent = "";
  const draw = async () => drawJob(await get(`/v1/jobs/${id}`));
  find("cancel").onclick = () =>
    call(`/v1/jobs/${id}/cancel`, { method: "POST" }).then(draw, report);
  find("retry").onclick = async () => {
    const answer = await call(`/v1/jobs/${id}/retry`, { method: "POST" });
    location.hash = `#job/${(await answer.json()).id}`;
  };
  draw().catch((error) => showProblem(find("job-error"), error));
  follow(id, closing.signal, (event, data) => {
    if (event === "log") {
      const stick = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
      log.append(data.text ?? "");
      if (stick) log.scrollTop = log.scrollHeight;
    } else if (event === "progress") {
      drawProgress(data.phase, data.current, data.total);
    } else {
      draw().catch(report);
    }
  }).catch((error) => {
    if (error.name !== "AbortError") report(error);
  });
}

// EventSource cannot send a token, so the stream is read by hand; it resumes where it broke off.
async function follow(id, signal, hear) {
  let last = "";
  for (let failures = 0; failures < 20 && !signal.aborted; ) {
    try {
      const answer = await call(`/v1/jobs/${id}/events`, {
        signal,
        headers: last ? { "Last-Event-ID": last } : {},
      });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        failures = 0;
        const parts = (rest + value).split(/\r?\n\r?\n/);
        rest = parts.pop();
        for (const part of parts) {
          const entry = {};
          for (const line of part.split(/\r?\n/)) {
            const colon = line.indexOf(":");
            if (colon > 0) entry[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
          }
          if (entry.id) last = entry.id;
          if (entry.data) hear(entry.event, JSON.parse(entry.data));
        }
      }
      if (ENDED.has((await get(`/v1/jobs/${id}`)).state)) return;
    } catch (error) {
      if (error.name === "AbortError" || error.status === 404) throw error;
      failures += 1;
    }
    await new Promise((wake) => setTimeout(wake, 1000));
  }
}

// -- a new job ------------------------------------------------------------------------------

let devices = [];

function fillForm() {
  const form = find("form");
  const schemes = () => {
    const device = devices.find((d) => d.name === form.device.value);
    const names = device ? device.schemes : [];
    form.scheme.replaceChildren(...names.map((name) => make("option", {}, name)));
  };
  form.device.onchange = schemes;
  schemes();
  form.onsubmit = (event) => {
    event.preventDefault();
    submit(form).catch((error) => {
      find("form-status").textContent = "";
      showProblem(find("form-error"), error);
    });
  };
}

async function upload(path, file) {
  find("form-status").textContent = `sending ${file.name}, ${bytes(file.size)}`;
  const body = new FormData();
  body.append("file", file);
  return (await call(path, { method: "POST", body })).json();
}

function shapesOf(text) {
  const shapes = {};
  for (const part of text.trim().split(/\s+/).filter(Boolean)) {
    const equals = part.lastIndexOf("=");
    const shape = part.slice(equals + 1).split(",").map(Number);
    if (equals < 1 || shape.some((n) => !Number.isInteger(n))) {
      throw new Error(`${part}: write it like x=1,3,224,224`);
    }
    shapes[part.slice(0, equals)] = shape;
  }
  return shapes;
}

async function submit(form) {
  showProblem(find("form-error"), null);
  const request = {
    type: "compile",
    target_device: form.device.value,
    inference_scheme: form.scheme.value,
    cpu_offload: form.offload.checked,
  };
  if (form.preset.value) request.config_preset = form.preset.value;
  if (form.revision.value.trim()) request.source_revision = form.revision.value.trim();
  const shapes = shapesOf(form.shapes.value);
  if (Object.keys(shapes).length) request.input_shapes = shapes;
  const model = form.model.files[0];
  request.model_id = (await upload("/v1/models", model)).id;
  request.name = model.name;
  const samples = form.calibration.files[0];
  if (samples) request.calibration_id = (await upload("/v1/calibrations", samples)).id;
  else request.use_random_calib = true;
  find("form-status").textContent = "starting the job";
  const answer = await call("/v1/jobs", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request),
  });
  find("form-status").textContent = "";
  location.hash = `#job/${(await answer.json()).id}`;
}

// -- which page -----------------------------------------------------------------------------

function route() {
  leave();
  leave = () => {};
  find("health").textContent = "";
  const [page, id] = location.hash.replace(/^#/, "").split("/");
  const name = page === "job" && id ? "job" : page === "new" ? "new" : "jobs";
  for (const other of ["jobs", "job", "new"]) find(`page-${other}`).hidden = other !== name;
  if (name === "jobs") showJobs();
  else if (name === "job") showJob(id);
}

async function start() {
  const [deviceList, presetList] = await Promise.all([get("/v1/devices"), get("/v1/presets")]);
  devices = deviceList;
  const options = devices.map((d) => make("option", {}, d.name));
  find("form").device.replaceChildren(...options);
  find("filter-device").append(...devices.map((d) => make("option", {}, d.name)));
  find("form").preset.append(...presetList.map((p) => make("option", {}, p.name)));
  fillForm();
  window.addEventListener("hashchange", route);
  route();
}

start().catch(report);
