// The bucket as a picture: what flows in, how full it is, what leaks out, and what does
// not find room. The story beside it says the same in words.

import { byId } from "./dom.js";

const widest = 26; // of what flows in
const fall = 14; // units in a second, of the drops that leak out or run over: whole dashes of both
const reduced = matchMedia("(prefers-reduced-motion: reduce)");

export class Picture {
  constructor() {
    this.picture = byId("picture");
    for (const name of ["water", "inflow", "outflow", "overflow"]) this[name] = this.picture.querySelector(`.${name}`);
  }

  /** Shows a point; all buckets together are no bucket, which has no picture. */
  show(point, bucket) {
    this.picture.classList.toggle("none", point?.rate == null);
    if (point?.rate == null) return;
    const room = Math.max(1, bucket?.burst ?? 1) + (point.depth ?? 0);
    const full = Math.min(1, ((point.level ?? 0) + point.waiting) / room);
    this.water.style.transform = `scaleY(${full.toFixed(3)})`;
    // What leaks out at the drain rate is 5 wide; twice as much is wider by as much each time.
    const width = point.arrivals === 0 ? 0 : Math.min(widest, Math.max(1.5, 5 + 5 * Math.log2(point.arrivals / point.rate)));
    this.inflow.style.strokeWidth = width.toFixed(1);
    this.inflow.classList.toggle("off", width === 0);
    this.drip(this.outflow, point.departures > 0, point.at_ms);
    this.drip(this.overflow, point.refusals > 0, point.at_ms);
  }

  /**
   * Lets drops fall with the points, which come five times a second. An animation of the style sheet would let
   * the browser paint sixty times a second, also while nothing flows.
   */
  drip(path, flows, now) {
    path.classList.toggle("off", !flows);
    if (flows) path.style.strokeDashoffset = reduced.matches ? "0" : (-fall * (now % 1000) / 1000).toFixed(1);
  }
}
