// The configuration as JSON, checked against the server's schema while one types.

import { get, make, once } from "./common.js";
import { t } from "./i18n.js";
import { Validator } from "./vendor/json-schema/index.js";

const MOST_SHOWN = 5;

// errors of the containers say only that something inside is wrong
const OUTER = new Set(["properties", "items", "anyOf", "allOf", "oneOf", "$ref", "prefixItems"]);

function messages(errors) {
  const inner = errors.filter((error) => !OUTER.has(error.keyword));
  return (inner.length ? inner : errors).map((error) => {
    const where = decodeURIComponent(error.instanceLocation.replace(/^#/, "")) || "/";
    return [where, error.error];
  });
}

/** Edit-distance, for "did you mean". */
function distance(a, b) {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= b.length; j += 1) {
      next[j] = Math.min(next[j - 1] + 1, row[j] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
    }
    row = next;
  }
  return row[b.length];
}

/** The object schema that a JSON pointer leads to, as far as it can be told. */
function schemaAt(root, pointer) {
  const resolve = (schema) => {
    for (let i = 0; i < 20 && schema; i += 1) {
      if (schema.$ref?.startsWith("#/")) {
        schema = schema.$ref.slice(2).split("/").reduce((x, key) => x?.[key], root);
      } else if (schema.anyOf) {
        schema = schema.anyOf.find((s) => s.$ref || s.properties) ?? schema.anyOf[0];
      } else {
        break;
      }
    }
    return schema;
  };
  let schema = resolve(root);
  for (const key of pointer.split("/").slice(1)) {
    schema = resolve(schema?.properties?.[key] ?? schema?.items ?? schema?.additionalProperties);
  }
  return schema;
}

/** Say what is wrong with a configuration: [[where, what]]. */
export function check(schema, config) {
  const result = new Validator(schema, "2020-12", false).validate(config);
  if (result.valid) return [];
  const found = messages(result.errors);
  return found.map(([where, what]) => {
    const unknown = /additional propert/i.test(what);
    const at = where.lastIndexOf("/");
    const [parent, key] = [where.slice(0, at), where.slice(at + 1)];
    const known = unknown || what === "False boolean schema." ? Object.keys(schemaAt(schema, parent)?.properties ?? {}) : [];
    if (!known.length || known.includes(key)) return [where, what];
    const nearest = known.sort((a, b) => distance(a, key) - distance(b, key))[0];
    return [where, t("unknown; did you mean {0}?", nearest)];
  });
}

export function configEditor({ report, preset }) {
  const area = make("textarea", {
    id: "config", rows: "9", spellcheck: "false", autocomplete: "off",
    "aria-describedby": "config-state config-note", placeholder: '{ "calibration": { "method": 2 } }',
  });
  const state = make("div", { id: "config-state", role: "status" });
  const fill = make("button", { type: "button", class: "small" }, t("Start from the preset's settings"));
  let wrong = false;
  const show = (lines) => {
    wrong = lines.length > 0;
    area.setAttribute("aria-invalid", String(wrong));
    state.className = wrong ? "problem" : "quiet";
    state.replaceChildren(...lines.slice(0, MOST_SHOWN).map(([where, what]) => make("p", {}, make("code", {}, where), ` ${what}`)));
    if (!wrong && area.value.trim()) state.textContent = t("The configuration is valid.");
  };
  const test = async () => {
    const text = area.value;
    if (!text.trim()) return show([]);
    let config;
    try {
      config = JSON.parse(text);
    } catch (error) {
      return show([["JSON", error.message]]);
    }
    if (config === null || typeof config !== "object" || Array.isArray(config)) {
      return show([["JSON", t("must be an object in braces")]]);
    }
    const schema = await once("/v1/schemas/compile-config");
    // an answer that is late must not speak of an older text
    if (area.value === text) show(check(schema, config));
  };
  let timer = 0;
  area.oninput = () => {
    clearTimeout(timer);
    timer = setTimeout(() => test().catch(report), 200);
  };
  fill.onclick = async () => {
    const name = preset();
    try {
      const config = name ? (await get(`/v1/presets/${encodeURIComponent(name)}`)).config : {};
      area.value = JSON.stringify(config, null, 2);
      await test();
    } catch (error) {
      report(error);
    }
  };
  const element = make("details", { id: "config-box" },
      make("summary", {}, t("Configuration")),
      make("label", {}, t("JSON, laid over the preset"), area),
      make("small", { id: "config-note" }, t("It is checked against the server's schema while you type.")),
      state, fill);
  return {
    element,
    fill: (config) => {
      area.value = JSON.stringify(config, null, 2);
      test().catch(report);
      element.open = true;
    },
    /** The configuration, or undefined for none; throws where it is wrong. */
    value: async () => {
      if (!area.value.trim()) return undefined;
      await test();
      if (wrong) {
        area.closest("details").open = true;
        area.focus();
        throw new Error(t("The configuration is wrong."));
      }
      return JSON.parse(area.value);
    },
  };
}
