// What the engines do, looked at every second.
import { stats } from "./api.js";
import { byId, el } from "./dom.js";

const EVERY = 1000; // milliseconds
const KEPT = 120; // points of the curve
const seen = new Map(); // model -> {at, tokens, rates}

function rate(name, engine, now) {
  const before = seen.get(name);
  const rates = before?.rates ?? [];
  if (before) rates.push(Math.max(0, (engine.tokens_generated - before.tokens) / (now - before.at)));
  if (rates.length > KEPT) rates.shift();
  seen.set(name, { at: now, tokens: engine.tokens_generated, rates });
  return rates;
}

const whole = (value) => Math.round(value).toLocaleString("en");
const share = (part, all) => (all ? `${((100 * part) / all).toFixed(0)} %` : "–");

function mean({ counts, total }) {
  const count = counts.reduce((sum, value) => sum + value, 0);
  return count ? `${(total / count).toFixed(3)} s` : "–";
}

function figures(model, rates) {
  const { engine } = model;
  const blocks = Object.values(engine.blocks).map(([used, total]) => used / total);
  return [
    ["Tokens a second", rates.length ? rates.at(-1).toFixed(1) : "–"],
    ["Running", `${engine.running} of ${model.parallel}`],
    ["Waiting", whole(engine.waiting)],
    ["Cache in use", blocks.length ? share(Math.max(...blocks), 1) : "–"],
    ["Prompt tokens reused", engine.prefix_queried === null ? "–" : share(engine.prefix_hits, engine.prefix_queried)],
    ["First token after (mean)", mean(engine.first_token_s)],
    ["Tokens generated", whole(engine.tokens_generated)],
    ["Tokens computed", whole(engine.tokens_computed)],
    ["Preemptions", whole(engine.preemptions)],
    ["Refused, queue full", whole(engine.refused)],
  ];
}

function curve(rates) {
  const highest = Math.max(1, ...rates);
  const points = rates.map((value, number) => `${(number * 300) / (KEPT - 1)},${(78 - (70 * value) / highest).toFixed(1)}`).join(" ");
  const make = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const svg = make("svg", { viewBox: "0 0 300 80", preserveAspectRatio: "none", class: "rate", "aria-hidden": "true" });
  svg.append(make("polyline", { points }));
  const line = `Tokens a second, over the last ${rates.length} seconds; at most ${Math.max(0, ...rates).toFixed(1)}`;
  return el("figure", {}, el("figcaption", { className: "quiet" }, line), svg);
}

function card(model, now) {
  const rates = rate(model.name, model.engine, now);
  const list = figures(model, rates).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  const line = `${model.backend} on ${model.device}, context ${whole(model.context)}, same bits in any batch: ${model.bitwise ? "yes" : "no"}`;
  return el("section", { "aria-label": model.name }, el("h2", {}, model.name), el("div", { className: "quiet" }, line), el("dl", {}, ...list), curve(rates));
}

async function look() {
  try {
    const { models, uptime_s: uptime, status, version } = await stats(sessionStorage.getItem("key") ?? "");
    const now = performance.now() / 1000;
    byId("state").textContent = `Version ${version}, ${status === "ok" ? "serving" : status} for ${whole(uptime)} s. ${models.length ? "" : "No model is in memory."}`;
    byId("models").replaceChildren(...models.map((model) => card(model, now)));
  } catch (error) {
    byId("state").textContent = [error.message, error.hint].filter(Boolean).join(" ");
  }
}

const theme = JSON.parse(localStorage.getItem("settings") ?? "{}").theme;
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
await look();
setInterval(look, EVERY);
