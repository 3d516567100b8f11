// One sentence that says what the bucket does just now, for those who see it for the
// first time.

import { nameOf } from "./dom.js";
import { clock, count, duration, rate, several } from "./format.js";
import { fromServer } from "./url.js";

/** What the bucket, or all of a group, does at a point. closed: its source takes no more requests. */
export function story(point, bucket, isBucket, closed) {
  if (!point) return "";
  const would = point.dry_run;
  const wait = would ? "would wait" : point.waiting === 1 ? "waits" : "wait";
  const leave = would ? "would leave" : "leave";
  // Of a shared rate, a line gets what the lines of other processes leave it.
  const drains = point.rate * ((point.waiting > 0 && bucket?.shared?.state === "shared" && bucket.shared.share) || 1);
  const weighed = bucket?.weighed; // The rate is one of costs, not of requests.
  const pace = weighed ? `, ${bucket.quota ? "within the quota, " : ""}for what they cost` : point.rate == null ? "" : `, one every ${duration(1 / drains)}`;
  if (closed && !(point.held && point.waiting > 0)) {
    if (point.waiting === 0) return "Closed: no more requests are taken, and nobody waits any more.";
    return `Closed: no more requests are taken. ${several(point.waiting, "request")} still ${wait}, and will leave in turn${pace}.`;
  }
  if (point.held) {
    const until = bucket?.held_until ? ` until ${clock(bucket.held_until)}` : "";
    return `Held${until}: nobody leaves. ${several(point.waiting, "request")} ${wait}.`;
  }
  if (bucket?.shared?.state === "down") {
    const line = point.waiting > 0 ? ` ${several(point.waiting, "request")} ${wait}.` : "";
    return `The shared bucket can't be asked: nobody leaves, and who comes now is refused.${line}`;
  }
  if (point.rate == null) {
    if (isBucket && !bucket) return "This bucket is empty and does not exist just now. It appears with the next request of its key.";
    if (isBucket) return withoutRate(point, bucket);
    return "All buckets together, each with a drain rate of its own. Open one in the table to see its line fill and drain.";
  }
  if (point.waiting === 0) {
    if (weighed && !(point.refusals > 0)) return `${point.arrivals === 0 ? "Nothing arrives, and nothing waits." : "Nobody waits."} Requests leave as they come${pace}.`;
    if (point.refusals > 0) return `More arrive than may leave: some ${would ? "would be" : "are"} refused.`;
    if (point.arrivals === 0) return `Nothing arrives, and nothing waits. Requests may leave at ${rate(point.rate)}${pace}.`;
    return `${would ? "Nobody would wait" : "Nobody waits: requests leave as they come"}, because fewer arrive than may leave (${rate(point.rate)}${pace}).`;
  }
  const full = point.refusals > 0 && point.depth != null && point.waiting >= point.depth * 0.9;
  const fullLine = `The line is full: who comes now ${would ? "would be" : "is"} refused.`;
  if (noPlace(bucket, point.in_flight)) return `${taken(bucket)}.${full ? ` ${fullLine}` : ""}`;
  if (full) return `${fullLine} The others ${leave} in turn${pace}.`;
  if (weighed) {
    const last = slowest(bucket.lines, drains);
    return `${several(point.waiting, "request")} ${wait}. They ${leave} in turn${pace}${last && `; ${last}`}.`;
  }
  if (point.arrivals > drains * 1.05) return `A burst: more arrive than may leave, so the line grows. Requests ${leave} in turn${pace}.`;
  const last = slowest(bucket?.lines, drains) || `the last ${would ? leave : "leaves"} in ${duration(point.waiting / drains)}`;
  return `The line drains: requests ${leave} in turn${pace}; ${last}.`;
}

/**
 * When the last request leaves of the key whose line takes longest, while others come and take their turns: by the share that
 * the key has had in the last minute, if ten or more have left in it, or that its weight gives it if that is more. "" if no key is known to wait.
 */
function slowest(lines, drains) {
  const left = lines?.reduce((sum, row) => sum + row.departed_sum, 0);
  const weights = lines?.reduce((sum, row) => sum + (row.waiting > 0 || row.departed_sum > 0 ? row.weight ?? 1 : 0), 0);
  let last = null;
  for (const row of lines ?? []) {
    if (row.waiting === 0) continue;
    const takes = row.cost / (drains * Math.max(left >= 10 ? row.departed_sum / left : 0, (row.weight ?? 1) / weights));
    if (!last || takes > last.takes) last = { row, takes };
  }
  if (!last) return "";
  const of = lines.length > 1 ? ` of ${nameOf(fromServer(last.row.id))}` : "";
  return `the last${of} leaves in about ${duration(last.takes)}`;
}

/** What decides how fast requests leave, in one sentence beside their rates. */
export function paceWords(point, bucket, isBucket) {
  if (bucket?.quota) return "Calls come as they like, and leave as the quota allows.";
  const drains = bucket?.weighed ? "the line drains as their costs allow" : point?.rate != null || (isBucket && !bucket) ? "the line drains at the drain rate" : isBucket ? "no drain rate holds them up" : "each line drains at its own drain rate";
  return `Arrivals come as they like; ${drains}.`;
}

/** What a bucket does that has no drain rate: only a cap on those in flight can make requests wait. */
function withoutRate(point, bucket) {
  const ofAll = bucket.shared?.in_flight_max;
  const most = Math.min(bucket.in_flight_max || Infinity, ofAll || Infinity);
  if (most === Infinity) return "No drain rate: every request leaves at once.";
  const cap = `No drain rate, but at most ${several(most, "request")}${most === ofAll ? " of all processes" : ""} may be in flight`;
  if (point.waiting === 0) return `${cap}: requests leave at once while a place in flight is free.`;
  const wait = `${count(point.waiting)} ${point.waiting === 1 ? "waits" : "wait"} for a place`;
  return ofAll && noPlace(bucket, point.in_flight) ? `${cap}: ${wait}. ${taken(bucket)}.` : `${cap}: ${wait}, and the next leaves when one in flight ends.`;
}

/** How many requests of a bucket may be in flight in this process just now: by its own cap, and by its seats of the cap of all processes. */
function places({ in_flight_max: own, shared }) {
  return Math.min(own || Infinity, shared?.in_flight_max ? shared.seats : Infinity);
}

/** Whether requests of a bucket wait for a place in flight, and not for their turn. A dry run leaves the cap out. */
export function noPlace(bucket, inFlight = bucket?.in_flight) {
  return bucket != null && !bucket.dry_run && inFlight >= places(bucket);
}

/** Which cap has no place in flight left, and when the next request leaves. */
function taken(bucket) {
  const most = places(bucket);
  const { in_flight_max: ofAll, seats } = bucket.shared ?? {};
  if (!ofAll || most < seats) return `${most === 1 ? "The place in flight is taken" : `All ${count(most)} places in flight are taken`}: the next request leaves when one in flight ends`;
  if (most === 0) return `This process has none of the ${several(ofAll, "seat")} of all processes: the next request leaves when it gets one`;
  return `${most === 1 ? "The seat of this process is taken" : `All ${count(most)} seats of this process are taken`}, of ${count(ofAll)} of all: the next request leaves when one in flight ends, or another process gives a seat back`;
}

/** The most that may be in flight of a bucket: "20", or "20, of all" if all processes together have that cap; "" if any number may be. */
export function capWords({ in_flight_max: own, shared }, write = count) {
  const ofAll = shared?.in_flight_max;
  return ofAll && !(own && own <= ofAll) ? `${write(ofAll)}, of all` : own ? write(own) : "";
}
