// The page: what is shown, and what happens when a person acts.
import { models, stats } from "./api.js";
import { Attachments } from "./attachments.js";
import { add, asMessages, create, path, select, siblings } from "./conversation.js";
import { byId, el } from "./dom.js";
import { MessageView } from "./messages.js";
import { fill } from "./reply.js";
import { Settings, connect } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Store } from "./store.js";

const NEAR_END = 80; // pixels from the end within which the page follows a growing reply
const WAITING = ["The model is being loaded, or reads the conversation …", "Waiting: next in the queue"];
const KEEP = 1000; // milliseconds between two times that a growing reply is stored

class Page {
  constructor(store) {
    this.store = store;
    this.settings = new Settings();
    this.models = [];
    this.views = new Map();
    this.contexts = new Map();
    this.conversation = create();
    this.running = null;
    this.attachments = new Attachments(() => this.#model()?.capabilities?.includes("vision") ?? false, (sentence) => this.notice(sentence));
    this.sidebar = new Sidebar(store, {
      open: (conversation) => this.open(conversation),
      fresh: () => this.open(create(this.conversation.system)),
      removed: (id) => (id === this.conversation.id ? this.open(create()) : this.sidebar.show(this.conversation.id)),
      refuse: (sentence) => this.notice(sentence),
    });
    connect(this.settings, () => this.conversation, (what) => (what === "key" ? this.loadModels() : this.#save()));
    this.#connect();
  }

  #connect() {
    const prompt = byId("prompt");
    byId("composer").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    prompt.addEventListener("input", () => fit(prompt));
    prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    byId("stop").addEventListener("click", () => this.running?.abort());
    byId("model").addEventListener("change", (event) => this.settings.set("model", event.target.value));
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || byId("settings").open) return;
      if (byId("sidebar").classList.contains("open")) this.sidebar.toggle(false);
      else this.running?.abort();
    });
    addEventListener("hashchange", () => this.restore());
  }

  /** Show the conversation that the address names, or a new one. */
  async restore() {
    const id = location.hash.slice(1);
    if (id === this.conversation.id) return;
    const found = (await this.store.all()).find((conversation) => conversation.id === id);
    this.open(found ?? create());
  }

  async loadModels() {
    const chosen = byId("model");
    try {
      this.models = await models(this.settings.key);
      this.notice("");
    } catch (error) {
      this.models = [];
      this.notice(error.message, error.hint);
    }
    chosen.replaceChildren(...this.models.map(({ id }) => el("option", { value: id }, id)));
    if (this.models.some(({ id }) => id === this.settings.values.model)) chosen.value = this.settings.values.model;
    chosen.disabled = this.models.length < 2;
  }

  #model() {
    return this.models.find(({ id }) => id === byId("model").value);
  }

  open(conversation) {
    this.running?.abort();
    this.conversation = conversation;
    this.views.clear();
    byId("messages").replaceChildren();
    history.replaceState(null, "", conversation.leaf ? `#${conversation.id}` : location.pathname);
    this.show();
    this.#toEnd();
    this.sidebar.show(conversation.id);
    byId("prompt").focus({ preventScroll: true });
  }

  /** Bring the messages on the page in line with the branch that is shown. */
  show() {
    const shown = path(this.conversation);
    const list = byId("messages");
    const wanted = new Set(shown.map(({ id }) => id));
    for (const [id, view] of this.views) if (!wanted.has(id)) { view.element.remove(); this.views.delete(id); }
    for (const message of shown) {
      if (!this.views.has(message.id)) this.views.set(message.id, new MessageView(message, this.#acts()));
      const view = this.views.get(message.id);
      view.update(siblings(this.conversation, message), this.growing === message);
      if (list.children[shown.indexOf(message)] !== view.element) list.insertBefore(view.element, list.children[shown.indexOf(message)] ?? null);
    }
    byId("welcome").hidden = shown.length > 0;
    byId("title").textContent = this.conversation.title || "New conversation";
    document.title = this.conversation.title ? `${this.conversation.title} · TensorSharp` : "TensorSharp";
  }

  #acts() {
    return {
      edit: (message, text) => this.#fork(message, text),
      regenerate: (message) => this.reply(message.parent),
      select: (id) => { if (!this.#free()) return; select(this.conversation, id); this.show(); this.#save(); },
      answer: (message, call, text) => this.#answer(message, call, text),
      unanswered: (message, call) => !path(this.conversation).some((other) => other.role === "tool" && other.call === call.id),
      context: (model) => this.contexts.get(model) ?? null,
    };
  }

  async send() {
    const prompt = byId("prompt");
    const text = prompt.value.trim();
    if (!text || !this.#free()) return;
    this.notice("");
    prompt.value = "";
    fit(prompt);
    const files = this.attachments.take();
    const message = add(this.conversation, this.conversation.leaf, { role: "user", text, ...(files.length ? { attachments: files } : {}) });
    await this.reply(message.id);
  }

  #fork(message, text) {
    if (!text.trim() || !this.#free()) return;
    const { attachments } = message;
    const copy = add(this.conversation, message.parent, { role: "user", text: text.trim(), ...(attachments ? { attachments } : {}) });
    this.reply(copy.id);
  }

  #answer(message, call, text) {
    if (!this.#free()) return;
    const result = add(this.conversation, this.conversation.leaf, { role: "tool", call: call.id, text });
    const open = message.calls.some((other) => !path(this.conversation).some(({ role, call: id }) => role === "tool" && id === other.id));
    if (open) { this.show(); this.#save(); }
    else this.reply(result.id);
  }

  /** Have the model answer the branch that ends with message `parent`. */
  async reply(parent) {
    if (!this.#free()) return;
    const { conversation } = this;
    const body = { model: byId("model").value, messages: asMessages(conversation, parent), ...this.settings.request() };
    const message = add(conversation, parent, { role: "assistant", text: "" });
    this.growing = message;
    this.running = new AbortController();
    this.#busy(true);
    await this.#save();
    let kept = performance.now();
    await fill(message, body, {
      key: this.settings.key,
      signal: this.running.signal,
      grown: () => {
        this.#schedule();
        if (performance.now() - kept < KEEP) return;
        kept = performance.now();
        this.store.update(conversation);
      },
      waiting: (place) => this.#status(place === null ? "" : WAITING[place] ?? `Waiting: number ${place} in the queue`),
    });
    this.running = this.growing = null;
    await this.#learnContexts();
    if (message.error?.code === "model_not_found") await this.loadModels(); // another server than the one that listed them
    this.#busy(false);
    this.show();
    await this.store.update(conversation);
    this.sidebar.show(this.conversation.id);
  }

  /** Whether no reply is being written; if one is, say that it is in the way. */
  #free() {
    if (this.running) this.#status("A reply is being written. Stop it first, or wait.");
    return !this.running;
  }

  /** How long conversations may be, of the models in memory. */
  async #learnContexts() {
    const found = await stats(this.settings.key).catch(() => ({ models: [] }));
    for (const { name, context } of found.models) this.contexts.set(name, context);
  }

  #schedule() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      const follow = this.#atEnd();
      if (this.growing) this.views.get(this.growing.id)?.update([], true);
      if (follow) this.#toEnd();
    });
  }

  #atEnd() {
    const area = byId("scroll");
    return area.scrollHeight - area.scrollTop - area.clientHeight < NEAR_END;
  }

  #toEnd() {
    byId("scroll").scrollTop = byId("scroll").scrollHeight;
  }

  #busy(on) {
    byId("send").hidden = on;
    byId("stop").hidden = !on;
    if (!on) this.#status("");
    const follow = on || this.#atEnd();
    this.show();
    if (follow) this.#toEnd();
  }

  #status(text) {
    byId("status").textContent = text;
  }

  async #save() {
    if (!this.conversation.leaf) return;
    await this.store.put(this.conversation);
    history.replaceState(null, "", `#${this.conversation.id}`);
    await this.sidebar.show(this.conversation.id);
  }

  notice(message, hint = "") {
    const box = byId("notice");
    box.hidden = !message;
    box.textContent = [message, hint].filter(Boolean).join(" ");
  }
}

function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}

const page = new Page(await Store.open());
await page.loadModels();
await page.restore();
page.sidebar.show(page.conversation.id);
