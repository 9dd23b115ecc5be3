// The commands that do a job again: curl, the command line, and Python.

const quote = (text) => (/^[A-Za-z0-9_./:=,@%+-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`);
// a name is never an option, and never a path elsewhere
const fileOf = (name) => {
  const last = String(name || "").split(/[/\\]/).pop() || "model.onnx";
  return last.startsWith("-") ? `./${last}` : last;
};

function python(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([k, v]) => `${python(k)}: ${python(v)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

export function curlOf(job, origin, withToken) {
  const auth = withToken ? ` -H "Authorization: Bearer $QB_TOKEN"` : "";
  const body = { ...job.request };
  delete body.validate_only;
  const lines = [
    `curl -fsS${auth} ${quote(`${origin}/v1/jobs`)} --json ${quote(JSON.stringify(body))}`,
    `curl -fsS${auth} ${quote(`${origin}/v1/jobs/${job.id}?wait=30`)}`,
  ];
  for (const artifact of job.artifacts) {
    if (["mxq", "mblt"].includes(artifact.kind)) {
      lines.push(`curl -fsSL${auth} ${quote(origin + artifact.content_url)} -o ${quote(fileOf(artifact.name))}`);
    }
  }
  return lines.join("\n");
}

export function commandOf(job, origin, modelName) {
  const request = job.request;
  const model = fileOf(modelName);
  const stem = model.replace(/\.(onnx|mblt)$/i, "");
  const given = job.type === "quantize" ? ["--mblt", model] : ["--model", model];
  const words = ["qbcompiler", job.type, "--server", origin, ...given];
  for (const [name, shape] of Object.entries(request.input_shapes || {})) {
    words.push("--input-shape", `${name}=${shape.join(",")}`);
  }
  if (job.type !== "parse") {
    if (request.use_random_calib) words.push("--use-random-calib");
    else words.push("--calib-data-path", "calibration");
    if (request.inference_scheme) words.push("--inference-scheme", request.inference_scheme);
    if (request.config_preset) words.push("--config-preset", request.config_preset);
  }
  if (request.target_device) words.push("--target-device", request.target_device);
  if (request.compile_config) words.push("--compile-config", "config.json");
  if (request.cpu_offload && job.type !== "quantize") words.push("--cpu-offload");
  if (request.source_revision) words.push("--source-revision", request.source_revision);
  words.push("--output", `${stem}.${job.type === "parse" ? "mblt" : "mxq"}`);
  const command = words.map(quote).join(" ");
  if (!request.compile_config) return command;
  return `cat > config.json <<'END'\n${JSON.stringify(request.compile_config, null, 2)}\nEND\n${command}`;
}

export function pythonOf(job, origin, modelName) {
  const request = job.request;
  const call = job.type === "parse" ? "mblt_compile" : "mxq_compile";
  const model = fileOf(modelName);
  const keys = ["target_device", "config_preset", "compile_config"];
  const entries = { model };
  if (job.type !== "quantize") keys.push("cpu_offload");
  if (job.type !== "parse") {
    keys.push("inference_scheme");
    if (request.use_random_calib) entries.use_random_calib = true;
    else entries.calib_data_path = "calibration";
  }
  for (const key of keys) {
    if (request[key] !== undefined && request[key] !== null) entries[key] = request[key];
  }
  if (request.input_shapes) entries.input_shape_dict = request.input_shapes;
  entries.save_path = `${model.replace(/\.(onnx|mblt)$/i, "")}.${job.type === "parse" ? "mblt" : "mxq"}`;
  entries.server = origin;
  const lines = Object.entries(entries).map(([k, v]) => `    ${k}=${python(v)},`);
  return `from qbcompiler import ${call}\n\n${call}(\n${lines.join("\n")}\n)`;
}
