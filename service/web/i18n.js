// Texts of the pages in the reader's language; the key of a text is its English form.

import { KO } from "./ko.js";

export const LANGUAGES = { en: "English", ko: "한국어" };
const TEXTS = { en: {}, ko: KO };
const KEPT = "qb-language";

let current = localStorage.getItem(KEPT);
if (!Object.hasOwn(LANGUAGES, current ?? "")) {
  const wanted = navigator.languages.map((name) => name.slice(0, 2));
  current = wanted.find((name) => Object.hasOwn(LANGUAGES, name)) ?? "en";
}

export const language = () => current;

export function setLanguage(code) {
  current = code;
  localStorage.setItem(KEPT, code);
}

/** The text in the reader's language, with {0}, {1} … filled in. */
export function t(text, ...values) {
  const table = TEXTS[current];
  const found = Object.hasOwn(table, text) ? table[text] : text;
  return found.replace(/\{(\d)\}/g, (whole, i) => (i < values.length ? String(values[i]) : whole));
}

const STATES = { timed_out: "timed out" };
export const stateName = (state) => t(STATES[state] ?? state);
