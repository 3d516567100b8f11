// The keys that share the rate of a shaper with fair queueing: a bar for each line, and whose
// requests have left, as a band. A key keeps its color, its pattern and its number as long as
// it is shown, so that the rows stand still while the lines grow and drain.

import { byId, fill, make, nameOf, setAttribute, setText, svg } from "./dom.js";
import { count, duration, number, percent, several } from "./format.js";
import { noPlace } from "./story.js";
import { fromServer } from "./url.js";

const colored = 8;
const seconds = 60;
const namedFrom = 12; // px of a layer of the band that has room for its number

export class Turns {
  constructor() {
    this.slots = new Array(colored).fill(null); // ids of the keys that have a color
    this.view = null;
    byId("turns-more").addEventListener("click", () => {
      setAttribute(byId("turns-more"), "aria-pressed", byId("turns-more").getAttribute("aria-pressed") !== "true");
      this.show(this.view, this.bucket);
    });
    new ResizeObserver(() => this.view && this.drawBand()).observe(byId("turns-band"));
  }

  /** Begins anew, for another bucket. */
  clear() {
    this.slots.fill(null);
    this.show(null, null);
  }

  /** Shows what the stream tells of the keys; null: the bucket has none that take turns. */
  show(view, bucket) {
    Object.assign(this, { view, bucket });
    byId("turns").hidden = !view;
    if (!view) return;
    const rows = this.assign(view.rows);
    const rest = view.rows.filter((row) => !this.slots.includes(row.id));
    const all = byId("turns-more").getAttribute("aria-pressed") === "true";
    this.layers = [...rows.map((row) => row && row.departed), sumOf([view.others.departed, ...rest.map((row) => row.departed)])];
    const others = {
      keys: view.others.keys + (all ? 0 : rest.length),
      waiting: view.others.waiting + (all ? 0 : total(rest, "waiting")),
      departed: view.others.departed_sum + (all ? 0 : total(rest, "departed_sum")),
    };
    const left = total(view.rows, "departed_sum") + view.others.departed_sum;
    const longest = Math.max(1, others.waiting, ...view.rows.map((row) => row.waiting));
    const bars = [];
    rows.forEach((row, slot) => row && bars.push(this.row(row, slot, longest, left)));
    if (all) for (const row of rest) bars.push(this.row(row, null, longest, left));
    if (others.waiting > 0 || others.departed > 0) bars.push(this.othersRow(others, longest, left));
    fill(byId("turns-table").tBodies[0], bars);
    byId("turns-more").hidden = rest.length === 0 && !all;
    setText(byId("turns-more"), all ? "Show fewer keys" : `Show ${several(rest.length, "more key")}`);
    setText(byId("turns-words"), view.keys === 0 ? "Nobody waits." : `${several(view.waiting, "request")} of ${several(view.keys, "key")} ${view.waiting === 1 ? "waits" : "wait"}.`);
    setText(byId("turns-where"), bucket?.shared ? "These are the keys of this process; the others that share its bucket have lines of their own." : "");
    this.drawBand();
  }

  /**
   * Gives the keys with the longest lines a color each, and returns their rows by color. A key
   * that has one gives it up only to a line that is half as long again, else lines of nearly
   * one length would change colors all the time.
   */
  assign(rows) {
    const score = (row) => (this.slots.includes(row.id) ? 1.5 * row.waiting + 1 : row.waiting);
    const first = rows.map((row) => [score(row), row]).sort(([a, x], [b, y]) => b - a || y.departed_sum - x.departed_sum).slice(0, colored).map(([, row]) => row);
    const byKey = new Map(first.map((row) => [row.id, row]));
    this.slots = this.slots.map((id) => (byKey.has(id) ? id : null));
    for (const id of byKey.keys()) if (!this.slots.includes(id)) this.slots[this.slots.indexOf(null)] = id;
    return this.slots.map((id) => byKey.get(id) ?? null);
  }

  /** The place of a key among those that have a color; null if it has none. */
  slotOf(id) {
    const slot = this.slots.indexOf(id);
    return slot < 0 ? null : slot;
  }

  row(row, slot, longest, left) {
    const name = nameOf(fromServer(row.id)) + (row.cut ? "…" : "");
    return make("tr", {},
      make("th", { scope: "row" }, swatch(slot), make("span", { class: "name", text: name, title: name })),
      make("td", { class: "bar" }, shareBar(slot, row.waiting / longest)),
      cell("waiting", count(row.waiting)), cell("weight", row.weight == null ? "–" : count(row.weight)), cell("cost", count(row.cost)),
      cell("oldest", row.oldest_wait_s == null ? "–" : duration(row.oldest_wait_s)), cell("leaves", this.leaves(row)),
      cell("left", `${count(row.departed_sum)}${left > 0 ? ` (${percent(row.departed_sum / left)})` : ""}`));
  }

  othersRow({ keys, waiting, departed }, longest, left) {
    return make("tr", { class: "others" },
      make("th", { scope: "row" }, swatch(null), make("span", { class: "name", text: keys > 0 ? `${several(keys, "other key")}` : "all others" })),
      make("td", { class: "bar" }, shareBar(null, waiting / longest)),
      cell("waiting", count(waiting)), cell("weight", "–"), cell("cost", "–"), cell("oldest", "–"), cell("leaves", "–"),
      cell("left", `${count(departed)}${left > 0 ? ` (${percent(departed / left)})` : ""}`));
  }

  leaves(row) {
    if (row.waiting === 0) return "–";
    if (noPlace(this.bucket)) return this.bucket.in_flight > 0 ? "when one ends" : "with a seat";
    if (row.leaves_in_s == null) return "later";
    return row.leaves_in_s <= 0 ? "now" : `in ${duration(row.leaves_in_s)}`;
  }

  /** Draws whose requests left in each second, one layer above the other. */
  drawBand() {
    const place = byId("turns-band");
    const width = place.clientWidth;
    const height = place.clientHeight;
    if (!this.layers || width === 0) return;
    const sums = sumOf(this.layers);
    const top = Math.max(1, ...sums);
    const ground = new Array(sums.length).fill(0);
    const numbers = [];
    this.layers.forEach((layer, slot) => {
      const steps = [];
      const from = sums.length - (layer?.length ?? 0);
      for (let i = 0; i < (layer?.length ?? 0); i++) {
        const at = i + from;
        if (layer[i] === 0) continue;
        const x = width * (seconds - sums.length + at) / seconds;
        const y = height * (1 - (ground[at] + layer[i]) / top);
        const thick = height * layer[i] / top;
        steps.push(`M${x.toFixed(1)} ${y.toFixed(1)}h${(width / seconds).toFixed(1)}v${thick.toFixed(1)}h${(-width / seconds).toFixed(1)}z`);
        if (at === sums.length - 2 && slot < colored && thick >= namedFrom) numbers.push([slot, x, y + thick / 2]);
        ground[at] += layer[i];
      }
      setAttribute(byId(`turns-layer-${slot + 1}`), "d", steps.join(""));
    });
    byId("turns-numbers").replaceChildren(...numbers.flatMap(([slot, x, y]) => numberAt(slot, x, y)));
    setText(byId("turns-top"), `${number(top)}/s`);
    setAttribute(place, "aria-label", `Whose requests left in the last ${several(sums.length, "second")}: up to ${number(top)} a second. The table has the sums.`);
  }
}

/** A key's color, pattern and number; the others (null) are grey and have no number. */
export function swatch(slot) {
  return make("span", { class: "swatch-of-turn" }, shareBar(slot, 1), make("b", { text: slot == null ? "" : String(slot + 1) }));
}

/** A bar of a key, as a share of the room there is. */
export function shareBar(slot, share) {
  const shape = svg("svg", { class: "turn", "aria-hidden": "true" });
  const paint = slot == null ? { class: "others" } : { fill: `url(#turn-${slot + 1})` };
  shape.append(svg("rect", { width: `${(100 * share).toFixed(1)}%`, height: "100%", ...paint }));
  return shape;
}

function numberAt(slot, x, y) {
  const text = svg("text", { x: (x - 2).toFixed(1), y: y.toFixed(1) });
  text.textContent = String(slot + 1);
  return [svg("circle", { cx: (x - 2).toFixed(1), cy: y.toFixed(1), r: 6.5 }), text];
}

const cell = (name, text) => make("td", { class: name, text });

const total = (rows, field) => rows.reduce((sum, row) => sum + row[field], 0);

/** The sums of lists that end at one instant. */
function sumOf(lists) {
  const length = Math.max(0, ...lists.map((list) => list?.length ?? 0));
  const sums = new Array(length).fill(0);
  for (const list of lists) (list ?? []).forEach((n, i) => { sums[length - list.length + i] += n; });
  return sums;
}
