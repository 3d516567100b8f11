// The tiles: the present figures, each with the time that is shown as a small curve.

import { byId, part, setAttribute, setText } from "./dom.js";
import { number, percent, rate } from "./format.js";
import { spans } from "./history.js";
import { capWords } from "./story.js";

const briefly = ["arrivals", "departures", "refusals", "abandoned"]; // with rates over less than a second
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
      const isShare = counted && tile.dataset.tile === "level" && bucket?.quota; // of the highest of its levels
      const text = isShare ? percent(bucket.quota.level) : counted ? figure(point[tile.dataset.tile]) : "–";
      setText(part(tile, "number"), text);
      tile.classList.toggle("long", text.length > 6);
      setText(part(tile, "note"), point ? note(tile.dataset.tile, point, bucket, whole, this.history) : "");
    }
    byId("tiles").classList.toggle("refusing", (point?.refusals ?? 0) > 0);
  }

  /** Draws the curves. Once a second is enough for them, with the greatest of some values for all of them. */
  drawCurves() {
    const ages = this.history.ages();
    const { span } = this.history;
    const together = span === spans.hour ? 4 : 10;
    for (const tile of this.tiles) {
      const name = tile.dataset.tile;
      const values = this.history.values(briefly.includes(name) ? `brief.${name}` : name);
      const top = Math.max(1e-9, ...values);
      const points = [];
      const first = values.at(-1) == null ? values.length : values.length % together; // What has no value has no curve.
      for (let i = first; i < values.length; i += together) {
        const most = Math.max(...values.slice(i, i + together));
        points.push(`${((ages[i] + span) / span * width).toFixed(1)},${(height - 1 - most / top * (height - 3)).toFixed(1)}`);
      }
      setAttribute(tile.querySelector("polyline"), "points", points.join(" "));
    }
  }
}

/** A figure that changes four times a second: from 10 on, what stands behind the point would only flicker. */
function figure(x) {
  return x == null ? "–" : number(x >= 9.95 ? Math.round(x) : Number(x.toFixed(1)));
}

function note(tile, point, bucket, whole, history) {
  switch (tile) {
    case "arrivals":
      return point.rate == null || bucket?.weighed ? "" : share(point.arrivals, history.lately("brief.arrivals", 5), point.rate);
    case "departures":
      return point.rate == null || bucket?.weighed ? "" : `drain rate ${rate(point.rate)}`;
    case "refusals":
      return point.dry_run ? "it is a dry run" : "turned away at once";
    case "abandoned":
      return "before their turn";
    case "waiting":
      if (whole) return "in all lines";
      return point.depth == null ? "" : point.depth === 0 ? "none may wait" : `of ${number(point.depth)} places`;
    case "level":
      return whole ? "each has its own" : bucket?.quota ? highest(bucket.quota) : bucket ? `of a burst of ${number(bucket.burst)}` : "";
    default:
      if (whole) return point.in_flight == null ? "not counted" : "where there is a cap";
      return !bucket ? "" : withoutCap(bucket) ? "no cap" : `of at most ${capWords(bucket, number)}`;
  }
}

/** The limit of a quota of which most is taken just now. */
function highest({ parts }) {
  if (parts.length < 2) return "of what may leave at once";
  const { name } = parts.reduce((most, part) => (part.level > most.level ? part : most));
  return `of the ${name} that may leave at once`;
}

/** Whether a bucket lets any number of requests be in flight, which are not counted then. */
function withoutCap(bucket) {
  return bucket != null && !capWords(bucket);
}

function share(x, burst, drainRate) {
  if (burst > 1.5 * Math.max(x, drainRate)) return `bursts of ${rate(burst)}`; // which the mean of a second hides
  return x <= drainRate * 1.05 ? "within the drain rate" : `${number(x / drainRate)} × drain rate`;
}
