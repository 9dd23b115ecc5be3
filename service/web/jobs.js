// The list of jobs, live, with filters; two of them can be compared.

import { decibel, get, make, once, seconds, shortId, table } from "./common.js";
import { stateName, t } from "./i18n.js";

const LOOK_MS = 2000;
const STATES = ["queued", "running", "succeeded", "failed", "cancelled", "timed_out"];
const TYPES = ["compile", "parse", "quantize"];
// the filters outlive a look at a job
const chosen = { state: "", type: "", target_device: "", label: "" };

function accuracyOf(job) {
  const output = job.summary?.accuracy?.outputs?.[0];
  if (!output) return "";
  const top1 = output.top1_agreement;
  const share = top1 === null || top1 === undefined ? "" : `, top-1 ${(100 * top1).toFixed(1)} %`;
  return decibel(output.sqnr_db) + share;
}

export function stateMark(job) {
  const phase = job.state === "running" && job.phase ? `: ${t(job.phase)}` : "";
  return make("span", { class: `state ${job.state}` }, stateName(job.state) + phase);
}

function progressOf(job) {
  if (job.state !== "running" || !job.progress?.total) return null;
  return make("progress", { max: job.progress.total, value: job.progress.current, "aria-label": t("Progress") });
}

export function jobsView(_, { signal, report }) {
  const picked = new Set();
  const older = [];
  let cursor = null;
  let drawn = "";

  const select = (key, label, options, names = (x) => x) => {
    const box = make("select", { id: `filter-${key}` }, make("option", { value: "" }, t("all")),
      options.map((x) => make("option", { value: x }, names(x))));
    box.value = chosen[key];
    box.onchange = () => filter(key, box.value);
    return make("label", {}, label, box);
  };
  const filter = (key, value) => {
    chosen[key] = value;
    older.length = 0;
    draw().catch(report);
  };
  const devices = select("target_device", t("Device"), []);
  once("/v1/devices").then((found) => {
    const box = devices.querySelector("select");
    box.append(...found.map((d) => make("option", {}, d.name)));
    box.value = chosen.target_device;
  }).catch(report);
  const label = make("input", { id: "filter-label", placeholder: "team=vision", autocomplete: "off", size: "14" });
  label.value = chosen.label;
  label.onchange = () => filter("label", label.value.trim());

  const body = make("tbody", { id: "jobs" });
  const empty = make("p", { class: "quiet", id: "no-jobs", hidden: true });
  const more = make("button", { type: "button", id: "more", hidden: true }, t("Older jobs"));
  const compare = make("button", { type: "button", id: "compare", disabled: true }, t("Compare two"));
  compare.onclick = () => (location.hash = `#compare/${[...picked].join("/")}`);

  const pick = (job) => {
    const box = make("input", { type: "checkbox", "aria-label": t("Compare {0}", job.name || job.id) });
    box.checked = picked.has(job.id);
    box.disabled = job.state !== "succeeded";
    box.onchange = () => {
      if (box.checked) picked.add(job.id);
      else picked.delete(job.id);
      compare.disabled = picked.size !== 2;
    };
    return box;
  };
  const row = (job) =>
    make(
      "tr",
      { "data-job": job.id },
      make("td", {}, pick(job)),
      make("td", { class: "name" }, make("a", { href: `#job/${job.id}` }, job.name || shortId(job.id))),
      make("td", {}, job.type),
      make("td", {}, stateMark(job), progressOf(job), job.cache === "hit" ? make("small", {}, ` ${t("from the cache")}`) : null),
      make("td", {}, job.target_device || ""),
      make("td", {}, job.inference_scheme || ""),
      make("td", {}, job.config_preset || ""),
      make("td", {}, accuracyOf(job)),
      make("td", { class: "number" }, seconds(job.timings.run_s)),
      make("td", {}, new Date(job.created_at).toLocaleString(document.documentElement.lang)),
    );
  const query = (extra = {}) => {
    const search = new URLSearchParams({ limit: "30", ...extra });
    for (const [key, value] of Object.entries(chosen)) if (value) search.set(key, value);
    return `/v1/jobs?${search}`;
  };
  const draw = async () => {
    const page = await get(query(), { signal });
    report(null);
    if (older.length === 0) cursor = page.next_cursor;
    const seen = new Set(page.items.map((job) => job.id));
    const all = [...page.items, ...older.filter((job) => !seen.has(job.id))];
    const filtered = Object.values(chosen).some(Boolean);
    empty.hidden = all.length > 0;
    empty.replaceChildren(
      filtered ? t("No job is like that.") : make("a", { href: "#new" }, t("No jobs yet. Start the first one.")),
    );
    more.hidden = !cursor;
    const text = JSON.stringify(all);
    // what has the focus must not be replaced for nothing
    if (text === drawn) return;
    drawn = text;
    const focused = document.activeElement?.closest?.("tr")?.dataset.job;
    const tag = document.activeElement?.tagName;
    body.replaceChildren(...all.map(row));
    if (focused) body.querySelector(`tr[data-job="${CSS.escape(focused)}"] ${tag}`)?.focus();
  };
  more.onclick = async () => {
    try {
      const page = await get(query({ cursor }), { signal });
      older.push(...page.items);
      cursor = page.next_cursor;
      drawn = "";
      await draw();
    } catch (error) {
      report(error);
    }
  };
  const look = async () => {
    while (!signal.aborted) {
      try {
        if (!document.hidden) await draw();
      } catch (error) {
        report(error);
      }
      await new Promise((wake) => setTimeout(wake, LOOK_MS));
    }
  };
  look();

  const heads = [make("span", { class: "away" }, t("Compare")), t("Job"), t("Type"), t("State"), t("Device"),
    t("Scheme"), t("Preset"), t("Accuracy"), [t("Run time")], t("Made")];
  const list = table(heads, [], { label: t("Jobs") });
  list.querySelector("tbody").replaceWith(body);
  return {
    title: t("Jobs"),
    element: make(
      "div",
      {},
      make("div", { class: "bar" },
        make("h1", {}, t("Jobs")),
        make("a", { href: "#new", class: "button primary" }, t("New job"))),
      make("div", { class: "bar filters" },
        select("state", t("State"), STATES, stateName),
        select("type", t("Type"), TYPES),
        devices,
        make("label", {}, t("Label"), label),
        compare),
      list,
      empty,
      more,
    ),
  };
}
