// The table of buckets. The server filters and sorts; the rows are changed in place.

import { byId, fill, make, nameOf, part, setAttribute, setText } from "./dom.js";
import { clock, count, duration, idle, number, percent } from "./format.js";
import { addressOf, get } from "./api.js";
import { fromServer, go, href, view } from "./url.js";

const pageSize = 50;
const every = 2000; // ms between two readings
const patience = 10000; // ms for an answer
const rest = 5000; // ms after its last move for which a pointer over the table keeps the order

const filters = {
  waiting: { waiting_gt: 0 },
  half: { fill_gt: 0.5 },
  refusing: { refusing: "true" },
  dry_run: { dry_run: "true", refused_gt: 0 },
  idle: { idle_gt: "1h" },
};

export class Table {
  /** onRead is called with each answer that is shown. */
  constructor(reports, onRead) {
    this.reports = reports;
    this.onRead = onRead;
    this.body = byId("buckets").tBodies[0];
    this.rows = new Map(); // source and id: row
    this.sources = [];
    this.pointed = -Infinity; // when the pointer moved over the table, as of performance.now
    this.followed = null; // the bucket that the stream tells of; null if there is none
    this.kept = null; // an answer whose order waits until nobody is at a row
    this.listen();
    this.showControls();
  }

  listen() {
    const form = byId("filters");
    form.addEventListener("submit", (event) => event.preventDefault());
    let typing;
    byId("contains").addEventListener("input", (event) => {
      clearTimeout(typing);
      typing = setTimeout(() => go({ contains: event.target.value, cursor: "" }, { replace: true }), 200);
    });
    for (const button of form.querySelectorAll("[data-filter]")) {
      button.addEventListener("click", () => {
        const chosen = view.filter.split(",").filter(Boolean);
        const name = button.dataset.filter;
        const next = chosen.includes(name) ? chosen.filter((other) => other !== name) : [...chosen, name];
        go({ filter: next.join(","), cursor: "" });
      });
    }
    byId("buckets").tHead.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-sort]");
      if (!button) return;
      const { sort } = button.dataset;
      // What is large is looked for first; names begin at A.
      const first = sort === "key" ? sort : `-${sort}`;
      const second = sort === "key" ? `-${sort}` : sort;
      go({ sort: view.sort === first ? second : first, cursor: "" });
    });
    this.body.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
      const row = event.target.closest("tr[data-id]");
      if (!row || getSelection()?.toString()) return;
      event.preventDefault();
      go({ source: row.dataset.source, id: fromServer(row.dataset.id) });
    });
    const moved = (event) => (this.pointed = event.timeStamp);
    const left = () => {
      this.pointed = -Infinity;
      if (this.kept && !this.inUse()) this.show(this.kept);
    };
    this.body.addEventListener("pointermove", moved);
    this.body.addEventListener("pointerleave", left);
    this.body.addEventListener("focusout", (event) => {
      if (!this.body.contains(event.relatedTarget)) left();
    });
    for (const id of ["more", "first"]) {
      byId(id).addEventListener("click", (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        go({ cursor: id === "more" ? this.next : "" });
        part(byId("list"), "scroll").scrollIntoView({ block: "nearest" });
      });
    }
    byId("within").addEventListener("change", (event) => go({ within: event.target.value, cursor: "" }));
  }

  /** Reads the table now and then again and again, until stop. */
  start() {
    this.running = true;
    this.read();
  }

  stop() {
    this.running = false;
    clearTimeout(this.timer);
    this.request?.abort();
    if (this.unreached) this.reports.table(null); // What stops the table tells the same.
  }

  /** Notes that there are other sources. The answer to what is being asked may be of before. */
  sourcesChange() {
    this.overtaken = true;
    if (this.wrong) this.read();
  }

  /** Reads the table. What is asked for by the reader of the page is also announced. */
  async read({ announced = false } = {}) {
    clearTimeout(this.timer);
    this.request?.abort();
    const request = new AbortController();
    this.request = request;
    this.wrong = false;
    this.overtaken = false;
    const query = { ...wanted(), limit: pageSize, cursor: view.cursor };
    let answer = null;
    try {
      answer = await get("api/v1/buckets", query, AbortSignal.any([request.signal, AbortSignal.timeout(patience)]));
    } catch (error) {
      if (request.signal.aborted) return;
      this.fail(error);
      if ([400, 404, 413, 414, 431].includes(error.status) && !this.overtaken) { // asking the same again gives the same, unless other sources come
        this.wrong = true;
        return;
      }
    }
    if (this.running && this.request === request) this.timer = setTimeout(() => this.read(), every);
    if (!answer) return;
    this.reports.table(null);
    this.unreached = false;
    this.at = answer.at;
    byId("list").classList.remove("stale");
    setAttribute(byId("matched"), "aria-live", announced ? "polite" : "off");
    const asked = JSON.stringify(query);
    this.show(answer, { inPlace: asked === this.asked && this.inUse() });
    this.asked = asked;
    this.onRead(answer);
  }

  /** Says that the table could not be read, and that its rows are not of now. */
  fail(error) {
    this.unreached = !error.status;
    const why = error.status ? error.message : error.name === "TimeoutError" ? `no answer within ${patience / 1000} s` : "no answer";
    const since = this.at ? ` Its rows are as they were at ${clock(this.at)}.` : "";
    this.reports.table(`${why}.${since}`);
    byId("list").classList.add("stale");
  }

  /** Shows the filters and the order of the view. */
  showControls() {
    const contains = byId("contains");
    if (document.activeElement !== contains) contains.value = view.contains;
    for (const kind of ["csv", "json"]) byId(kind).href = addressOf(`api/v1/buckets.${kind}`, wanted());
    const chosen = view.filter.split(",");
    for (const button of byId("filters").querySelectorAll("[data-filter]")) setAttribute(button, "aria-pressed", chosen.includes(button.dataset.filter));
    const sort = view.sort.replace(/^-/, "");
    for (const head of byId("buckets").tHead.querySelectorAll("th")) {
      const button = head.querySelector("button");
      if (!button) continue;
      const sorted = button.dataset.sort === sort;
      setAttribute(head, "aria-sort", sorted ? (view.sort.startsWith("-") ? "descending" : "ascending") : "none");
    }
    byId("within").value = view.within;
    const more = Object.entries(view.more).map(([name, value]) => make("button", {
      type: "button", "aria-pressed": "true", title: "Take this filter away", text: `${name} ${value}`,
      onclick: () => go({ more: Object.fromEntries(Object.entries(view.more).filter(([other]) => other !== name)), cursor: "" }),
    }));
    byId("more-filters").replaceChildren(...more);
    this.markSelected();
  }

  /** Whether somebody points at a row or has focused it: it must not move away from the click. */
  inUse() {
    return performance.now() - this.pointed < rest || (document.hasFocus() && this.body.contains(document.activeElement));
  }

  /** Shows an answer. With inPlace the rows stay where they are, and only their figures change. */
  show(answer, { inPlace = false } = {}) {
    const { sources, matched, buckets, next } = answer;
    this.kept = inPlace ? answer : null;
    this.sources = sources;
    this.next = next;
    this.reports.sources(sources);
    const several = sources.length > 1;
    byId("buckets").classList.toggle("one-source", !several);
    part(byId("filters"), "within").hidden = !several && !view.within;
    fill(byId("within"), [make("option", { value: "", text: "all sources" }), ...sources.map(({ name }) => make("option", { value: name, text: name }))]);
    byId("within").value = view.within;
    let place = this.body.firstElementChild;
    const seen = new Set();
    for (const bucket of buckets) {
      const name = `${bucket.source} ${bucket.id}`;
      seen.add(name);
      let row = this.rows.get(name);
      if (!row && inPlace) continue;
      if (!row) {
        row = newRow(bucket);
        this.rows.set(name, row);
      }
      const { followed } = this;
      fillRow(row, followed?.source === bucket.source && followed.id === bucket.id ? followed : bucket, sources);
      row.classList.remove("past");
      if (inPlace) continue;
      if (row === place) place = place.nextElementSibling;
      else this.body.insertBefore(row, place);
    }
    for (const [name, row] of this.rows) {
      if (seen.has(name)) continue;
      row.classList.toggle("past", inPlace); // its figures are no longer those of now
      if (inPlace) continue;
      row.remove();
      this.rows.delete(name);
    }
    this.markSelected();
    this.summarize(sources, matched, buckets.length, next);
  }

  /**
   * Shows in the row of a bucket what the stream has told of it, whatever the list says, which is of
   * another instant: the row must not say something else than the tiles above it. null if the stream
   * tells of no bucket.
   */
  follow(bucket) {
    this.followed = bucket;
    const row = bucket && this.rows.get(`${bucket.source} ${bucket.id}`);
    if (row && this.sources.length > 0) fillRow(row, bucket, this.sources);
  }

  summarize(sources, matched, shown, next) {
    const total = sources.reduce((sum, source) => sum + (source.keys ?? 1), 0);
    const narrowed = view.contains || view.filter || view.within || Object.keys(view.more).length > 0;
    let text = narrowed ? `${count(matched)} of ${count(total)} match` : `${count(matched)} ${matched === 1 ? "bucket" : "buckets"}`;
    if (shown < matched) text += `, ${count(shown)} shown`;
    setText(byId("matched"), text);
    const empty = byId("nothing");
    empty.hidden = shown > 0;
    if (shown === 0) {
      setText(empty, sources.length === 0 ? "No source has been added yet." : narrowed ? "No bucket matches. Take away a filter to see more." : "No bucket yet: a bucket appears with the first request of its key.");
    }
    const more = byId("more");
    more.hidden = next == null;
    if (next != null) more.href = href({ cursor: next });
    const first = byId("first");
    first.hidden = !view.cursor;
    first.href = href({ cursor: "" });
  }

  /** Marks the row of the bucket that is shown above; id is null for a whole group, which has no row. */
  select(source, id) {
    this.selected = { source, id };
    this.markSelected();
  }

  markSelected() {
    for (const row of this.rows.values()) {
      const selected = row.dataset.source === this.selected?.source && fromServer(row.dataset.id) === this.selected.id;
      setAttribute(row.querySelector("a"), "aria-current", selected ? "true" : null);
    }
  }
}

/** The buckets that the view wants and their order, as parameters of the API. */
function wanted() {
  const query = { ...view.more, source: view.within, contains: view.contains, sort: view.sort };
  for (const name of view.filter.split(",").filter(Boolean)) Object.assign(query, filters[name] ?? { filter: name }); // The server says that there is no such filter.
  return query;
}

function newRow(bucket) {
  const cell = (name, ...children) => make("td", { class: name }, ...children);
  return make("tr", { "data-id": bucket.id, "data-source": bucket.source },
    make("th", { scope: "row", class: "key" }, make("a"), make("span", { class: "badges" })),
    cell("source"), cell("fill", newMeter(), make("span", { class: "percent" })), cell("waiting"), cell("oldest_wait"), cell("level"),
    cell("refused"), cell("departed"), cell("abandoned"), cell("idle"), cell("limits"));
}

/** A bar whose length is an attribute: style attributes are not allowed. */
function newMeter() {
  const meter = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  meter.append(document.createElementNS("http://www.w3.org/2000/svg", "rect"));
  const attributes = { class: "meter", viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" };
  for (const [name, value] of Object.entries(attributes)) meter.setAttribute(name, value);
  meter.firstChild.setAttribute("height", "1");
  return meter;
}

function fillRow(row, bucket, sources) {
  const link = row.querySelector("a");
  const isShaper = sources.some((source) => source.name === bucket.source && source.kind === "shaper");
  setText(link, isShaper ? bucket.source : nameOf(fromServer(bucket.id)));
  setAttribute(link, "title", link.textContent.length > 20 ? link.textContent : null);
  setAttribute(link, "href", href({ source: bucket.source, id: fromServer(bucket.id) }));
  setText(part(row, "badges"), [bucket.dry_run ? "dry run" : "", bucket.override ? "changed" : "", bucket.held_until ? "held" : "", bucket.blocked_until ? "blocked" : "", bucket.shared && bucket.shared.state !== "shared" ? "bucket unavailable" : "", bucket.refusing ? (bucket.dry_run ? "would refuse" : "refusing") : ""].filter(Boolean).join(", "));
  setText(part(row, "source"), bucket.source);
  setAttribute(row.querySelector("rect"), "width", bucket.fill.toFixed(2));
  setText(part(row, "percent"), percent(bucket.fill));
  row.classList.toggle("refusing", bucket.refusing);
  const figures = {
    waiting: count(bucket.waiting), level: number(bucket.level), oldest_wait: bucket.waiting > 0 ? duration(bucket.oldest_wait_s) : "–",
    refused: count(bucket.refused), departed: count(bucket.departed),
    abandoned: count(bucket.abandoned), idle: idle(bucket.idle_s), limits: bucket.limits,
  };
  for (const [name, text] of Object.entries(figures)) setText(part(row, name), text);
}
