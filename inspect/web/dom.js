// What the page does to its document. Text goes in as text only: keys come from clients
// and may hold anything.

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

/** Sets the text of an element if it is another, so that nothing is laid out in vain. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute if it has another value; null takes it away. */
export function setAttribute(element, name, value) {
  if (value == null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** The element of class name inside a parent. */
export const part = (parent, name) => parent.querySelector(`.${name}`);

const longest = 400; // characters of a key that are shown: a key may be as long as a request

/** A key as it is shown: what cannot be seen is made visible. */
export function keyText(key) {
  if (key === "") return "(empty key)";
  const shown = key.replace(/\uFFFD+/g, "\uFFFD").replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u{FFF9}-\u{FFFB}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
  const whole = shown.replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length));
  const letters = [...whole];
  return letters.length > longest ? `${letters.slice(0, longest).join("")}…` : whole;
}
