// A conversation is a tree of messages: editing or regenerating one adds a sibling, and `leaf` says which branch is shown.
import { randomId } from "./dom.js";

export function create(system = "") {
  return { id: randomId(), title: "", updated: Date.now(), system, messages: {}, leaf: null };
}

/** Add a message after `parent` (null: at the beginning) and show the branch that ends with it. */
export function add(conversation, parent, fields) {
  const message = { id: randomId(), parent, created: Date.now(), ...fields };
  conversation.messages[message.id] = message;
  conversation.leaf = message.id;
  conversation.updated = message.created;
  if (!conversation.title && message.role === "user") conversation.title = title(message.text);
  return message;
}

function title(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

/** The messages of the branch that is shown, from the first on. */
export function path(conversation, leaf = conversation.leaf) {
  const out = [];
  for (let id = leaf; id; id = conversation.messages[id].parent) out.unshift(conversation.messages[id]);
  return out;
}

const byTime = (a, b) => a.created - b.created;

/** All messages with the same parent, oldest first. */
export function siblings(conversation, message) {
  return Object.values(conversation.messages).filter((other) => other.parent === message.parent).sort(byTime);
}

/** Show the branch through `id`, down to its latest message. */
export function select(conversation, id) {
  for (;;) {
    const children = Object.values(conversation.messages).filter((message) => message.parent === id).sort(byTime);
    if (!children.length) break;
    id = children.at(-1).id;
  }
  conversation.leaf = id;
}

/** Why an imported value is no conversation, or null. */
export function fault(value) {
  if (typeof value !== "object" || value === null || typeof value.id !== "string") return "it has no id";
  if (typeof value.messages !== "object" || value.messages === null) return "it has no messages";
  if (typeof value.title !== "string" || typeof value.system !== "string" || !Number.isFinite(value.updated)) return "its title, system or updated is malformed";
  for (const [id, message] of Object.entries(value.messages)) {
    if (message?.id !== id || typeof message.text !== "string") return `message ${id} is malformed`;
    if (!["user", "assistant", "tool"].includes(message.role)) return `message ${id} has the role ${message.role}`;
    if (message.parent !== null && !(message.parent in value.messages)) return `message ${id} follows one that is missing`;
  }
  if (value.leaf !== null && !(value.leaf in value.messages)) return "the message it shows is missing";
  return circular(value) ? "its messages follow each other in a circle" : null;
}

function circular({ messages }) {
  return Object.keys(messages).some((id) => {
    const seen = new Set();
    for (let at = id; at; at = messages[at].parent) {
      if (seen.has(at)) return true;
      seen.add(at);
    }
    return false;
  });
}

/** The branch as messages of the OpenAI dialect. */
export function asMessages(conversation, leaf) {
  const head = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  const rest = path(conversation, leaf).filter((message) => !(message.role === "assistant" && message.error && !message.text));
  return [...head, ...rest.map(asMessage)];
}

function asMessage(message) {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.call, content: message.text };
  if (message.role === "assistant") {
    const calls = message.calls?.length ? { tool_calls: message.calls } : {};
    return { role: "assistant", content: message.text, ...calls };
  }
  const files = message.attachments ?? [];
  const texts = files.filter((file) => file.text !== undefined).map((file) => `${file.name}:\n\n${file.text}\n\n`);
  const images = files.filter((file) => file.url !== undefined);
  const text = texts.join("") + message.text;
  if (!images.length) return { role: "user", content: text };
  const parts = images.map((file) => ({ type: "image_url", image_url: { url: file.url } }));
  return { role: "user", content: [...parts, { type: "text", text }] };
}
