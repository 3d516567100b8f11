// The tiles: the present figures, each with its last minute as a small curve.

import { byId, part, setAttribute, setText } from "./dom.js";
import { number, rate } from "./format.js";

const width = 100;
const height = 24;

export class Tiles {
  constructor(history) {
    this.history = history;
    this.tiles = [...byId("tiles").querySelectorAll("[data-tile]")];
  }

  /**
   * Shows the latest point. whole: of all buckets of a group; otherwise of one, which is
   * null if it does not exist just now.
   */
  show(bucket, whole) {
    const point = this.history.last;
    for (const tile of this.tiles) {
      const counted = point && !(tile.dataset.tile === "in_flight" && withoutCap(bucket));
      const text = counted ? figure(point[tile.dataset.tile]) : "–";
      setText(part(tile, "number"), text);
      tile.classList.toggle("long", text.length > 6);
      setText(part(tile, "note"), point ? note(tile.dataset.tile, point, bucket, whole) : "");
    }
    byId("tiles").classList.toggle("refusing", (point?.refusals ?? 0) > 0);
  }

  /**
   * Draws the curves. Once a second is enough for
   * them, and one value for each: the greatest.
   */
  drawCurves() {
    const ages = this.history.ages();
    for (const tile of this.tiles) {
      const values = this.history.values(tile.dataset.tile);
      const top = Math.max(1e-9, ...values);
      const points = [];
      const first = values.at(-1) == null ? values.length : values.length % 4; // What has no value has no curve.
      for (let i = first; i < values.length; i += 4) {
        const most = Math.max(...values.slice(i, i + 4));
        points.push(`${((ages[i] + 60) / 60 * width).toFixed(1)},${(height - 1 - most / top * (height - 3)).toFixed(1)}`);
      }
      setAttribute(tile.querySelector("polyline"), "points", points.join(" "));
    }
  }
}

/** A figure that changes four times a second: from 10 on, what stands behind the point would only flicker. */
function figure(x) {
  return x == null ? "–" : number(x >= 9.95 ? Math.round(x) : Number(x.toFixed(1)));
}

function note(tile, point, bucket, whole) {
  switch (tile) {
    case "arrivals":
      return point.rate == null ? "" : share(point.arrivals, point.rate);
    case "departures":
      return point.rate == null ? "" : `drain rate ${rate(point.rate)}`;
    case "refusals":
      return point.dry_run ? "it is a dry run" : "turned away at once";
    case "abandoned":
      return "before their turn";
    case "waiting":
      if (whole) return "in all lines";
      return point.depth == null ? "" : point.depth === 0 ? "none may wait" : `of ${number(point.depth)} places`;
    case "level":
      return whole ? "each has its own" : bucket ? `of a burst of ${number(bucket.burst)}` : "";
    default:
      if (whole) return point.in_flight == null ? "not counted" : "where there is a cap";
      return !bucket ? "" : withoutCap(bucket) ? "no cap" : `of at most ${number(bucket.in_flight_max)}`;
  }
}

/** Whether a bucket lets any number of requests be in flight, which are not counted then. */
function withoutCap(bucket) {
  return bucket != null && !bucket.in_flight_max;
}

function share(x, drainRate) {
  return x <= drainRate * 1.05 ? "within the drain rate" : `${number(x / drainRate)} × drain rate`;
}
