// The graph of a build: a canvas with zoom, search and keys, and the facts of the chosen layer.

import { colour, decibel, facts, make, number } from "./common.js";
import { t } from "./i18n.js";

const FONT = "system-ui, sans-serif";
const HEIGHT = 44;
const MOST_FOUND = 40;
const [LEAST_ZOOM, MOST_ZOOM] = [0.01, 3];

/** Nodes (inputs, layers, outputs) and edges as index pairs, without doubles. */
export function nodesAndEdges(graph) {
  const nodes = graph.inputs.map((name) => ({ name, kind: "input", op: "input" }));
  const makers = new Map(graph.inputs.map((name, i) => [name, i]));
  for (const layer of graph.layers) {
    for (const output of layer.outputs) makers.set(output, nodes.length);
    nodes.push({ name: layer.name, kind: "layer", op: layer.op, layer });
  }
  const seen = new Set();
  const edges = [];
  const join = (value, to) => {
    const from = makers.get(value);
    if (from === undefined || from === to || seen.has(`${from} ${to}`)) return;
    seen.add(`${from} ${to}`);
    edges.push([from, to]);
  };
  nodes.forEach((node, i) => node.layer?.inputs.forEach((value) => join(value, i)));
  for (const name of graph.outputs) {
    nodes.push({ name, kind: "output", op: "output" });
    join(name, nodes.length - 1);
  }
  return { nodes, edges };
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** Colour of an error: from 10 dB (bad) to 45 dB and more (good), readable without red and green. */
export function errorColour(sqnr) {
  if (sqnr === undefined) return null;
  const share = sqnr === null ? 1 : Math.min(1, Math.max(0, (sqnr - 10) / 35));
  return `hsl(${Math.round(10 + share * 200)} 75% ${Math.round(42 + 6 * share)}%)`;
}

function details(node, errors) {
  const { layer } = node;
  if (!layer) return facts([[t("Name"), node.name], [t("Kind"), t(node.kind)]]);
  const found = errors?.get(layer.name);
  const shape = (x) => `[${x.join(", ")}]`;
  const tensors = (list) => (list || []).map((x) =>
    `${x.name}: ${x.dtype}${x.scale === undefined || x.scale === null ? "" : `, ${t("scale")} ${Array.isArray(x.scale) ? `${x.scale.length} ×` : x.scale}`}` +
    `${x.zero_point === undefined || x.zero_point === null ? "" : `, ${t("zero point")} ${x.zero_point}`}`).join("; ");
  return facts([
    [t("Name"), layer.name],
    [t("Operator"), layer.op],
    [t("Made from"), layer.source.join(", ")],
    [t("Runs on"), [layer.device?.toUpperCase(), layer.place].filter(Boolean).join(", ")],
    [t("Why"), layer.reason],
    [t("Inputs"), layer.inputs.join(", ")],
    [t("Outputs"), layer.outputs.join(", ")],
    [t("Shapes"), layer.shapes.map(shape).join(" ")],
    [t("Parameters"), number(layer.parameters)],
    [t("Multiply-adds"), number(layer.macs)],
    [t("Error so far"), found && "sqnr_db" in found ? decibel(found.sqnr_db, 2) : ""],
    [t("Error of its own"), found && "own_sqnr_db" in found ? decibel(found.own_sqnr_db, 2) : ""],
    [t("Bits"), found?.bits && `${found.bits.activation}/${found.bits.weight ?? "-"}: ${found.bits.why}`],
    [t("Read as"), tensors(found?.inputs)],
    [t("Written as"), tensors(found?.outputs)],
    ...Object.entries(layer.attributes).map(([name, value]) => [name, JSON.stringify(value)]),
  ]);
}

export class GraphView {
  /**
   * @param graph of GET /v1/jobs/JOB/graph
   * @param errors a Map from a layer's name to its entry in the report, or null
   */
  constructor(graph, errors, { signal }) {
    Object.assign(this, nodesAndEdges(graph));
    this.errors = errors;
    this.signal = signal;
    this.byError = false;
    this.chosen = -1;
    this.found = new Set();
    this.view = { x: 0, y: 0, zoom: 1 };
    this.canvas = make("canvas", {
      tabindex: "0", role: "application", id: "graph",
      "aria-label": t("Graph of {0} layers. Arrows: next and previous layer; plus, minus: zoom; 0: all of it; shift and arrows: move.", graph.layers.length),
    });
    this.panel = make("div", { class: "panel", id: "layer", "aria-live": "polite" },
      make("p", { class: "quiet" }, t("Choose a layer.")));
    this.search = make("input", { type: "search", id: "graph-search", autocomplete: "off", placeholder: t("name or operator") });
    this.list = make("ul", { class: "hits", id: "graph-hits" });
    this.count = make("span", { class: "quiet", role: "status" });
    const button = (text, label, work) => make("button", { type: "button", class: "small", "aria-label": label, title: label, onclick: work }, text);
    const paint = make("select", { id: "graph-colour" }, make("option", { value: "" }, t("device")), errors ? make("option", { value: "error" }, t("error")) : null);
    paint.onchange = () => {
      this.byError = paint.value === "error";
      this.legend.replaceChildren(...this.legendOf());
      this.draw();
    };
    this.legend = make("span", { class: "legend" });
    this.legend.append(...this.legendOf());
    this.element = make("section", { class: "graph", "aria-label": t("Graph") },
      make("div", { class: "bar" },
        make("label", {}, t("Search"), this.search), this.count,
        make("label", {}, t("Colour by"), paint), this.legend,
        make("span", { class: "zoom" },
          button("+", t("Zoom in"), () => this.zoom(1.4)),
          button("−", t("Zoom out"), () => this.zoom(1 / 1.4)),
          button("⤢", t("All of it"), () => this.fit()))),
      make("div", { class: "graph-box" }, this.canvas, make("div", { class: "side" }, this.list, this.panel)));
    this.listen();
    this.place();
  }

  legendOf() {
    const mark = (kind, text) => make("span", {}, make("i", { class: `swatch ${kind}` }), text);
    if (this.byError) return [mark("bad", "≤ 10 dB"), mark("ramp", ""), mark("good", "≥ 45 dB")];
    return [mark("npu", "NPU"), mark("cpu", "CPU")];
  }

  place() {
    const measure = document.createElement("canvas").getContext("2d");
    measure.font = `600 13px ${FONT}`;
    for (const node of this.nodes) {
      node.title = short(node.kind === "layer" ? node.op : node.name, 34);
      node.note = short(node.kind === "layer" ? node.name : t(node.kind), 34);
      node.width = Math.ceil(Math.max(70, measure.measureText(node.title).width, measure.measureText(node.note).width * 0.85) + 20);
      node.height = HEIGHT;
    }
    this.canvas.dataset.state = "layout";
    const worker = new Worker("/web/layout.js", { type: "module" });
    this.signal.addEventListener("abort", () => worker.terminate());
    this.ready = new Promise((done, fail) => {
      worker.onmessage = ({ data }) => {
        worker.terminate();
        this.nodes.forEach((node, i) => ([node.x, node.y] = data.places[i]));
        this.lines = data.lines.map((points) => ({ points, box: boxOf(points) }));
        Object.assign(this.canvas.dataset, { state: "ready", nodes: this.nodes.length, layoutMs: Math.round(data.ms) });
        this.fit(true);
        done();
      };
      worker.onerror = (event) => {
        worker.terminate();
        this.canvas.dataset.state = "failed";
        fail(new Error(event.message || t("the graph cannot be drawn")));
      };
    });
    worker.postMessage({ nodes: this.nodes.map(({ width, height }) => ({ width, height })), edges: this.edges });
  }

  listen() {
    const { canvas } = this;
    const options = { signal: this.signal };
    new ResizeObserver(() => this.draw()).observe(canvas);
    addEventListener("qb-theme", () => this.draw(), options);
    canvas.addEventListener("wheel", (event) => {
      // a wheel alone scrolls the page on, unless the canvas is in use
      if (!event.ctrlKey && document.activeElement !== canvas) return;
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), event.offsetX, event.offsetY);
    }, { passive: false });
    const pointers = new Map();
    let moved = 0;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
      if (pointers.size === 1) moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      const now = [event.offsetX, event.offsetY];
      const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
      moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
      if (other) {
        const span = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
        this.zoom(span(now) / span(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
      } else {
        this.pan(now[0] - before[0], now[1] - before[1]);
      }
      pointers.set(event.pointerId, now);
    });
    const up = (event) => {
      if (pointers.delete(event.pointerId) && moved < 5 && event.type === "pointerup") {
        this.choose(this.at(event.offsetX, event.offsetY));
      }
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("keydown", (event) => this.key(event));
    this.search.addEventListener("input", () => this.find(this.search.value));
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        event.preventDefault();
        const [first] = this.found;
        if (first !== undefined) this.choose(first, true);
      }
    });
  }

  key(event) {
    const step = 60;
    const arrows = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in arrows && event.shiftKey) this.pan(...arrows[event.key]);
    else if (event.key === "ArrowDown" || event.key === "ArrowRight") this.choose(Math.min(this.nodes.length - 1, this.chosen + 1), true);
    else if (event.key === "ArrowUp" || event.key === "ArrowLeft") this.choose(Math.max(0, this.chosen - 1), true);
    else if (event.key === "Home") this.choose(0, true);
    else if (event.key === "End") this.choose(this.nodes.length - 1, true);
    else if (event.key === "+" || event.key === "=") this.zoom(1.25);
    else if (event.key === "-") this.zoom(0.8);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
  }

  find(text) {
    const wanted = text.trim().toLowerCase();
    this.found = new Set();
    if (wanted) {
      this.nodes.forEach((node, i) => {
        if (node.name.toLowerCase().includes(wanted) || node.op.toLowerCase().includes(wanted)) this.found.add(i);
      });
    }
    this.count.textContent = wanted ? t("{0} found", this.found.size) : "";
    this.list.replaceChildren(
      ...[...this.found].slice(0, MOST_FOUND).map((i) =>
        make("li", {}, make("button", { type: "button", class: "small", onclick: () => this.choose(i, true) },
          `${this.nodes[i].op}: ${this.nodes[i].name}`))),
    );
    this.draw();
  }

  /** Choose a layer by its name, and show it. */
  chooseName(name) {
    this.choose(this.nodes.findIndex((node) => node.kind === "layer" && node.name === name), true);
  }

  choose(index, show = false) {
    this.chosen = index;
    const node = this.nodes[index];
    this.canvas.dataset.chosen = node?.name ?? "";
    this.panel.replaceChildren(node ? details(node, this.errors) : make("p", { class: "quiet" }, t("Choose a layer.")));
    if (node && show && node.x !== undefined) {
      const { clientWidth, clientHeight } = this.canvas;
      const zoom = Math.max(this.view.zoom, 0.7);
      this.view = { zoom, x: clientWidth / 2 - node.x * zoom, y: clientHeight / 2 - node.y * zoom };
    }
    this.draw();
  }

  at(x, y) {
    const { view } = this;
    const [gx, gy] = [(x - view.x) / view.zoom, (y - view.y) / view.zoom];
    return this.nodes.findIndex((n) => Math.abs(n.x - gx) <= n.width / 2 && Math.abs(n.y - gy) <= n.height / 2);
  }

  pan(dx, dy) {
    this.view.x += dx;
    this.view.y += dy;
    this.draw();
  }

  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const { view } = this;
    const zoom = Math.min(MOST_ZOOM, Math.max(LEAST_ZOOM, view.zoom * factor));
    view.x = x - ((x - view.x) * zoom) / view.zoom;
    view.y = y - ((y - view.y) * zoom) / view.zoom;
    view.zoom = zoom;
    this.draw();
  }

  /** Show all of it; at first, not smaller than can be read. */
  fit(first = false) {
    const [left, top, right, bottom] = boxOf(this.nodes.flatMap((n) => [[n.x - n.width / 2, n.y - n.height / 2], [n.x + n.width / 2, n.y + n.height / 2]]));
    const { clientWidth, clientHeight } = this.canvas;
    const fitting = Math.min(1, clientWidth / (right - left + 40), clientHeight / (bottom - top + 40));
    const zoom = first ? Math.max(0.6, fitting) : Math.max(LEAST_ZOOM, fitting);
    this.view = { zoom, x: clientWidth / 2 - ((left + right) / 2) * zoom, y: zoom > fitting ? 20 - top * zoom : clientHeight / 2 - ((top + bottom) / 2) * zoom };
    this.draw();
  }

  draw() {
    if (this.waiting || !this.lines) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      const started = performance.now();
      this.paint();
      this.canvas.dataset.drawMs = (performance.now() - started).toFixed(1);
    });
  }

  paint() {
    const { canvas, view } = this;
    const scale = devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const c = canvas.getContext("2d");
    const [line, text, accent, npu, cpu, io, back] = ["--edge", "--text", "--mark", "--npu", "--cpu", "--fill", "--back"].map(colour);
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.fillStyle = back;
    c.fillRect(0, 0, width, height);
    c.setTransform(scale * view.zoom, 0, 0, scale * view.zoom, scale * view.x, scale * view.y);
    const [left, top] = [-view.x / view.zoom, -view.y / view.zoom];
    const [right, bottom] = [left + width / view.zoom, top + height / view.zoom];
    const thin = 1 / Math.max(view.zoom, 0.25);
    c.strokeStyle = line;
    c.lineWidth = 1.3 * thin;
    c.beginPath();
    for (const { points, box } of this.lines) {
      if (box[0] > right || box[2] < left || box[1] > bottom || box[3] < top) continue;
      c.moveTo(...points[0]);
      for (const point of points.slice(1)) c.lineTo(...point);
    }
    c.stroke();
    const readable = view.zoom > 0.3;
    c.textAlign = "center";
    this.nodes.forEach((node, i) => {
      const [x, y] = [node.x - node.width / 2, node.y - node.height / 2];
      if (x > right || x + node.width < left || y > bottom || y + node.height < top) return;
      const ours = node.kind === "layer";
      const sqnr = this.byError ? this.errors?.get(node.name)?.sqnr_db : undefined;
      c.fillStyle = !ours ? io : (this.byError ? errorColour(sqnr) || "#777" : node.layer.device === "cpu" ? cpu : npu);
      c.beginPath();
      if (readable) c.roundRect(x, y, node.width, node.height, ours ? 6 : 20);
      else c.rect(x, y, node.width, node.height);
      c.fill();
      const chosen = i === this.chosen;
      if (chosen || this.found.has(i) || readable) {
        c.strokeStyle = chosen || this.found.has(i) ? accent : line;
        c.lineWidth = chosen ? 4 * thin : this.found.has(i) ? 3 * thin : 1;
        c.stroke();
      }
      if (!readable) return;
      c.fillStyle = ours ? "#fff" : text;
      c.font = `600 13px ${FONT}`;
      c.fillText(node.title, node.x, node.y - 3);
      c.font = `11px ${FONT}`;
      c.fillText(node.note, node.x, node.y + 13);
    });
  }
}

function boxOf(points) {
  const box = [Infinity, Infinity, -Infinity, -Infinity];
  for (const [x, y] of points) {
    if (x < box[0]) box[0] = x;
    if (y < box[1]) box[1] = y;
    if (x > box[2]) box[2] = x;
    if (y > box[3]) box[3] = y;
  }
  return box;
}
