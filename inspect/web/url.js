// The state of the view, which is the address of the page: a link to it restores the
// view, and back and forward go through what was looked at.
//
// A key is held as its id, the key percent-encoded, because a key may hold bytes that
// are not text. A key typed into the address by hand works too.

const defaults = { source: null, id: null, contains: "", filter: "", sort: "-waiting", within: "", cursor: "", span: "minute", paused: false, at: null, more: {} };
const moreFilters = ["prefix", "waiting_gt", "level_gt", "fill_gt", "idle_gt", "refused_gt", "refusing", "dry_run"]; // of the API, without a control of the page

const listeners = [];

export let view = parse(location.search);

/** Calls listener with the view and the one before whenever the view has changed. */
export function onChange(listener) {
  listeners.push(listener);
}

/** Changes the view. With replace, back does not return to the view before. */
export function go(changes, { replace = false } = {}) {
  const next = { ...view, ...changes };
  const address = href(next);
  if (address === href(view)) return;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  become(next);
}

/** The address of the present view with some changes. */
export function href(changes = {}) {
  const v = { ...view, ...changes };
  const query = [];
  const add = (name, encoded) => query.push(`${name}=${encoded}`);
  if (v.source != null) add("source", encodeURIComponent(v.source));
  if (v.source != null && v.id != null) add("key", v.id);
  if (v.within) add("in", encodeURIComponent(v.within));
  if (v.contains) add("contains", encodeURIComponent(v.contains));
  if (v.filter) add("filter", encodeURIComponent(v.filter).replaceAll("%2C", ","));
  for (const [name, value] of Object.entries(v.more)) add(name, encodeURIComponent(value));
  if (v.sort !== defaults.sort) add("sort", encodeURIComponent(v.sort));
  if (v.cursor) add("cursor", encodeURIComponent(v.cursor));
  if (v.span !== defaults.span) add("span", v.span);
  if (v.paused) add("paused", "1");
  if (v.paused && v.at != null) add("at", new Date(v.at).toISOString());
  return query.length ? `?${query.join("&")}` : location.pathname;
}

/** The id that the server tells, in which "+" means itself and "=" in front protects dots. */
export function fromServer(id) {
  return canonical(id.replace(/^=/, "").replaceAll("+", "%2B"));
}

/** An id as a segment of a path: "." and ".." would be taken out of it even if they were encoded. */
export function toPath(id) {
  return id === "." || id === ".." ? `=${id}` : id;
}

/** The one form of an id: only what must be encoded is, in upper case. */
function canonical(id) {
  return id
    .replace(/%([0-9a-f]{2})/gi, (code, hex) => {
      const c = String.fromCharCode(parseInt(hex, 16));
      return /[A-Za-z0-9_.~-]/.test(c) ? c : code.toUpperCase();
    })
    .replace(/%(?![0-9A-F]{2})|[^%A-Za-z0-9_.~-]+/g, (text) => encodeURIComponent(text).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`));
}

/** The bytes of the key of an id. */
export function bytesOf(id) {
  const bytes = [];
  const encoder = new TextEncoder();
  for (const [, hex, text] of id.matchAll(/%([0-9A-Fa-f]{2})|([^%]+|%)/g)) {
    if (hex) bytes.push(parseInt(hex, 16));
    else for (const byte of encoder.encode(text)) bytes.push(byte);
  }
  return new Uint8Array(bytes);
}

function parse(search) {
  const query = new URLSearchParams(search);
  const key = /[?&]key=([^&]*)/.exec(search);
  const instant = Date.parse(query.get("at") ?? "");
  const at = Number.isNaN(instant) ? null : instant; // ms: of the charts while the page is paused
  return {
    source: query.get("source"),
    id: key ? canonical(key[1].replaceAll("+", "%20")) : null,
    contains: query.get("contains") ?? "",
    filter: query.get("filter") ?? "",
    sort: query.get("sort") || defaults.sort,
    within: query.get("in") ?? "",
    cursor: query.get("cursor") ?? "",
    span: query.get("span") === "hour" ? "hour" : defaults.span,
    paused: query.get("paused") === "1" || at != null,
    at,
    more: Object.fromEntries(moreFilters.filter((name) => query.get(name)).map((name) => [name, query.get(name)])),
  };
}

function become(next) {
  const before = view;
  view = next;
  for (const listener of listeners) listener(view, before);
}

addEventListener("popstate", () => become(parse(location.search)));
