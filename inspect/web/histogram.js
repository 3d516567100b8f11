// The two histograms: spacing of departures, which shows how even the comb is, and waits.
// The server counts in fine logarithmic buckets; they are spread here over bars of equal
// width on a logarithmic axis.

import { make, part, setAttribute, setText } from "./dom.js";
import { duration, number, percent, several } from "./format.js";

const growth = 2 ** (1 / 8); // of the server's bounds, which lie half a bucket beside the powers of 2

/** The buckets [upper bound, count] by the value in their middle: 0 and infinity stand for themselves. */
function middles(buckets) {
  return buckets.map(([upper, n]) => [upper == null ? Infinity : upper / Math.sqrt(growth), n]);
}

/** How many are from one value to another. */
function between(values, from, to) {
  return values.reduce((total, [value, n]) => (value >= from && (value < to || to === Infinity) ? total + n : total), 0);
}

const textWidth = 0.24; // of the widest text at a line, as a part of the axis

const sum = (values) => values.reduce((total, [, n]) => total + n, 0);

class Histogram {
  /** edges: of the bars, ascending; marks: [value, text] of the axis. */
  constructor(place, edges, marks) {
    this.place = place;
    this.edges = edges;
    this.bars = edges.slice(1).map(() => make("i"));
    this.lines = make("div", { class: "lines" });
    this.chart = make("div", { class: "bars" }, ...this.bars);
    this.axis = make("div", { class: "axis" });
    place.append(make("div", { class: "plot" }, this.chart, this.lines), this.axis);
    for (const [value, text] of marks) {
      const mark = make("span", { text });
      mark.style.left = `${this.position(value) * 100}%`;
      this.axis.append(mark);
    }
  }

  /** Where a value is on the axis, 0 to 1. */
  position(value) {
    const { edges } = this;
    const last = edges.length - 1;
    if (value < edges[1]) return 0.5 / last; // the first and last bars hold what is beyond
    if (value >= edges[last - 1]) return (last - 0.5) / last;
    const i = edges.findIndex((edge) => edge > value) - 1;
    return (i + Math.log(value / edges[i]) / Math.log(edges[i + 1] / edges[i])) / last;
  }

  draw(values, isMain) {
    const counts = this.bars.map((_, i) => between(values, this.edges[i], this.edges[i + 1]));
    const top = Math.max(1, ...counts);
    this.bars.forEach((bar, i) => {
      const height = counts[i] === 0 ? 0 : Math.max(0.015, counts[i] / top);
      bar.style.transform = `scaleY(${height.toFixed(3)})`;
      bar.classList.toggle("main", isMain(this.edges[i], this.edges[i + 1]));
    });
  }

  /**
   * Draws vertical lines: [value, text], ascending. A text is on the right of its line if it has room there, and
   * below each text that it would overlap. Those on the right are placed from the left, and the others from the
   * right, so that no line crosses the text of another.
   */
  mark(values) {
    const at = values.map(([value]) => this.position(value));
    const left = [];
    for (let k = at.length - 1; k >= 0; k--) left[k] = at[k] > 1 - textWidth || (left[k + 1] && at[k + 1] - at[k] < textWidth);
    const marks = [...at.keys()];
    const texts = []; // where they begin, and their rows
    this.lines.replaceChildren(...[...marks.filter((k) => !left[k]), ...marks.filter((k) => left[k]).reverse()].map((k) => {
      const from = left[k] ? at[k] - textWidth : at[k];
      const row = Math.max(-1, ...texts.filter(([other]) => Math.abs(other - from) < textWidth).map(([, row]) => row)) + 1;
      texts.push([from, row]);
      const line = make("span", { class: left[k] && "left" }, make("b", { text: values[k][1] }));
      line.style.left = `${(at[k] * 100).toFixed(2)}%`;
      line.style.top = `${row * 1.05}rem`;
      return line;
    }));
  }
}

/** Bounds from one power of 2 to another, several to a doubling, that are bounds of the server's too. */
function bounds(from, to, perDoubling) {
  const between = [];
  for (let k = from * perDoubling; k <= to * perDoubling; k++) between.push(2 ** (k / perDoubling + 1 / 16));
  return [0, ...between, Infinity];
}

/** Departures' spacing, in intervals: 1 is the drain rate, exactly. */
export class SpacingHistogram extends Histogram {
  constructor(place) {
    super(part(place, "histogram"), bounds(-3, 3, 8), [[0, "sooner"], [0.25, "¼"], [0.5, "½"], [1, "1×"], [2, "2×"], [4, "4×"], [Infinity, "later"]]);
    this.figure = place;
  }

  /** shared: the level is in a shared bucket, so the departures of this process alone have no spacing. ofQuota: several levels decide, so there is none either. */
  show(raw, scope, shared, ofQuota) {
    const values = middles(raw);
    const total = sum(values);
    this.draw(values, (from, to) => from < 1 && to > 1);
    this.figure.classList.toggle("empty", total === 0);
    let text = shared ? "Not counted: the level is in a shared bucket, and requests of other processes leave in between." :
      ofQuota ? "Not counted: a call leaves when all limits of the quota have room for what it takes, so there is no even comb." : "Nobody left a line in the last 60 s.";
    if (total > 0) {
      const even = between(values, 0.99, 1.01); // the one bucket that has 1 in its middle reaches 4.4 % to both sides
      const closer = between(values, 0, 0.99);
      text = `${percent(even / total)} of ${several(total, "departure")} out of a line${scope} came one interval after the one before (±4.4 %), ` +
        `${percent(closer / total)} sooner, ${percent(Math.max(0, total - even - closer) / total)} later.`;
    }
    setText(part(this.figure, "words"), text);
    setAttribute(this.place, "aria-label", `Histogram of the spacing of departures. ${text}`);
  }
}

/** How long requests waited, in seconds. */
export class WaitHistogram extends Histogram {
  constructor(place) {
    super(part(place, "histogram"), bounds(-10, 6, 2),
      [[0, "none"], [0.01, "10 ms"], [0.1, "100 ms"], [1, "1 s"], [10, "10 s"], [Infinity, "longer"]]);
    this.figure = place;
  }

  show(raw, { p50, p95, p99 }, scope) {
    const values = middles(raw);
    const total = sum(values);
    this.draw(values, () => true);
    this.figure.classList.toggle("empty", total === 0);
    const some = total > 0 && p99 != null;
    const nobody = some && p99 === 0;
    this.mark(some && !nobody ? [[p50, "p50"], [p95, "p95"], [p99, "p99"]].map(([value, name]) => [value, `${name} ${wait(value)}`]) : []);
    const text = nobody ? `Hardly any of ${several(total, "departure")}${scope} waited: 99\u00A0% left at once.` : some
      ? `Half of ${several(total, "departure")}${scope} waited ${atMost(p50)}; 95\u00A0% ${atMost(p95)}, 99\u00A0% ${atMost(p99)}.`
      : "Nobody left in the last 60 s.";
    setText(part(this.figure, "words"), text);
    setAttribute(this.place, "aria-label", `Histogram of waits. ${text}`);
  }
}

function wait(seconds) {
  return seconds === 0 ? "0" : seconds < 1e-3 ? "< 1 ms" : duration(Number(seconds.toPrecision(2)));
}

function atMost(seconds) {
  return seconds === 0 ? "not at all" : seconds < 1e-3 ? "less than 1 ms" : `at most ${wait(seconds)}`;
}
