// Building elements. Text always becomes text nodes, never markup.

/** An element with properties, attributes (names with a dash, `role`, `for`) and children (nodes or strings). */
export function el(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.includes("-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** A random name. `crypto.randomUUID` is missing on pages that came over plain HTTP from another machine. */
export function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Give a text as a file to the person. */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Copy a text, and say on the button that it was done. */
export async function copyFrom(button, text) {
  const label = button.textContent;
  button.textContent = (await copied(text)) ? "Copied" : "Not allowed";
  setTimeout(() => { button.textContent = label; }, 1500);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // without a secure connection there is no clipboard object, but an old command
    const area = el("textarea", { value: text, className: "visually-hidden" });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
