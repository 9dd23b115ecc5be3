// What a finished build is like: its graph, the error of each layer, estimates, and advice.

import { bytes, decibel, get, make, number, table } from "./common.js";
import { GraphView } from "./graph.js";
import { t } from "./i18n.js";
import { errorPlot, timelinePlot } from "./plot.js";

const FIRST_ROWS = 20;

async function orNull(path, signal) {
  try {
    return await get(path, { signal });
  } catch (error) {
    // another engine's package has no graph that can be read
    if (error.status === 404) return null;
    throw error;
  }
}

function accuracySection(layers, context) {
  const names = layers.map((layer) => layer.name);
  const values = (key) => layers.map((layer) => layer[key] ?? null);
  const order = { by: "sqnr_db", all: false };
  const body = make("tbody", { id: "layers" });
  const more = make("button", { type: "button", id: "all-layers" });
  const key = (layer) => layer[order.by] ?? Infinity;
  const row = ({ layer, index }) =>
    make(
      "tr",
      {},
      make("td", { class: "number" }, String(index + 1)),
      make("td", { class: "name" }, make("button", { type: "button", class: "link", onclick: () => context.choose?.(layer.name) }, layer.name)),
      make("td", {}, layer.op),
      make("td", { class: "number" }, decibel(layer.sqnr_db, 2)),
      make("td", { class: "number" }, decibel(layer.own_sqnr_db, 2)),
      make("td", {}, `${layer.bits?.activation ?? "-"}/${layer.bits?.weight ?? "-"}`),
      make("td", { class: "number" }, layer.saturated ? `${(100 * layer.saturated).toFixed(2)} %` : "0 %"),
      make("td", { class: "number" }, layer.used === null || layer.used === undefined ? "" : `${Math.round(100 * layer.used)} %`),
    );
  const draw = () => {
    let rows = layers.map((layer, index) => ({ layer, index }));
    if (order.by !== "index") rows.sort((a, b) => key(a.layer) - key(b.layer));
    if (!order.all) rows = rows.slice(0, FIRST_ROWS);
    body.replaceChildren(...rows.map(row));
    more.hidden = order.all || layers.length <= FIRST_ROWS;
    more.textContent = t("All {0} layers", layers.length);
  };
  more.onclick = () => {
    order.all = true;
    draw();
  };
  const sort = make("select", { id: "layer-order" },
    make("option", { value: "sqnr_db" }, t("worst error so far")),
    make("option", { value: "own_sqnr_db" }, t("worst error of its own")),
    make("option", { value: "index" }, t("execution order")));
  sort.onchange = () => {
    order.by = sort.value;
    draw();
  };
  draw();
  const list = table([[t("No.")], t("Layer"), t("Operator"), [t("Error so far")], [t("Error of its own")], t("Bits"), [t("Saturated")], [t("Range used")]], [], { label: t("Layers") });
  list.querySelector("tbody").replaceWith(body);
  return make(
    "section",
    { id: "accuracy" },
    make("h2", {}, t("Quantization error by layer")),
    make("p", { class: "quiet" }, t("Signal to quantization noise; higher is better. So far: with the errors of all layers before. Of its own: with exact inputs.")),
    errorPlot(names, [[t("Error so far"), values("sqnr_db")], [t("Error of its own"), values("own_sqnr_db")]], context),
    make("div", { class: "bar" }, make("label", {}, t("Order"), sort)),
    list,
    more,
  );
}

function estimateSection(estimate, context) {
  const rows = (estimate.schemes || []).map((s) =>
    make(
      "tr",
      {},
      make("td", {}, s.scheme),
      make("td", { class: "number" }, number(s.cores)),
      make("td", { class: "number" }, number(s.cycles)),
      make("td", { class: "number" }, `${s.latency_ms} ms`),
      make("td", { class: "number" }, number(Math.round(s.inputs_per_s))),
      make("td", { class: "number" }, `${(100 * s.utilisation).toFixed(1)} %`),
      make("td", { class: "number" }, bytes(s.on_chip_bytes)),
      make("td", { class: "number" }, bytes(s.external_bytes)),
    ));
  const section = make(
    "section",
    { id: "estimate" },
    make("h2", {}, t("Estimated time and memory")),
    make("p", { class: "quiet" }, t("Estimates rest on assumptions about the device, which the report lists; they are no measurements.")),
    table([t("Scheme"), [t("Cores")], [t("Cycles")], [t("Latency")], [t("Inputs per second")], [t("Array used")], [t("On chip")], [t("External traffic")]], rows, { label: t("Estimated time and memory") }),
  );
  for (const [scheme, timeline] of Object.entries(estimate.timelines || {})) {
    section.append(make("details", {}, make("summary", {}, t("Timeline, scheme {0}", scheme)), timelinePlot(timeline, context)));
  }
  return section;
}

function adviceSection(report) {
  return make(
    "section",
    {},
    make("h2", {}, t("What to try next")),
    make("ul", {}, report.advice.map((entry) => make("li", {}, make("strong", {}, entry.try), ` - ${entry.because}`))),
  );
}

/** Fill an element with what a job that succeeded made. */
export async function buildView(element, job, { signal }) {
  element.replaceChildren(make("p", { class: "quiet", role: "status" }, t("Reading the report and the graph…")));
  const has = (kind) => job.artifacts.some((artifact) => artifact.kind === kind);
  const [report, graph] = await Promise.all([
    has("report") ? orNull(`/v1/jobs/${job.id}/report`, signal) : null,
    has("mblt") || job.mblt_id ? orNull(`/v1/jobs/${job.id}/graph`, signal) : null,
  ]);
  const layers = report?.layers || [];
  const context = { signal, choose: null };
  const parts = [];
  if (report?.advice?.length) parts.push(adviceSection(report));
  if (graph) {
    const errors = layers.length ? new Map(layers.map((layer) => [layer.name, layer])) : null;
    const view = new GraphView(graph, errors, { signal });
    context.choose = (name) => {
      view.chooseName(name);
      view.element.scrollIntoView({ block: "nearest" });
    };
    parts.push(make("h2", {}, t("Graph of {0} layers", graph.layers.length)), view.element);
  }
  if (layers.length) parts.push(accuracySection(layers, context));
  if (report?.estimate) parts.push(estimateSection(report.estimate, context));
  element.replaceChildren(...parts);
}
