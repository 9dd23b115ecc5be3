// The page at /: which view is shown, the language, and the theme.

import { find, get, make, showProblem } from "./common.js";
import { LANGUAGES, language, setLanguage, t } from "./i18n.js";
import { compareView } from "./compare.js";
import { formView } from "./form.js";
import { jobView } from "./job.js";
import { jobsView } from "./jobs.js";
import { keysView } from "./keys.js";

const VIEWS = { "": jobsView, job: jobView, new: formView, compare: compareView, keys: keysView };
let leave = new AbortController();

function route(moveFocus = true) {
  leave.abort();
  leave = new AbortController();
  const [page, ...rest] = location.hash.replace(/^#/, "").split("/");
  const name = page in VIEWS && Object.hasOwn(VIEWS, page) ? page : "";
  const main = find("view");
  const problem = make("div", { class: "problem", role: "alert", hidden: true });
  const { title, element } = VIEWS[name](rest, {
    signal: leave.signal,
    report: (error) => {
      if (error?.name !== "AbortError") showProblem(problem, error);
    },
  });
  main.replaceChildren(problem, element);
  document.title = `${title} - qb compile server`;
  for (const link of document.querySelectorAll("nav a[href^='/#']")) {
    const current = link.getAttribute("href") === `/#${name}`;
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (moveFocus) {
    const heading = main.querySelector("h1");
    heading?.setAttribute("tabindex", "-1");
    heading?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

function frame() {
  document.documentElement.lang = language();
  for (const element of document.querySelectorAll("[data-text]")) {
    element.textContent = t(element.dataset.text);
  }
  for (const element of document.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", t(element.dataset.label));
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("qb-theme", theme);
  dispatchEvent(new Event("qb-theme"));
}

async function health() {
  const { version } = await get("/healthz");
  find("version").textContent = version;
}

const languages = find("language");
languages.append(...Object.entries(LANGUAGES).map(([code, name]) => make("option", { value: code, lang: code }, name)));
languages.value = language();
languages.onchange = () => {
  setLanguage(languages.value);
  frame();
  route(false);
};
const themes = find("theme");
themes.value = localStorage.getItem("qb-theme") || "auto";
setTheme(themes.value);
themes.onchange = () => setTheme(themes.value);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("qb-theme")));
// by hand: the address after # says which view is shown
find("skip").onclick = (event) => {
  event.preventDefault();
  find("view").focus();
};
frame();
addEventListener("hashchange", () => route());
route(false);
health().catch(() => {});
