// What the page does to its document. Text goes in as text only: keys come from clients
// and may hold anything.

import { bytesOf } from "./url.js";

export const byId = (id) => document.getElementById(id);

/** A new element. Properties that the element has are set, others become attributes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value == null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** A new element of a drawing. */
export function svg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Sets the text of an element if it is another, so that nothing is laid out in vain. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute if it has another value; null takes it away. */
export function setAttribute(element, name, value) {
  if (value == null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Replaces what an element holds, unless it holds the same: whoever has focused a part of it keeps it. */
export function fill(parent, children) {
  const present = parent.children;
  if (present.length === children.length && children.every((child, i) => child.isEqualNode(present[i]))) return;
  parent.replaceChildren(...children);
}

/** The element of class name inside a parent. */
export const part = (parent, name) => parent.querySelector(`.${name}`);

const longest = 400; // characters of a key that are shown: a key may be as long as a request

/** A key as it is shown, of its id: what cannot be seen is made visible, and so is a byte that is no text. */
export function nameOf(id) {
  const bytes = bytesOf(id);
  if (bytes.length === 0) return "(empty key)";
  const shown = textOf(bytes).replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length));
  const letters = [...shown];
  return letters.length > longest ? `${letters.slice(0, longest).join("")}…` : shown;
}

function textOf(bytes) {
  const text = decoded(bytes);
  if (text != null) return text;
  let shown = "";
  for (let i = 0; i < bytes.length;) {
    const length = bytes[i] < 0xc0 ? 1 : bytes[i] < 0xe0 ? 2 : bytes[i] < 0xf0 ? 3 : 4; // of the letter that begins here, if one does
    const letter = decoded(bytes.subarray(i, i + length));
    shown += letter ?? `\\x${bytes[i].toString(16)}`;
    i += letter == null ? 1 : length;
  }
  return shown;
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Bytes as text, with signs for what cannot be seen; null if they are not UTF-8. */
function decoded(bytes) {
  try {
    return utf8.decode(bytes).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
  } catch {
    return null;
  }
}
