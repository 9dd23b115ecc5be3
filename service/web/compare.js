// Two builds side by side: what differs in their settings, accuracy, size, estimate, and layers.

import { bytes, decibel, get, make, seconds, shortId, table } from "./common.js";
import { t } from "./i18n.js";
import { errorPlot } from "./plot.js";

/** Every leaf of a document by its JSON pointer. */
export function leaves(value, pointer = "", found = new Map()) {
  if (value !== null && typeof value === "object" && Object.keys(value).length) {
    for (const [key, inner] of Object.entries(value)) {
      leaves(inner, `${pointer}/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`, found);
    }
  } else {
    found.set(pointer, JSON.stringify(value));
  }
  return found;
}

const SETTINGS = ["type", "target_device", "inference_scheme", "config_preset", "cpu_offload", "engine", "engine_version", "use_random_calib", "model_digest", "calibration_digest", "source_revision"];

function differing(jobs) {
  const [a, b] = jobs.map((job) => {
    const settings = Object.fromEntries(SETTINGS.map((key) => [key, job[key]]));
    return leaves({ ...settings, config: job.resolved_config });
  });
  return [...new Set([...a.keys(), ...b.keys()])]
    .filter((key) => a.get(key) !== b.get(key))
    .map((key) => [key, a.get(key) ?? "", b.get(key) ?? ""]);
}

function results([jobA, jobB], [reportA, reportB]) {
  const rows = [];
  const outputs = (job) => new Map((job.summary?.accuracy?.outputs || []).map((o) => [o.name, o]));
  const [a, b] = [outputs(jobA), outputs(jobB)];
  for (const name of new Set([...a.keys(), ...b.keys()])) {
    const show = (output) => (output ? decibel(output.sqnr_db, 2) : "");
    const top1 = (output) => (output?.top1_agreement === null || output?.top1_agreement === undefined ? "" : `${(100 * output.top1_agreement).toFixed(1)} %`);
    rows.push([t("Accuracy of {0}", name), show(a.get(name)), show(b.get(name))]);
    if (top1(a.get(name)) || top1(b.get(name))) rows.push([t("Top-1 agreement of {0}", name), top1(a.get(name)), top1(b.get(name))]);
  }
  for (const kind of ["mxq", "mblt"]) {
    const size = (job) => {
      const artifact = job.artifacts.find((x) => x.kind === kind);
      return artifact ? bytes(artifact.size) : "";
    };
    if (size(jobA) || size(jobB)) rows.push([t("Size of the {0}", kind.toUpperCase()), size(jobA), size(jobB)]);
  }
  const schemes = (report) => new Map((report?.estimate?.schemes || []).map((s) => [s.scheme, s]));
  const [sa, sb] = [schemes(reportA), schemes(reportB)];
  for (const name of new Set([...sa.keys(), ...sb.keys()])) {
    const latency = (s) => (s ? `${s.latency_ms} ms` : "");
    rows.push([t("Estimated latency, {0}", name), latency(sa.get(name)), latency(sb.get(name))]);
  }
  rows.push([t("Run time"), seconds(jobA.timings.run_s), seconds(jobB.timings.run_s)]);
  return rows;
}

function layerSection([a, b], names, context) {
  const other = new Map((b?.layers || []).map((layer) => [layer.name, layer]));
  const both = (a?.layers || []).filter((layer) => other.has(layer.name));
  if (both.length === 0) return [make("p", { class: "quiet" }, t("The two have no layers in common."))];
  const labels = both.map((layer) => layer.name);
  const rows = both
    .map((layer) => ({ name: layer.name, a: layer.sqnr_db, b: other.get(layer.name).sqnr_db }))
    .filter(({ a: x, b: y }) => typeof x === "number" && typeof y === "number" && x !== y)
    .sort((x, y) => Math.abs(y.b - y.a) - Math.abs(x.b - x.a))
    .slice(0, 20);
  return [
    errorPlot(labels, [[`A ${names[0]}`, both.map((l) => l.sqnr_db ?? null)], [`B ${names[1]}`, labels.map((n) => other.get(n).sqnr_db ?? null)]], context),
    rows.length
      ? comparison(rows.map(({ name, a: x, b: y }) => [name, decibel(x, 2), decibel(y, 2), `${y > x ? "+" : ""}${(y - x).toFixed(2)} dB`]), [t("Layer"), "A", "B", "B - A"], t("Layers that differ most"), "layer-differences")
      : make("p", { class: "quiet" }, t("No layer's error differs.")),
  ];
}

function comparison(rows, heads, label, id) {
  return table(heads, rows.map((cells) => make("tr", {}, cells.map((cell, i) => (i ? make("td", { class: "wrap" }, cell) : make("th", { scope: "row" }, cell))))), { label, id });
}

export function compareView([first, second], { signal, report }) {
  const content = make("div", { id: "comparison" }, make("p", { class: "quiet", role: "status" }, t("Reading…")));
  const draw = async () => {
    // out of the address bar: each must stay one part of a path
    const ids = [first, second].map(encodeURIComponent);
    const jobs = await Promise.all(ids.map((id) => get(`/v1/jobs/${id}`, { signal })));
    const reports = await Promise.all(jobs.map((job) =>
      job.artifacts.some((artifact) => artifact.kind === "report")
        ? get(`/v1/jobs/${job.id}/report`, { signal })
        : null));
    const names = jobs.map((job) => job.name || shortId(job.id));
    const settings = differing(jobs);
    content.replaceChildren(
      make("ul", {}, jobs.map((job, i) => make("li", {}, `${"AB"[i]}: `, make("a", { href: `#job/${job.id}` }, names[i]),
        ` ${job.target_device ?? ""} ${job.inference_scheme ?? ""} ${job.config_preset ?? ""}`))),
      make("h2", {}, t("Results")),
      comparison(results(jobs, reports), ["", "A", "B"], t("Results"), "result-differences"),
      make("h2", {}, t("Settings that differ")),
      settings.length
        ? comparison(settings, [t("Setting"), "A", "B"], t("Settings that differ"), "setting-differences")
        : make("p", { class: "quiet" }, t("None: both have the same settings.")),
      make("h2", {}, t("Error by layer")),
      ...layerSection(reports, names, { signal }),
    );
  };
  if (first && second) {
    draw().catch((error) => {
      content.replaceChildren();
      report(error);
    });
  } else {
    content.replaceChildren(make("p", {}, t("Choose two jobs in the list of jobs.")));
  }
  return { title: t("Compare"), element: make("div", {}, make("h1", {}, t("Compare two builds")), content) };
}
