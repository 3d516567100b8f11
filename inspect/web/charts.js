// The two charts of the last minute or hour, one above the other with one time axis:
// requests per second, and the line.

import { byId, part, setAttribute, setText } from "./dom.js";
import { colors } from "./theme.js";
import { clock, number, rate } from "./format.js";
import { spans, valueAt } from "./history.js";

const axisWidth = 60; // px: room for "500,000"
const dotted = [2, 4];
const rates = ["arrivals", "departures", "refusals", "abandoned"];

/** A round number not below x, for the upper end of an axis. */
function roundUp(x) {
  if (!(x > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(x));
  return power * [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((step) => step * power >= x * 0.999999);
}

/** The upper end of an axis: it shows the bound unless that would flatten what is measured. */
function upperEnd(measured, bound) {
  const shown = bound != null && (measured === 0 || bound <= 8 * measured) ? Math.max(measured, bound) : measured;
  return roundUp(Math.max(1, shown) * 1.08);
}

/** The values without those zeros that lie between zeros, which would only underline the axis. */
function sparse(values) {
  return values.map((value, i) => (value || values[i - 1] || values[i + 1] ? value : null));
}

export class Charts {
  constructor(history) {
    this.history = history;
    this.dryRun = false;
    this.weighed = false; // costs are not all 1, so the drain rate is not one of requests
    this.rate = this.plot("chart-rate", [
      { field: "arrivals", color: "arrivals", fill: true, width: 1.25 },
      { field: "arrivals_most", color: "arrivals", width: 1, sparse: true },
      { field: "refusals", color: "refusals", dash: [6, 4], width: 1.75, sparse: true },
      { field: "abandoned", color: "gave-up", dash: [8, 3, 2, 3], width: 1.75, sparse: true },
      { field: "departures", color: "departures", width: 2.5 },
      { field: "departures_most", color: "departures", width: 1, sparse: true },
      { field: "rate", color: "departures", dash: dotted, width: 1.5, stepped: true },
    ], { bound: "rate", measured: ["arrivals", "arrivals_most", "refusals", "abandoned", "departures", "departures_most"], boundText: (x) => `drain rate ${rate(x)}`, times: false });
    this.line = this.plot("chart-line", [
      { field: "waiting", color: "line", fill: true, width: 2 },
      { field: "depth", color: "line", dash: dotted, width: 1.5, stepped: true },
    ], { bound: "depth", measured: ["waiting"], boundText: (x) => (x === 0 ? "none may wait" : `full at ${number(x)}`), times: true });
  }

  plot(id, series, { bound, measured, boundText, times }) {
    const place = byId(id);
    const height = () => place.clientHeight;
    const path = (field) => this.pathOf(field);
    const upper = () => upperEnd(this.history.max(...measured.map(path).filter(Boolean)), path(bound) && (this.history.max(bound) || this.history.last?.[bound]));
    const grid = { stroke: () => colors().grid, width: 1 };
    const text = { stroke: () => colors().muted, font: "12px system-ui, sans-serif" };
    const plot = new globalThis.uPlot({
      width: place.clientWidth || 600,
      height: height() || 200,
      padding: [14, 14, times ? 0 : 6, 0],
      legend: { show: false },
      cursor: { sync: { key: "time" }, y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: () => [-this.history.span, 0] }, y: { range: () => [0, upper()] } },
      axes: [
        {
          ...text, grid, ticks: { show: false }, size: times ? 26 : 4, gap: 6,
          splits: () => [-6, -5, -4, -3, -2, -1, 0].map((k) => (k * this.history.span) / 6),
          values: (_, splits) => splits.map((s) => (!times || (place.clientWidth < 480 && (6 * s) % (2 * this.history.span) !== 0) ? "" : this.timeText(s))),
        },
        { ...text, grid, ticks: { show: false }, size: axisWidth, gap: 8, space: 36, values: (_, splits) => splits.map((y) => (Number.isInteger(y) || (!times && upper() < 3) ? number(y) : "")) },
      ],
      series: [{}, ...series.map((s) => ({
        stroke: () => colors()[s.color],
        fill: s.fill ? () => colors()[`${s.color}-fill`] : undefined,
        width: s.width,
        dash: s.dash,
        points: { show: false },
        paths: s.stepped ? globalThis.uPlot.paths.stepped({ align: 1 }) : undefined,
      }))],
      hooks: {
        drawAxes: [(u) => this.shadeHolds(u)],
        draw: [(u) => this.nameBound(u, path(bound) && this.history.last?.[bound], boundText, upper())],
        setCursor: [(u) => this.readOut(u.cursor.idx)],
      },
    }, [[], ...series.map(() => [])], place);
    new ResizeObserver(() => {
      if (matchMedia("print").matches) return; // On paper its place is as large as the picture, which is scaled.
      plot.setSize({ width: place.clientWidth, height: height() });
    }).observe(place);
    return { plot, series };
  }

  /**
   * Where the history has a field of the charts. The last minute is of the shortest times that tell
   * something, in which a burst is a burst; a step of the last hour has them as its greatest.
   */
  pathOf(field) {
    const hour = this.history.span === spans.hour;
    if (field === "rate" && this.weighed) return null;
    const [name, most] = field.split("_");
    if (most) return hour ? `brief.${name}` : null;
    return !hour && rates.includes(field) ? `brief.${field}` : field;
  }

  timeText(age) {
    const { at, span } = this.history;
    if (at != null) return clock(at + age * 1000);
    return age === 0 ? "now" : span === spans.hour ? `−${-age / 60} min` : `−${-age} s`;
  }

  /** Draws what the history holds. */
  draw() {
    const ages = this.history.ages();
    for (const { plot, series } of [this.rate, this.line]) {
      plot.setData([ages, ...series.map(({ field, sparse: few }) => {
        const path = this.pathOf(field);
        const values = path ? this.history.values(path) : ages.map(() => null);
        return few ? sparse(values) : values;
      })]);
    }
    this.readOut(this.rate.plot.cursor.idx);
  }

  /** Draws again, in other colors. */
  repaint() {
    this.rate.plot.redraw();
    this.line.plot.redraw();
  }

  shadeHolds(u) {
    const points = this.history.all;
    const ages = this.history.ages();
    const { ctx } = u;
    const scale = devicePixelRatio;
    ctx.save();
    ctx.font = `600 ${12 * scale}px system-ui, sans-serif`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    for (let i = 1; i < points.length; i++) {
      if (!points[i].held) continue;
      const first = i - 1;
      while (points[i + 1]?.held) i++;
      const from = u.valToPos(Math.max(ages[first], -this.history.span), "x", true);
      const width = u.valToPos(ages[i], "x", true) - from;
      ctx.fillStyle = colors().held;
      ctx.fillRect(from, u.bbox.top, width, u.bbox.height);
      ctx.fillStyle = colors().muted;
      if (width > 36 * scale) ctx.fillText("held", from + 4 * scale, u.bbox.top + 3 * scale);
    }
    ctx.restore();
  }

  /** Writes what the dotted line is above its right end, on a ground that keeps it readable. */
  nameBound(u, value, name, upper) {
    if (value == null) return;
    const beyond = value > upper;
    const text = beyond ? `${name(value)} ↑` : name(value);
    const scale = devicePixelRatio;
    const { ctx } = u;
    ctx.save();
    ctx.font = `600 ${12 * scale}px system-ui, sans-serif`;
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    const width = ctx.measureText(text).width;
    const right = u.bbox.left + u.bbox.width - 4 * scale;
    const y = Math.max(u.bbox.top + 2 * scale, beyond ? 0 : u.valToPos(value, "y", true) - 10 * scale);
    ctx.fillStyle = colors().halo;
    ctx.fillRect(right - width - 4 * scale, y - 8 * scale, width + 8 * scale, 16 * scale);
    ctx.fillStyle = colors()[u === this.line?.plot ? "line" : "departures"];
    ctx.fillText(text, right, y);
    ctx.restore();
  }

  /** Shows in the legends the values under the pointer, or the latest. */
  readOut(index) {
    const point = index == null ? this.history.last : this.history.all[index];
    for (const item of document.querySelectorAll(".legend [data-series]")) {
      const { series } = item.dataset;
      const path = index == null && !series.endsWith("_most") && series !== "rate" ? series : this.pathOf(series); // now is the last second, as in the tiles
      const value = path && point ? valueAt(point, path) : null;
      const text = value == null ? "–" : series === "depth" || series === "waiting" ? number(value) : rate(value >= 9.95 && series !== "rate" ? Math.round(value) : value);
      setText(part(item, "value"), text);
      item.hidden = value == null && point != null; // all of a group have no drain rate and no bound
    }
    const age = point ? (this.history.end - point.at_ms) / 1000 : 0;
    const now = this.history.at == null ? "now" : `at ${clock(this.history.at)}`;
    setText(byId("readout"), index == null || !(age > 0) ? now : this.history.at == null && age < 120 ? `${age.toFixed(1)} s ago` : `at ${clock(point.at_ms)}`);
  }

  /** Says in words what the charts show. It is called every few seconds, not with every frame. */
  describe() {
    const { last } = this.history;
    if (!last) return;
    const refused = last.dry_run ? "that would be refused" : "refused";
    const most = (field) => this.history.max(`brief.${field}`);
    const span = this.history.span === spans.hour ? "last hour" : "last 60 seconds";
    const bound = last.rate == null || this.weighed ? "" : `; the drain rate is ${rate(last.rate)}`;
    setAttribute(byId("chart-rate"), "aria-label",
      `Requests per second in the ${span}. Arrivals: up to ${rate(most("arrivals"))}, now ${rate(last.arrivals)}. ` +
      `Departures: up to ${rate(most("departures"))}, now ${rate(last.departures)}${bound}. ` +
      `Requests ${refused}: up to ${rate(most("refusals"))}, now ${rate(last.refusals)}. ` +
      `Given up: up to ${rate(most("abandoned"))}, now ${rate(last.abandoned)}.`);
    const depth = last.depth == null ? "" : ` The line is full at ${number(last.depth)}.`;
    setAttribute(byId("chart-line"), "aria-label",
      `Requests in line in the ${span}: up to ${number(this.history.max("waiting"))}, now ${number(last.waiting)}.${depth}`);
  }
}
