// A new job: files by drop or choice, device, scheme and preset from the server.

import { bytes, get, make, once, post, send, showProblem } from "./common.js";
import { configEditor } from "./config-editor.js";
import { t } from "./i18n.js";

/** Every file of what was dropped, those of folders too. */
async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry.isDirectory)) return [...transfer.files];
  const files = [];
  const walk = async (entry) => {
    if (entry.isFile) {
      files.push(await new Promise((done, fail) => entry.file(done, fail)));
      return;
    }
    const reader = entry.createReader();
    for (;;) {
      // a reader gives a hundred at a time
      const some = await new Promise((done, fail) => reader.readEntries(done, fail));
      if (some.length === 0) return;
      for (const inner of some) await walk(inner);
    }
  };
  for (const entry of entries) await walk(entry);
  return files;
}

function dropZone({ id, label, note, accept, report, changed }) {
  let files = [];
  let kept = null;
  const input = make("input", { type: "file", id, class: "away", accept, multiple: true, "aria-describedby": `${id}-files ${id}-note` });
  const list = make("div", { class: "chosen", id: `${id}-files` });
  const take = (found) => {
    files = found;
    const size = files.reduce((sum, file) => sum + file.size, 0);
    const names = files.slice(0, 3).map((file) => file.name).join(", ");
    if (files.length) kept = null;
    list.textContent = files.length === 0 ? (kept ? t("{0}, which the server has", kept.name) : "") : `${names}${files.length > 3 ? " …" : ""} (${files.length > 1 ? `${t("{0} files", files.length)}, ` : ""}${bytes(size)})`;
    changed?.(files);
  };
  input.onchange = () => take([...input.files]);
  const zone = make("div", { class: "drop", id: `${id}-zone` },
    make("label", { for: id }, label), make("small", { id: `${id}-note` }, note),
    // the browser's own button speaks the browser's language
    make("div", { class: "choose" }, input, make("label", { for: id, class: "button" }, t("Choose files"))), list);
  const over = (on) => (event) => {
    event.preventDefault();
    zone.classList.toggle("over", on);
  };
  zone.addEventListener("dragenter", over(true));
  zone.addEventListener("dragover", over(true));
  zone.addEventListener("dragleave", over(false));
  zone.addEventListener("drop", async (event) => {
    over(false)(event);
    try {
      const found = await dropped(event.dataTransfer);
      input.value = "";
      take(found);
    } catch (error) {
      report(error);
    }
  });
  return {
    element: zone,
    files: () => files,
    /** What the server has already, and which is used when no file is chosen. */
    keep: (found) => {
      kept = found;
      take([]);
    },
    kept: () => kept,
  };
}

/** ``x=1,3,224,224 y=1,8`` as an object. */
export function shapesOf(text) {
  const shapes = {};
  for (const part of text.trim().split(/\s+/).filter(Boolean)) {
    const equals = part.lastIndexOf("=");
    const shape = part.slice(equals + 1).split(",").map(Number);
    if (equals < 1 || shape.some((n) => !Number.isInteger(n) || n < 1)) {
      throw new Error(t("{0}: write it like x=1,3,224,224", part));
    }
    shapes[part.slice(0, equals)] = shape;
  }
  return shapes;
}

export function formView([like], { signal, report }) {
  const select = (id, ...options) => make("select", { id }, options);
  const device = select("device");
  const scheme = select("scheme");
  const preset = select("preset", make("option", { value: "" }, t("none")));
  const type = select("type", ...["compile", "parse", "quantize"].map((x) => make("option", {}, x)));
  const presetNote = make("small", { id: "preset-note" });
  const shapes = make("input", { id: "shapes", placeholder: "x=1,3,224,224", autocomplete: "off" });
  const revision = make("input", { id: "revision", autocomplete: "off" });
  const labels = make("input", { id: "labels", placeholder: "team=vision", autocomplete: "off" });
  const name = make("input", { id: "name", autocomplete: "off" });
  const offload = make("input", { type: "checkbox", id: "offload" });
  const problem = make("div", { id: "form-error", class: "problem", role: "alert", hidden: true });
  const status = make("p", { id: "form-status", role: "status" });
  const bar = make("progress", { id: "form-bar", hidden: true, max: "1", "aria-label": t("Progress") });
  const submit = make("button", { type: "submit", class: "primary" }, t("Start the job"));

  const model = dropZone({
    id: "model", label: t("Model"), report, accept: ".onnx,.mblt,.data,.bin,.weights",
    note: t("Drop an .onnx file here (with its external data, if any) or an .mblt, or choose it."),
    changed: (files) => {
      const mblt = files.some((file) => /\.mblt$/i.test(file.name));
      if (mblt) type.value = "quantize";
      else if (type.value === "quantize") type.value = "compile";
      adapt();
    },
  });
  const samples = dropZone({
    id: "calibration", label: t("Calibration data"), report, accept: ".zip,.tar,.gz,.tgz,.zst,.npy,.npz,image/*",
    note: t("Drop an archive, a folder or samples. Without any, random numbers are used: not for release."),
  });
  const config = configEditor({ report: (error) => showProblem(problem, error), preset: () => preset.value });

  let devices = [];
  let presets = [];
  const field = (text, control, note) => make("label", {}, text, control, note);
  const fields = {
    scheme: field(t("Inference scheme"), scheme),
    shapes: field(t("Input shapes"), shapes, make("small", {}, t("For inputs whose model leaves dimensions open; several with spaces between."))),
    offload: make("label", { class: "check" }, offload, ` ${t("Run layers that the NPU lacks on the CPU")}`),
  };
  function adapt() {
    fields.scheme.hidden = type.value === "parse";
    samples.element.hidden = type.value === "parse";
    fields.shapes.hidden = type.value === "quantize";
    fields.offload.hidden = type.value === "quantize";
  }
  const fillSchemes = () => {
    const found = devices.find((d) => d.name === device.value);
    const before = scheme.value;
    scheme.replaceChildren(...(found?.schemes || []).map((x) => make("option", {}, x)));
    if (found?.schemes.includes(before)) scheme.value = before;
  };
  /** Fill in what another job asked for. */
  const fillFrom = async (id) => {
    const job = await get(`/v1/jobs/${encodeURIComponent(id)}`, { signal });
    const asked = job.request;
    const source = asked.model_id || asked.mblt_id;
    const nameOf = async (path) => (await get(path, { signal }).catch(() => ({ name: source }))).name;
    const path = source.startsWith("mdl_") ? "models" : "artifacts";
    model.keep({ id: source, name: await nameOf(`/v1/${path}/${source}`) });
    if (asked.calibration_id) {
      samples.keep({ id: asked.calibration_id, name: await nameOf(`/v1/calibrations/${asked.calibration_id}`) });
    }
    type.value = asked.type;
    if (asked.target_device) device.value = asked.target_device;
    fillSchemes();
    if (asked.inference_scheme) scheme.value = asked.inference_scheme;
    preset.value = asked.config_preset ?? "";
    preset.onchange();
    offload.checked = Boolean(asked.cpu_offload);
    shapes.value = Object.entries(asked.input_shapes || {}).map(([key, shape]) => `${key}=${shape.join(",")}`).join(" ");
    revision.value = asked.source_revision ?? "";
    labels.value = Object.entries(asked.labels || {}).map(([key, value]) => `${key}=${value}`).join(" ");
    name.value = asked.name ?? "";
    if (asked.compile_config) config.fill(asked.compile_config);
    adapt();
  };
  type.onchange = adapt;
  device.onchange = fillSchemes;
  preset.onchange = () => (presetNote.textContent = presets.find((p) => p.name === preset.value)?.description ?? "");
  adapt();
  Promise.all([once("/v1/devices"), once("/v1/presets")]).then(([deviceList, presetList]) => {
    devices = deviceList;
    presets = presetList;
    device.replaceChildren(...devices.map((d) => make("option", { value: d.name }, `${d.name} (${d.chip})`)));
    preset.append(...presets.map((p) => make("option", {}, p.name)));
    fillSchemes();
    return like ? fillFrom(like) : null;
  }).catch(report);

  const upload = async (path, parts, what) => {
    const size = parts.reduce((sum, part) => sum + (part[1].size || 0), 0);
    bar.hidden = false;
    status.textContent = t("Sending {0}, {1}", what, bytes(size));
    try {
      return await send(path, parts, {
        signal,
        progress: (sent, total) => {
          bar.value = total ? sent / total : 0;
          if (sent === total) status.textContent = t("The server checks {0}", what);
        },
      });
    } finally {
      bar.hidden = true;
    }
  };
  const modelParts = (files) => {
    const main = files.filter((file) => /\.(onnx|mblt)$/i.test(file.name));
    if (files.length === 0) throw new Error(t("Choose a model first."));
    if (main.length !== 1 && files.length > 1) throw new Error(t("Choose one .onnx or .mblt file; others with it are its external data."));
    const first = main[0] ?? files[0];
    const rest = files.filter((file) => file !== first);
    return [first, [["file", first, first.name], ...rest.map((file) => ["external_data", file, file.name])]];
  };
  const labelsOf = (text) => {
    const found = {};
    for (const part of text.split(/[\s,]+/).filter(Boolean)) {
      const equals = part.indexOf("=");
      if (equals < 1) throw new Error(t("{0}: write a label like team=vision", part));
      found[part.slice(0, equals)] = part.slice(equals + 1);
    }
    return found;
  };
  const start = async () => {
    showProblem(problem, null);
    const request = { type: type.value };
    const known = model.kept();
    const [main, parts] = known ? [known, null] : modelParts(model.files());
    const settings = await config.value();
    if (settings !== undefined) request.compile_config = settings;
    if (device.value) request.target_device = device.value;
    if (type.value !== "parse") request.inference_scheme = scheme.value;
    if (type.value !== "quantize") {
      request.cpu_offload = offload.checked;
      const found = shapesOf(shapes.value);
      if (Object.keys(found).length) request.input_shapes = found;
    }
    if (preset.value) request.config_preset = preset.value;
    if (revision.value.trim()) request.source_revision = revision.value.trim();
    request.labels = labelsOf(labels.value);
    request.name = name.value.trim() || main.name;
    const uploaded = known ?? (await upload("/v1/models", parts, main.name));
    request[type.value === "quantize" ? "mblt_id" : "model_id"] = uploaded.id;
    if (type.value !== "parse") {
      const files = samples.files();
      if (files.length) {
        const what = files.length === 1 ? files[0].name : t("{0} files", files.length);
        request.calibration_id = (await upload("/v1/calibrations", files.map((file) => ["file", file, file.name]), what)).id;
      } else if (samples.kept()) {
        request.calibration_id = samples.kept().id;
      } else {
        request.use_random_calib = true;
      }
    }
    status.textContent = t("Starting the job");
    location.hash = `#job/${(await post("/v1/jobs", request)).id}`;
  };
  const form = make("form", { id: "form", novalidate: true },
    make("div", { class: "drops" }, model.element, samples.element),
    make("div", { class: "fields" },
      field(t("Type"), type),
      field(t("Target device"), device),
      fields.scheme,
      field(t("Preset"), preset, presetNote),
      fields.shapes,
      field(t("Name"), name),
      field(t("Source revision"), revision),
      field(t("Labels"), labels)),
    fields.offload, config.element,
    make("div", { class: "bar" }, submit, bar), status, problem);
  form.onsubmit = async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      await start();
    } catch (error) {
      status.textContent = "";
      if (error.name !== "AbortError") showProblem(problem, error);
    }
    submit.disabled = false;
  };
  return { title: t("New job"), element: make("div", {}, make("h1", {}, t("New job")), form) };
}
