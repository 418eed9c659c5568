// The list of conversations, and moving them in and out of the browser.
import { fault } from "./conversation.js";
import { byId, download, el } from "./dom.js";

export class Sidebar {
  /** store: the conversations; act: {open(conversation), fresh(), removed(id), refuse(sentence)}. */
  constructor(store, act) {
    this.store = store;
    this.act = act;
    this.current = null;
    byId("new").addEventListener("click", () => { act.fresh(); this.toggle(false); });
    byId("search").addEventListener("input", () => this.show(this.current));
    byId("open-sidebar").addEventListener("click", () => this.toggle(true));
    byId("close-sidebar").addEventListener("click", () => this.toggle(false));
    byId("shade").addEventListener("click", () => this.toggle(false));
    byId("export").addEventListener("click", () => this.#export());
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", (event) => this.#import(event.target));
  }

  toggle(open) {
    byId("sidebar").classList.toggle("open", open);
    byId("shade").hidden = !open;
    byId("open-sidebar").setAttribute("aria-expanded", String(open));
    if (open) byId("new").focus();
  }

  async show(current) {
    this.current = current;
    const wanted = byId("search").value.trim().toLowerCase();
    const all = (await this.store.all()).filter((conversation) => matches(conversation, wanted));
    byId("conversations").replaceChildren(...all.map((conversation) => this.#row(conversation)));
  }

  #row(conversation) {
    const title = conversation.title || "New conversation";
    const here = conversation.id === this.current;
    const open = el("button", { type: "button", className: "open", title, "aria-current": here ? "true" : undefined }, title);
    open.addEventListener("click", () => { this.act.open(conversation); this.toggle(false); });
    const remove = el("button", { type: "button", className: "icon", "aria-label": `Delete “${title}”` }, "✕");
    remove.addEventListener("click", async () => {
      if (!confirm(`Delete “${title}”?`)) return;
      await this.store.remove(conversation.id);
      this.act.removed(conversation.id);
    });
    return el("li", { className: here ? "current" : "" }, open, remove);
  }

  async #export() {
    const data = { format: "tensorsharp-conversations", version: 1, conversations: await this.store.all() };
    download(`conversations-${new Date().toISOString().slice(0, 10)}.json`, JSON.stringify(data, null, 1));
  }

  async #import(input) {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    this.act.refuse("");
    try {
      const data = JSON.parse(await file.text());
      if (data.format !== "tensorsharp-conversations" || !Array.isArray(data.conversations)) throw new Error("it was not exported from here");
      for (const conversation of data.conversations) {
        const wrong = fault(conversation);
        if (wrong) throw new Error(wrong);
      }
      for (const conversation of data.conversations) await this.store.put(conversation);
      await this.show(this.current);
    } catch (error) {
      this.act.refuse(`${file.name} was not imported: ${error.message}.`);
    }
  }
}

function matches(conversation, wanted) {
  if (!wanted) return true;
  return [conversation.title, ...Object.values(conversation.messages).map((message) => message.text)].some((text) => text.toLowerCase().includes(wanted));
}
