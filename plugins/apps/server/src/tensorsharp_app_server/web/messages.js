// How a message looks, and what can be done with it.
import { copyFrom, el } from "./dom.js";
import { show } from "./markdown.js";
import { figuresLine } from "./reply.js";

const NAMES = { user: "You", assistant: "Assistant", tool: "Tool result" };

/**
 * One message as an element that `update` shows anew.
 * act: {edit(message, text), regenerate(message), select(id), answer(message, call, text), unanswered(message, call), context(model)}.
 */
export class MessageView {
  constructor(message, act) {
    this.message = message;
    this.act = act;
    this.others = [];
    this.editing = false;
    this.element = el("article", { className: `message ${message.role}`, "aria-label": NAMES[message.role] });
    this.body = el("div", { className: "body" });
    this.before = el("div");
    this.after = el("div");
    this.actions = el("div", { className: "actions" });
    this.element.append(el("h2", { className: "who" }, NAMES[message.role]), this.before, this.body, this.after, this.actions);
  }

  /** others: the message and its siblings; running: whether it still grows. */
  update(others, running) {
    const { message } = this;
    this.others = others;
    if (this.editing) return;
    this.element.classList.toggle("waiting", running);
    this.element.setAttribute("aria-busy", String(running));
    if (message.role === "assistant") show(this.body, message.text);
    else this.body.replaceChildren(...attachments(message), message.text);
    this.body.hidden = !running && message.role === "assistant" && !message.text;
    if (message.reasoning) this.#showReasoning(running && !message.text);
    this.after.replaceChildren(...(message.calls ?? []).map((call) => this.#call(call, running)), ...(message.error ? [errorBox(message.error)] : []));
    if (!running) this.#showActions(others);
    else this.actions.replaceChildren();
  }

  #showReasoning(open) {
    let box = this.before.querySelector(".reasoning");
    if (!box) {
      box = el("details", { className: "reasoning" }, el("summary", {}, "Reasoning"), el("div"));
      this.before.append(box);
    }
    box.querySelector("summary").textContent = open ? "Reasoning …" : "Reasoning";
    box.lastChild.textContent = this.message.reasoning;
  }

  #call(call, running) {
    const summary = el("summary", {}, "Calls ", el("code", {}, call.function.name));
    const box = el("details", { className: "call", open: true }, summary, el("pre", { tabIndex: 0 }, el("code", {}, pretty(call.function.arguments))));
    if (!running && this.act.unanswered(this.message, call)) {
      const input = el("textarea", { rows: 2, "aria-label": `Result of ${call.function.name}`, placeholder: "What the tool returns" });
      const send = el("button", { type: "button", onclick: () => this.act.answer(this.message, call, input.value) }, "Send result");
      box.append(input, send);
    }
    return box;
  }

  #showActions(others) {
    const { message, act } = this;
    const link = (label, onclick) => el("button", { type: "button", className: "link", onclick }, label);
    const copy = link("Copy", () => copyFrom(copy, message.text));
    const buttons = [copy];
    if (message.role === "user") buttons.push(link("Edit", () => this.#edit()));
    if (message.role === "assistant") buttons.push(link("Regenerate", () => act.regenerate(message)));
    if (others.length > 1) buttons.push(...this.#branches(others, link));
    const line = message.role === "assistant" ? figuresLine(message, act.context(message.model)) : "";
    this.actions.replaceChildren(...buttons, el("span", { className: "figures" }, line));
  }

  #branches(others, link) {
    const at = others.findIndex((other) => other.id === this.message.id);
    const go = (step, name, sign) => {
      const button = link(sign, () => this.act.select(others[at + step].id));
      button.setAttribute("aria-label", name);
      button.disabled = !others[at + step];
      return button;
    };
    return [go(-1, "Previous version", "‹"), el("span", { className: "figures" }, `${at + 1}/${others.length}`), go(1, "Next version", "›")];
  }

  #edit() {
    const input = el("textarea", { value: this.message.text, rows: Math.min(12, this.message.text.split("\n").length + 1), "aria-label": "Edit the message" });
    const done = () => { this.editing = false; this.update(this.others, false); };
    const save = el("button", { type: "button", className: "primary", onclick: () => this.act.edit(this.message, input.value) }, "Send");
    const cancel = el("button", { type: "button", onclick: done }, "Cancel");
    input.addEventListener("keydown", (event) => { if (event.key === "Escape") done(); });
    this.editing = true;
    this.body.replaceChildren(input);
    this.actions.replaceChildren(save, cancel);
    input.focus();
  }
}

function attachments(message) {
  return (message.attachments ?? []).map((file) =>
    file.url !== undefined
      ? el("img", { className: "attached", src: file.url, alt: file.name })
      : el("details", {}, el("summary", {}, `Attached: ${file.name}`), el("pre", { tabIndex: 0 }, file.text)),
  );
}

function errorBox(error) {
  return el("div", { className: "error", role: "alert" }, el("strong", {}, error.message), error.hint ? el("div", {}, error.hint) : null);
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
