// The API's documentation, drawn from openapi.json.

import { find, get, make } from "./common.js";

function typeOf(schema, document) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map((s) => typeOf(s, document)).join(" or ");
  if (schema.enum) return schema.enum.map((v) => JSON.stringify(v)).join(" | ");
  if (schema.type === "array") return `list of ${typeOf(schema.items, document)}`;
  return schema.type || "any";
}

function table(rows) {
  const body = rows.map((cells) => make("tr", {}, ...cells.map((c) => make("td", {}, c ?? ""))));
  return make("div", { class: "scroll" }, make("table", {}, make("tbody", {}, ...body)));
}

function fields(schema, document) {
  const target = schema?.$ref ? document.components.schemas[schema.$ref.split("/").pop()] : schema;
  const required = new Set(target?.required || []);
  return Object.entries(target?.properties || {}).map(([name, field]) => [
    required.has(name) ? `${name} *` : name,
    typeOf(field, document),
    field.description,
  ]);
}

function operation(method, path, entry, document) {
  const summary = make(
    "summary",
    {},
    make("span", { class: "method" }, method.toUpperCase()),
    make("code", {}, path),
    ` ${entry.summary || ""}`,
  );
  const details = make("details", { class: "operation" }, summary);
  if (entry.description) details.append(make("p", {}, entry.description));
  const parameters = (entry.parameters || []).map((p) => [
    p.required ? `${p.name} *` : p.name,
    `${p.in}, ${typeOf(p.schema, document)}`,
    p.description,
  ]);
  if (parameters.length) details.append(make("h3", {}, "Parameters"), table(parameters));
  for (const [media, content] of Object.entries(entry.requestBody?.content || {})) {
    details.append(make("h3", {}, `Body: ${media}`), table(fields(content.schema, document)));
  }
  const answers = Object.entries(entry.responses || {}).map(([status, answer]) => [
    status,
    Object.values(answer.content || {}).map((c) => typeOf(c.schema, document)).join(", "),
    answer.description,
  ]);
  details.append(make("h3", {}, "Answers"), table(answers));
  return details;
}

async function start() {
  const document = await get("/openapi.json");
  const groups = new Map();
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, entry] of Object.entries(methods)) {
      const tag = entry.tags?.[0] || "other";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(method, path, entry, document));
    }
  }
  for (const [tag, operations] of groups) {
    find("operations").append(make("h2", {}, tag), ...operations);
  }
}

start().catch((error) => {
  find("health").textContent = error.message;
});
