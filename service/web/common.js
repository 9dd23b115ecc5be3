// Shared by the pages: elements, requests and plain formatting. All text goes in as text.

export const find = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || `the server answered ${status}`);
    this.status = status;
    this.body = body;
  }
}

// a token, where the server asks for one, is kept for this tab only
const token = () => sessionStorage.getItem("qb-token");

export function authorization() {
  return token() ? { Authorization: `Bearer ${token()}` } : {};
}

export async function call(path, options = {}) {
  const answer = await fetch(path, {
    ...options,
    headers: { ...authorization(), ...(options.headers || {}) },
  });
  if (answer.status === 401) {
    const given = window.prompt("This server asks for a token:");
    if (given) {
      sessionStorage.setItem("qb-token", given.trim());
      return call(path, options);
    }
  }
  if (answer.ok) return answer;
  let body = {};
  try {
    body = await answer.json();
  } catch {
    body = { detail: `the server answered ${answer.status}` };
  }
  throw new Problem(answer.status, body);
}

export async function get(path) {
  return (await call(path)).json();
}

export function showProblem(element, error) {
  element.replaceChildren();
  element.hidden = !error;
  if (!error) return;
  const body = error.body || error;
  const code = body.code ? `${body.code}: ` : "";
  element.append(make("p", {}, `${code}${body.detail || error.message}`));
  for (const entry of body.errors || []) {
    element.append(make("p", {}, `${entry.pointer || ""} ${entry.detail || ""}`));
  }
  if (body.hint) element.append(make("p", { class: "quiet" }, body.hint));
}

export function bytes(count) {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${value} bytes` : `${value.toFixed(1)} ${units[unit]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 60) return `${value.toFixed(1)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

export function facts(list, entries) {
  list.replaceChildren();
  for (const [name, value] of entries) {
    if (value === null || value === undefined || value === "") continue;
    list.append(make("dt", {}, name), make("dd", {}, value));
  }
}
