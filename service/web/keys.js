// The caller's token, and the keys that the server signs provenance with.

import { copyButton, get, make, setToken, token } from "./common.js";
import { t } from "./i18n.js";

export function keysView(_, { report }) {
  const input = make("input", { type: "password", id: "token", autocomplete: "off" });
  const state = make("p", { role: "status", id: "token-state" });
  const show = () => {
    state.textContent = token() ? t("A token is in use.") : t("No token is in use.");
  };
  const form = make(
    "form",
    {},
    make("label", {}, t("Access token"), input),
    make("p", { class: "quiet" }, t("It is kept until this tab is closed.")),
    make(
      "div",
      { class: "bar" },
      make("button", { type: "submit", class: "primary" }, t("Use it")),
      make("button", { type: "button", onclick: () => { setToken(""); show(); } }, t("Forget it")),
    ),
    state,
  );
  form.onsubmit = (event) => {
    event.preventDefault();
    if (input.value.trim()) setToken(input.value.trim());
    input.value = "";
    show();
    draw().catch(report);
  };
  show();
  const keys = make("div", { id: "signing-keys" });
  const draw = async () => {
    const found = await get("/v1/keys");
    keys.replaceChildren(
      ...found.map((key) =>
        make(
          "section",
          { class: "code" },
          make("p", {}, `${key.algorithm} `, make("code", {}, key.keyid)),
          copyButton(() => key.pem),
          make("pre", { tabindex: "0" }, key.pem),
        ),
      ),
    );
    if (found.length === 0) {
      keys.replaceChildren(make("p", { class: "quiet" }, t("This server signs nothing; its operator can give it a key.")));
    }
  };
  draw().catch(report);
  return {
    title: t("Keys"),
    element: make(
      "div",
      {},
      make("h1", {}, t("Keys")),
      form,
      make("h2", {}, t("Keys that sign provenance")),
      make("p", { class: "quiet" }, t("Packages are checked against them with"), " ", make("code", {}, "qbserver verify")),
      keys,
    ),
  };
}
