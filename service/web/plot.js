// Plots of a report: error along the graph, and what each core does when.

import uPlot from "./vendor/uplot/uPlot.esm.js";

import { colour, make } from "./common.js";
import { t } from "./i18n.js";

/**
 * A line plot of decibels over the layers, in execution order.
 *
 * @param names of the layers
 * @param series [[label, values]]; a value is null where there is none
 */
export function errorPlot(names, series, { signal, choose }) {
  const box = make("div", { class: "plot", role: "img", "aria-label": t("Quantization error along the graph; the table below has the numbers.") });
  let plot = null;
  const strokes = ["--accent", "--warn"];
  const draw = () => {
    plot?.destroy();
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    plot = new uPlot(
      {
        width: Math.max(280, box.clientWidth),
        height: 240,
        scales: { x: { time: false } },
        axes: [
          { ...axis, label: t("layer"), labelSize: 20, size: 34, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] },
          { ...axis, label: "SQNR, dB", labelSize: 20, size: 48 },
        ],
        series: [
          { label: t("layer"), value: (_, i) => (i === null || i === undefined ? "" : `${i} ${names[i - 1] ?? ""}`) },
          ...series.map(([label], i) => ({
            label,
            stroke: colour(strokes[i]),
            width: 1.5,
            dash: i ? [5, 3] : undefined,
            points: { show: names.length < 80, size: 5 },
            value: (_, v) => (v === null || v === undefined ? "" : `${v.toFixed(1)} dB`),
          })),
        ],
        cursor: { drag: { x: true, y: false } },
      },
      [names.map((_, i) => i + 1), ...series.map(([, values]) => values)],
      box,
    );
    plot.over.addEventListener("click", () => {
      const name = names[plot.cursor.idx];
      if (name !== undefined) choose?.(name);
    });
  };
  let width = 0;
  new ResizeObserver(() => {
    if (box.clientWidth === width || !box.clientWidth) return;
    width = box.clientWidth;
    if (plot) plot.setSize({ width: Math.max(280, width), height: 240 });
    else draw();
  }).observe(box);
  addEventListener("qb-theme", () => plot && draw(), { signal });
  return box;
}

const LANE = 16;
const GAP = 10;
const LEFT = 110;
const ENGINES = ["in", "compute", "out", "wait"];
const COLOURS = ["#4c8dd6", "#3f9b63", "#c98a2b", "#b9554f"];

/** The estimated timeline of each core: four lanes a core, from data as the report has it. */
export function timelinePlot({ layers, cores }, { signal }) {
  const canvas = make("canvas", { class: "timeline", role: "img", "aria-label": t("Estimated timeline of {0} cores", cores.length) });
  const note = make("p", { class: "quiet", "aria-live": "off" }, t("Point at a span for its layer."));
  const rows = cores.length * ENGINES.length;
  const height = rows * LANE + cores.length * GAP + 24;
  canvas.style.height = `${height}px`;
  const last = cores.reduce((most, core) => core.reduce((m, span) => Math.max(m, span[2]), most), 1);
  const topOf = (core, engine) => core * (ENGINES.length * LANE + GAP) + engine * LANE;
  const draw = () => {
    const scale = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    if (!width) return;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const c = canvas.getContext("2d");
    c.scale(scale, scale);
    c.font = "11px system-ui, sans-serif";
    const room = width - LEFT - 8;
    cores.forEach((spans, core) => {
      ENGINES.forEach((name, engine) => {
        c.fillStyle = colour("--quiet");
        c.fillText(t("core {0} {1}", core, t(name)), 0, topOf(core, engine) + 12);
        c.fillStyle = colour("--fill");
        c.fillRect(LEFT, topOf(core, engine) + 1, room, LANE - 2);
      });
      for (const [engine, start, end] of spans) {
        c.fillStyle = COLOURS[engine];
        c.fillRect(LEFT + (start / last) * room, topOf(core, engine) + 1, Math.max(0.5, ((end - start) / last) * room), LANE - 2);
      }
    });
    c.fillStyle = colour("--quiet");
    c.fillText("0", LEFT, height - 6);
    c.textAlign = "right";
    c.fillText(t("{0} cycles", last.toLocaleString("en-US")), width - 8, height - 6);
  };
  canvas.onpointermove = (event) => {
    const core = Math.floor(event.offsetY / (ENGINES.length * LANE + GAP));
    const engine = Math.floor((event.offsetY - topOf(core, 0)) / LANE);
    const at = ((event.offsetX - LEFT) / (canvas.clientWidth - LEFT - 8)) * last;
    const span = cores[core]?.find(([e, start, end]) => e === engine && start <= at && at <= end);
    if (span) note.textContent = `${layers[span[3]] ?? ""}: ${t(ENGINES[span[0]])}, ${t("cycles {0} to {1}", span[1], span[2])}`;
  };
  new ResizeObserver(draw).observe(canvas);
  addEventListener("qb-theme", draw, { signal });
  return make("div", {}, canvas, note);
}
