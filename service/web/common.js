// Shared by the pages: elements, requests and plain formatting. All text goes in as text.

import { t } from "./i18n.js";

// at once, so that no page flashes in the other theme
document.documentElement.dataset.theme = localStorage.getItem("qb-theme") || "auto";

/** Layers of an error that are shown; the whole list is in the answer. */
const MOST_LAYERS = 50;

export const find = (id) => document.getElementById(id);

/** Make an element. Text is never markup, and no attribute can carry a script. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) {
      if (typeof value !== "function") throw new TypeError(`${name} must be a function`);
      element.addEventListener(name.slice(2), value);
    } else if (name === "href" && !/^(\/(?!\/)|#|blob:)/.test(value)) {
      // a link of the server's own, or none: other schemes and hosts have no place here
      continue;
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null));
  return element;
}

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || t("the server answered {0}", status));
    this.status = status;
    this.body = body;
  }
}

// -- the token, where the server asks for one; kept for this tab only -----------------------

const TOKEN = "qb-token";
let asking = null;

export const token = () => sessionStorage.getItem(TOKEN) || "";

export function setToken(value) {
  if (value) sessionStorage.setItem(TOKEN, value);
  else sessionStorage.removeItem(TOKEN);
}

export function authorization() {
  return token() ? { Authorization: `Bearer ${token()}` } : {};
}

// many calls may be refused at once: they share one question
function askToken() {
  asking ??= new Promise((answer) => {
    const input = make("input", { type: "password", name: "token", autocomplete: "off", required: true });
    const dialog = make(
      "dialog",
      { "aria-labelledby": "token-title" },
      make(
        "form",
        { method: "dialog" },
        make("h2", { id: "token-title" }, t("Access token")),
        make("label", {}, t("This server asks for a token."), input),
        make("p", { class: "quiet" }, t("It is kept until this tab is closed.")),
        make("button", { type: "submit", class: "primary" }, t("Use it")),
      ),
    );
    dialog.addEventListener("close", () => {
      const given = input.value.trim();
      dialog.remove();
      asking = null;
      if (given) setToken(given);
      answer(Boolean(given));
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

async function problemOf(status, text) {
  try {
    return new Problem(status, JSON.parse(text));
  } catch {
    return new Problem(status, {});
  }
}

export async function call(path, options = {}) {
  let answer;
  const used = token();
  try {
    answer = await fetch(path, {
      ...options,
      headers: { ...authorization(), ...(options.headers || {}) },
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: t("the server cannot be reached"), retryable: true });
  }
  if (answer.status === 401) {
    // another call may have asked meanwhile
    if (token() !== used || (await askToken())) return call(path, options);
  }
  if (answer.ok) return answer;
  throw await problemOf(answer.status, await answer.text());
}

export async function get(path, options) {
  return (await call(path, options)).json();
}

export async function post(path, body) {
  const options = { method: "POST" };
  if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  return (await call(path, options)).json();
}

/** Send files as a form; fetch cannot tell how much was sent, so this does not use it. */
export function send(path, parts, { progress, signal } = {}) {
  const body = new FormData();
  for (const [name, value, filename] of parts) {
    if (filename) body.append(name, value, filename);
    else body.append(name, value);
  }
  return new Promise((done, fail) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    for (const [name, value] of Object.entries(authorization())) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => progress?.(event.loaded, event.total);
    request.onerror = () => fail(new Problem(0, { detail: t("the server cannot be reached") }));
    request.onabort = () => fail(new DOMException("", "AbortError"));
    request.onload = async () => {
      if (request.status === 401 && (await askToken())) {
        send(path, parts, { progress, signal }).then(done, fail);
      } else if (request.status >= 200 && request.status < 300) {
        done(JSON.parse(request.responseText));
      } else {
        fail(await problemOf(request.status, request.responseText));
      }
    };
    signal?.addEventListener("abort", () => request.abort());
    request.send(body);
  });
}

/** Show what is wrong, with its hint and the page of its code; null hides it. */
export function showProblem(element, error) {
  element.replaceChildren();
  element.hidden = !error;
  if (!error) return;
  const body = error.body || error;
  const code = typeof body.code === "string" ? body.code : "";
  const title = code && /^[A-Z_]+$/.test(code)
    ? make("a", { href: `/errors/${code}` }, code)
    : make("span", {}, code);
  const detail = body.detail || error.message || "";
  element.append(make("p", {}, make("strong", {}, title), code ? ": " : "", detail));
  for (const entry of body.errors || []) {
    const where = entry.pointer || entry.parameter || "";
    element.append(make("p", {}, make("code", {}, where), ` ${entry.detail || ""}`));
  }
  const layers = Array.isArray(body.details?.layers) ? body.details.layers : [];
  if (layers.length && typeof layers[0] === "object") {
    element.append(
      table(
        [t("Layer"), t("Operator"), t("Runs on"), t("Why")],
        layers.slice(0, MOST_LAYERS).map((layer) =>
          make("tr", {},
            make("td", { class: "wrap" }, layer.name),
            make("td", {}, layer.op),
            make("td", {}, [layer.device?.toUpperCase(), layer.place].filter(Boolean).join(", ")),
            make("td", { class: "wrap" }, layer.reason ?? ""))),
        { label: t("Layers"), id: "error-layers" },
      ),
    );
  }
  if (body.hint) element.append(make("p", { class: "hint" }, `${t("What to do")}: ${body.hint}`));
  if (body.request_id) {
    element.append(make("p", { class: "quiet" }, `${t("Request")} ${body.request_id}`));
  }
}

// -- formatting -----------------------------------------------------------------------------

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
  return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
}

export const decibel = (value, digits = 1) =>
  value === null || value === undefined ? t("exact") : `${value.toFixed(digits)} dB`;

export const number = (value) =>
  value === null || value === undefined ? "" : value.toLocaleString("en-US").replaceAll(",", " ");

export const shortId = (id) => `${id.slice(0, 4)}…${id.slice(-6)}`;

export function facts(entries) {
  const list = make("dl", {});
  for (const [name, value] of entries) {
    if (value === null || value === undefined || value === "") continue;
    list.append(make("dt", {}, name), make("dd", {}, value));
  }
  return list;
}

/** A table; a heading in brackets is that of a column of numbers. */
export function table(heads, rows, attributes = {}) {
  return make(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": attributes.label },
    make(
      "table",
      { id: attributes.id },
      make("thead", {}, make("tr", {}, heads.map((head) => (Array.isArray(head) ? make("th", { scope: "col", class: "number" }, head[0]) : make("th", { scope: "col" }, head))))),
      make("tbody", {}, rows),
    ),
  );
}

export function copyButton(read) {
  const button = make("button", { type: "button", class: "small" }, t("Copy"));
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(read());
      button.textContent = t("Copied");
    } catch {
      // without https there is no clipboard: leave the text selected
      button.textContent = t("Press Ctrl+C");
      const block = button.parentElement.querySelector("pre");
      if (block) getSelection().selectAllChildren(block);
    }
    setTimeout(() => (button.textContent = t("Copy")), 2000);
  };
  return button;
}

/** A download; with a token, a plain link would not carry it, so a signed one is asked for. */
export function downloadLink(artifact, text) {
  const link = make("a", { href: artifact.content_url, download: artifact.name }, text ?? artifact.name);
  link.onclick = async (event) => {
    if (!token()) return;
    event.preventDefault();
    const { url } = await post(`/v1/artifacts/${artifact.id}/links`, { expires_in: 300 });
    location.href = url;
  };
  return link;
}

/** What the server offers; asked for once. */
const kept = new Map();
export function once(path) {
  if (!kept.has(path)) {
    const asked = get(path);
    asked.catch(() => kept.delete(path));
    kept.set(path, asked);
  }
  return kept.get(path);
}

/** A colour of the style sheet as a canvas takes it: the theme's own, resolved. */
const probe = make("span", { hidden: true });
export function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
