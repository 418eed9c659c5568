// Files that go with the next message: text as text, images for models that take them.
import { byId, el } from "./dom.js";

const MOST_TEXT = 1 << 20;
const MOST_IMAGE = 8 << 20;

export class Attachments {
  /** takesImages(): whether the chosen model does; refuse(sentence): tell the person. */
  constructor(takesImages, refuse) {
    this.files = [];
    this.takesImages = takesImages;
    this.refuse = refuse;
    const input = byId("attach-file");
    byId("attach").addEventListener("click", () => input.click());
    input.addEventListener("change", () => { this.addAll([...input.files]); input.value = ""; });
    this.#connectDrops();
  }

  #connectDrops() {
    const over = (on) => document.body.classList.toggle("dropping", on);
    document.addEventListener("dragover", (event) => { event.preventDefault(); over(true); });
    document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) over(false); });
    document.addEventListener("drop", (event) => { event.preventDefault(); over(false); this.addAll([...event.dataTransfer.files]); });
    byId("prompt").addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files];
      if (files.length) { event.preventDefault(); this.addAll(files); }
    });
  }

  async addAll(files) {
    for (const file of files) {
      const made = await this.#read(file);
      if (typeof made === "string") this.refuse(made);
      else this.files.push(made);
    }
    this.#show();
  }

  async #read(file) {
    if (file.type.startsWith("image/")) return this.#image(file);
    if (file.size > MOST_TEXT) return `${file.name} has ${file.size.toLocaleString("en")} bytes; a text may have 1 MiB.`;
    try {
      return { name: file.name, text: new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()) };
    } catch {
      return `${file.name} is no UTF-8 text, and this page hands over only texts and images.`;
    }
  }

  #image(file) {
    if (!this.takesImages()) return `This model takes no images, so ${file.name} was left out. Choose a model with vision.`;
    if (file.size > MOST_IMAGE) return `${file.name} has ${file.size.toLocaleString("en")} bytes; an image may have 8 MiB.`;
    return new Promise((resolve) => {
      const reader = new FileReader();
      reader.onload = () => resolve({ name: file.name, url: reader.result });
      reader.onerror = () => resolve(`${file.name} cannot be read.`);
      reader.readAsDataURL(file);
    });
  }

  /** What was attached, which is no longer attached afterwards. */
  take() {
    const files = this.files;
    this.files = [];
    this.#show();
    return files;
  }

  #show() {
    const list = byId("attachments");
    list.hidden = !this.files.length;
    list.replaceChildren(...this.files.map((file, number) => {
      const remove = () => { this.files.splice(number, 1); this.#show(); };
      return el("li", {}, file.name, el("button", { type: "button", className: "link", "aria-label": `Remove ${file.name}`, onclick: remove }, "✕"));
    }));
  }
}
