// The server, in the OpenAI dialect.

/** What the server refused, as a sentence with a hint. */
export class ApiError extends Error {
  constructor(message, { hint = "", status = 0, code = "" } = {}) {
    super(message);
    this.hint = hint;
    this.status = status;
    this.code = code;
  }
}

const HINTS = {
  invalid_api_key: "Enter the server's API key in the settings.",
  body_too_large: "Attach less, or start a new conversation.",
  queue_full: "The server is busy. Try again in a moment.",
  loading: "Try again in a moment.",
};

function asError(body, status) {
  const error = body?.error ?? {};
  const message = typeof error === "string" ? error : error.message ?? `The server answered ${status}.`;
  return new ApiError(message, { hint: error.hint ?? HINTS[error.code] ?? "", status, code: error.code ?? "" });
}

function headers(key, more = {}) {
  return key ? { authorization: `Bearer ${key}`, ...more } : more;
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer.", { hint: "Is it still running? Start it again with: tensorsharp serve" });
  }
  if (!response.ok) throw asError(await response.json().catch(() => null), response.status);
  return response;
}

/** What the server serves: a list of {id, …}. */
export async function models(key) {
  return (await (await call("/v1/models", { headers: headers(key) })).json()).data;
}

/** What the server counts and holds. */
export async function stats(key) {
  return (await call("/stats", { headers: headers(key) })).json();
}

/** Which place in the queue a request has, from 1 on; null if it does not wait. */
export async function place(id, key) {
  for (const { waiting } of (await stats(key)).models) {
    if (waiting.includes(id)) return waiting.indexOf(id) + 1;
  }
  return null;
}

/** Stream a chat completion: one chunk after the other. */
export async function* chat(body, { key, id, signal }) {
  const response = await call("/v1/chat/completions", {
    method: "POST",
    headers: headers(key, { "content-type": "application/json", "x-request-id": id }),
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw asError(chunk, 0);
    yield chunk;
  }
}

/** The data of server-sent events. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const lines = held.split(/\r?\n/);
    held = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
  }
}
