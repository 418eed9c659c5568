// Preferences of this browser, and the dialog that changes them.
import { byId, el } from "./dom.js";

const FIELDS = [
  ["temperature", "Temperature", { min: 0, max: 100, step: "any" }],
  ["top_k", "Top k", { min: 0, step: 1 }],
  ["top_p", "Top p", { min: 0.01, max: 1, step: "any" }],
  ["min_p", "Min p", { min: 0, max: 1, step: "any" }],
  ["repeat_penalty", "Repeat penalty", { min: 0.01, max: 100, step: "any" }],
  ["max_tokens", "Most tokens", { min: 1, step: 1 }],
  ["seed", "Seed", { min: 0, step: 1 }],
];

/** Kept in localStorage, but the key only as long as the tab. */
export class Settings {
  constructor() {
    this.values = JSON.parse(localStorage.getItem("settings") ?? "{}");
    this.key = sessionStorage.getItem("key") ?? "";
  }

  set(name, value) {
    this.values[name] = value;
    localStorage.setItem("settings", JSON.stringify(this.values));
  }

  setKey(value) {
    this.key = value;
    sessionStorage.setItem("key", value);
  }

  /** The fields of a request that the person chose. */
  request() {
    const body = {};
    for (const [name] of FIELDS) if (Number.isFinite(this.values[name])) body[name] = this.values[name];
    if (this.values.reasoning) body.reasoning_effort = this.values.reasoning;
    const tools = this.values.tools?.trim();
    if (tools) body.tools = JSON.parse(tools);
    return body;
  }
}

/** Why a text is no list of tools, or an empty string. */
function toolsFault(text) {
  if (!text.trim()) return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "The tools are no JSON list; expected [{\"type\": \"function\", …}].";
  } catch (error) {
    return `The tools are no JSON: ${error.message}`;
  }
}

/** Connect the dialog. conversation(): the one that is shown; changed(what): called after a change. */
export function connect(settings, conversation, changed) {
  const dialog = byId("settings");
  byId("sampling").append(...FIELDS.map((field) => numberField(settings, field)));
  byId("open-settings").addEventListener("click", () => {
    byId("system").value = conversation().system;
    byId("reasoning").value = settings.values.reasoning ?? "";
    byId("tools").value = settings.values.tools ?? "";
    byId("key").value = settings.key;
    dialog.showModal();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  byId("system").addEventListener("change", (event) => { conversation().system = event.target.value; changed("system"); });
  byId("reasoning").addEventListener("change", (event) => settings.set("reasoning", event.target.value));
  byId("key").addEventListener("change", (event) => { settings.setKey(event.target.value); changed("key"); });
  byId("tools").addEventListener("change", (event) => {
    const wrong = toolsFault(event.target.value);
    byId("settings-error").textContent = wrong;
    if (!wrong) settings.set("tools", event.target.value);
  });
  connectTheme(settings);
}

function numberField(settings, [name, label, bounds]) {
  const input = el("input", { type: "number", id: `sampling-${name}`, value: settings.values[name] ?? "", ...bounds });
  input.addEventListener("change", () => {
    if (input.reportValidity()) settings.set(name, input.value === "" ? null : Number(input.value));
  });
  return el("label", { for: input.id }, label, input);
}

function connectTheme(settings) {
  const chosen = byId("theme");
  chosen.value = settings.values.theme ?? "auto";
  const apply = () => {
    if (chosen.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen.value;
  };
  chosen.addEventListener("change", () => { settings.set("theme", chosen.value); apply(); });
  apply();
}
