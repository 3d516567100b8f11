// The bucket as a picture: what flows in, how full it is, what leaks out, and what does
// not find room. The story beside it says the same in words.

import { byId } from "./dom.js";

const widest = 26; // of what flows in

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
    this.outflow.classList.toggle("off", point.departures === 0);
    this.overflow.classList.toggle("off", point.refusals === 0);
  }
}
