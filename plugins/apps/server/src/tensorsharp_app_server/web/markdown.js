// Markdown to elements, as replies use it: headings, lists, tables, quotes, code, links, emphasis. HTML stays text.
import { copyFrom, el } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const DELIMITER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const INLINE = new RegExp(
  [
    "(?<ticks>`+)(?<code>[^`]|[^`][\\s\\S]*?[^`])\\k<ticks>(?!`)",
    "\\*\\*(?<strong>\\S(?:[\\s\\S]*?\\S)?)\\*\\*",
    "~~(?<gone>\\S(?:[\\s\\S]*?\\S)?)~~",
    "\\*(?<em>[^\\s*](?:[^*]*?[^\\s*])?)\\*",
    "(?<![\\w])_(?<under>[^\\s_](?:[^_]*?[^\\s_])?)_(?![\\w])",
    "\\[(?<label>[^\\]\\n]+)\\]\\((?<target>[^\\s()]+(?:\\([^\\s()]*\\))?)(?:\\s+\"[^\"]*\")?\\)",
    "(?<bare>https?://[^\\s<>\"'`]*[^\\s<>\"'`.,;:!?)\\]])",
    "\\\\(?<escaped>[\\\\`*_{}\\[\\]()#+\\-.!|~>])",
  ].join("|"),
  "gu",
);

/** Show `text` in `target`. What did not change since the last call stays as it is, so a growing reply costs only its end. */
export function show(target, text) {
  const parts = blocks(text.split("\n"));
  const shown = [...target.children];
  let same = 0;
  while (same < parts.length && same < shown.length && shown[same].dataset.source === parts[same].source) same++;
  for (const old of shown.slice(same)) old.remove();
  for (const part of parts.slice(same)) {
    const element = part.build();
    element.dataset.source = part.source;
    target.append(element);
  }
}

function blocks(lines) {
  const out = [];
  let at = 0;
  while (at < lines.length) {
    const begin = at;
    const [end, build] = block(lines, at);
    at = end;
    if (build) out.push({ source: lines.slice(begin, end).join("\n"), build });
  }
  return out;
}

/** Where the block that begins at line `at` ends, and how to build it; nothing to build for an empty line. */
function block(lines, at) {
  const line = lines[at];
  if (!line.trim()) return [at + 1, null];
  const fence = FENCE.exec(line);
  if (fence) return listing(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [at + 1, () => el(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2]))];
  if (RULE.test(line)) return [at + 1, () => el("hr")];
  if (QUOTE.test(line)) return quote(lines, at);
  if (ITEM.test(line)) return list(lines, at);
  if (line.includes("|") && at + 1 < lines.length && DELIMITER.test(lines[at + 1])) return table(lines, at);
  return paragraph(lines, at);
}

function listing(lines, at, fence) {
  const closing = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) end++;
  const code = lines.slice(at + 1, end).join("\n");
  const build = () => {
    const button = el("button", { type: "button", className: "link" }, "Copy");
    button.addEventListener("click", () => copyFrom(button, code));
    const caption = el("figcaption", {}, el("span", {}, fence[2].trim() || "text"), button);
    return el("figure", { className: "listing" }, caption, el("pre", { tabIndex: 0 }, el("code", {}, code)));
  };
  return [Math.min(end + 1, lines.length), build];
}

function quote(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  const inner = lines.slice(at, end).map((line) => QUOTE.exec(line)[1]);
  return [end, () => el("blockquote", {}, ...blocks(inner).map((part) => part.build()))];
}

function list(lines, at) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    const here = item && item[1].length <= first[1].length + 1;
    if (here && /\d/.test(item[2]) !== ordered) break;
    if (here) items.push([item[4]]);
    else if (lines[end].trim() ? /^\s{2,}/.test(lines[end]) || item : continues(lines, end)) items.at(-1).push(lines[end]);
    else break;
    end++;
  }
  const build = () => {
    const children = items.map((item) => el("li", {}, ...itemContent(item)));
    return el(ordered ? "ol" : "ul", ordered ? { start: parseInt(first[2], 10) } : {}, ...children);
  };
  return [end, build];
}

/** Whether a list goes on after the empty line `at`. */
function continues(lines, at) {
  const next = lines[at + 1];
  return next !== undefined && (/^\s{2,}\S/.test(next) || ITEM.test(next));
}

function itemContent(lines) {
  const [head, ...rest] = lines;
  const indent = Math.min(...rest.filter((line) => line.trim()).map((line) => /^\s*/.exec(line)[0].length));
  const inner = blocks([head, ...rest.map((line) => line.slice(Number.isFinite(indent) ? indent : 0))]);
  if (inner.length === 1 && !ITEM.test(head)) return inline([head, ...rest.map((line) => line.trim())].join("\n"));
  const built = inner.map((part) => part.build());
  // the first line of an item stands beside its mark, not in a paragraph of its own
  return built[0]?.tagName === "P" ? [...built[0].childNodes, ...built.slice(1)] : built;
}

function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end++;
  const sides = cells(lines[at + 1]).map((mark) => (!mark.endsWith(":") ? "" : mark.startsWith(":") ? "center" : "right"));
  const row = (line, tag) => el("tr", {}, ...cells(line).map((cell, column) => el(tag, { className: sides[column] || undefined }, ...inline(cell))));
  const build = () => {
    const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
    return el("div", { className: "table", tabIndex: 0 }, el("table", {}, el("thead", {}, row(lines[at], "th")), el("tbody", {}, ...body)));
  };
  return [end, build];
}

function cells(line) {
  return line.trim().replace(/^\|/, "").replace(/\|$/, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !FENCE.test(lines[end]) && !HEADING.test(lines[end]) && !QUOTE.test(lines[end]) && !ITEM.test(lines[end])) end++;
  return [end, () => el("p", {}, ...inline(lines.slice(at, end).join("\n")))];
}

function inline(text) {
  const out = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    out.push(...broken(text.slice(at, match.index)), span(match));
    at = match.index + match[0].length;
  }
  out.push(...broken(text.slice(at)));
  return out;
}

function span({ groups, 0: whole }) {
  if (groups.code !== undefined) return el("code", {}, groups.code);
  if (groups.strong !== undefined) return el("strong", {}, ...inline(groups.strong));
  if (groups.gone !== undefined) return el("del", {}, ...inline(groups.gone));
  if (groups.em !== undefined) return el("em", {}, ...inline(groups.em));
  if (groups.under !== undefined) return el("em", {}, ...inline(groups.under));
  if (groups.escaped !== undefined) return groups.escaped;
  const target = groups.bare ?? groups.target;
  if (!/^(https?:|mailto:)/i.test(target)) return whole;
  return el("a", { href: target, target: "_blank", rel: "noopener noreferrer" }, groups.label ?? target);
}

/** Text whose line ends are kept. */
function broken(text) {
  return text.split("\n").flatMap((line, number) => (number ? [el("br"), line] : [line])).filter((part) => part !== "");
}
