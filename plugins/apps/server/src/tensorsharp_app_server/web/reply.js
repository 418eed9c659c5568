// One running reply: chunks into the message that grows.
import { ApiError, chat, place } from "./api.js";
import { randomId } from "./dom.js";

const POLL = 1000; // milliseconds between two looks at the queue

/**
 * Fill `message` from the server until it ends or `signal` stops it.
 * grown(): called after each chunk; waiting(n): its place in the queue, 0 if nothing came though it has none, null at its first text.
 */
export async function fill(message, body, { key, signal, grown, waiting }) {
  const id = randomId();
  const began = performance.now();
  const watching = watch(id, key, waiting);
  try {
    for await (const chunk of chat(body, { key, id, signal })) {
      if (take(message, chunk, began)) watching.end(); // the first chunk comes before the request is served
      grown();
    }
  } catch (error) {
    if (error.name === "AbortError") message.stopped = true;
    else message.error = describe(error);
  } finally {
    watching.end();
    grown();
  }
}

function describe(error) {
  if (error instanceof ApiError) return { message: error.message, hint: error.hint, code: error.code, status: error.status };
  return { message: "The connection broke while the reply was coming.", hint: "What had come is kept. Regenerate to try again.", code: "", status: 0 };
}

function watch(id, key, waiting) {
  let over = false;
  const timer = setInterval(async () => {
    const position = await place(id, key).catch(() => null);
    if (!over) waiting(position ?? 0);
  }, POLL);
  return {
    end() {
      if (over) return;
      over = true;
      clearInterval(timer);
      waiting(null);
    },
  };
}

/** Whether the chunk brought something of the reply. */
function take(message, chunk, began) {
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  if (delta.content) message.text += delta.content;
  if (delta.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
  for (const piece of delta.tool_calls ?? []) takeCall(message, piece);
  if (choice?.finish_reason) message.finish = choice.finish_reason;
  const figures = (message.figures ??= {});
  const brought = Boolean(delta.content || delta.reasoning_content || delta.tool_calls || choice?.finish_reason);
  if (brought) figures.first ??= (performance.now() - began) / 1000;
  if (chunk.usage) Object.assign(figures, fromUsage(chunk.usage));
  if (chunk.timings) Object.assign(figures, fromTimings(chunk.timings));
  if (chunk.model) message.model = chunk.model;
  return brought;
}

function takeCall(message, piece) {
  const calls = (message.calls ??= []);
  const call = (calls[piece.index] ??= { id: piece.id, type: "function", function: { name: "", arguments: "" } });
  call.function.name += piece.function?.name ?? "";
  call.function.arguments += piece.function?.arguments ?? "";
}

function fromUsage(usage) {
  return { prompt: usage.prompt_tokens, completion: usage.completion_tokens, cached: usage.prompt_tokens_details?.cached_tokens ?? 0 };
}

function fromTimings(timings) {
  return { rate: timings.predicted_per_second, drafted: timings.draft_n ?? 0, accepted: timings.draft_n_accepted ?? 0 };
}

/** The figures of a reply as a line. context: tokens that a conversation may have, if known. */
export function figuresLine(message, context) {
  const { rate, prompt, completion, cached, first, drafted, accepted } = message.figures ?? {};
  const number = (value) => value.toLocaleString("en");
  const parts = [];
  if (rate) parts.push(`${rate.toFixed(1)} tok/s`);
  if (first !== undefined) parts.push(`first after ${first.toFixed(2)} s`);
  if (prompt !== undefined) parts.push(`${number(prompt + completion)}${context ? ` of ${number(context)}` : ""} tokens`);
  if (cached) parts.push(`${number(cached)} reused`);
  if (drafted) parts.push(`${number(accepted)} of ${number(drafted)} drafts accepted`);
  if (message.finish === "length") parts.push("cut by length");
  if (message.stopped) parts.push("stopped");
  else if (!message.finish && !message.error) parts.push("interrupted"); // by a reload, or a browser that was closed
  return parts.join(" · ");
}
