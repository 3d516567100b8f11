// The bucket that is open: its limits in words and whence they come, the line, the last
// refusals, what it has counted.

import { byId, fill, make, nameOf, setText } from "./dom.js";
import { clock, count, duration, idle, number, percent, rate, several } from "./format.js";
import { get } from "./api.js";
import { capWords, noPlace } from "./story.js";
import { toPath } from "./url.js";

const every = 1900; // ms at least between two readings; they are made once a second or less
const gone = "Its limits, its line and its counts will be shown here."; // the story says that it does not exist
const shown = 6; // of those in line, and of the refusals
const forfeiting = 5000; // ms for which it is told that units have been forfeited

export class Detail {
  constructor(onBucket) {
    this.onBucket = onBucket;
  }

  /** Sets which bucket refresh reads. */
  open(source, id) {
    const path = `api/v1/buckets/${encodeURIComponent(source)}/${toPath(id)}`;
    if (path === this.path) return;
    this.stop();
    this.path = path;
    this.latest = -Infinity;
    this.forfeited = null;
    this.forfeitedAt = -Infinity;
    // What is there is of another bucket.
    setText(byId("limits-text"), "");
    byId("detail").classList.add("loading");
  }

  stop() {
    this.request?.abort();
    this.request = null;
  }

  /** Lets the next refresh read the bucket, however short ago the last one was: it has been changed. */
  soon() {
    this.stop();
    this.latest = -Infinity;
  }

  close() {
    this.stop();
    this.path = null;
    byId("detail").hidden = true;
  }

  /** Reads the bucket anew unless that was done just now. The stream says whether there is one. */
  async refresh(exists, ofQuota) {
    this.ofQuota = ofQuota;
    if (!exists) return this.fail(gone);
    if (!this.path || this.request || performance.now() - this.latest < every) return;
    const request = new AbortController();
    this.request = request;
    try {
      this.show(await get(this.path, {}, request.signal));
      this.latest = performance.now();
    } catch (error) {
      if (!request.signal.aborted && error.status) this.fail(error.status === 404 ? gone : error.message);
    } finally {
      if (this.request === request) this.request = null;
    }
  }

  fail(message) {
    byId("detail").hidden = false;
    byId("detail").classList.add(message === gone ? "gone" : "unread");
    setText(byId("gone"), message);
    if (message !== gone) return;
    byId("detail").classList.remove("loading");
    // The last figures stay, but nobody is in line any more.
    setText(byId("line-summary"), "Nobody waits: the bucket is empty.");
    rows(byId("waiters"), 0, []);
  }

  show(answer) {
    const { bucket, meters, adapt, in_words: words, rule, next_departure: next, line, refusals } = answer;
    byId("detail").hidden = false;
    byId("detail").classList.remove("gone", "unread", "loading");
    setText(byId("limits-text"), bucket.limits);
    fill(byId("limits-words"), words.map((text) => make("li", { text })));
    fill(byId("meters"), meters.map((meter) => make("li", { text: meterText(meter, this.ofQuota) })));
    const { override } = bucket;
    setText(byId("override"), override ? `Set at ${clock(override.from)} by ${override.who}, until ${clock(override.until)}; before: ${override.before}.${override.error ? ` It could not be ended: ${override.error}.` : ""}` : "");
    byId("override").hidden = !override;
    setText(byId("rule"), rule ? `${override ? "In place of rule" : "Rule"} ${rule.rule}, ${rule.file}:${rule.line}` : "");
    byId("rule").hidden = !rule;
    const held = bucket.held_until ? `Held until ${clock(bucket.held_until)}.` : "";
    const blocked = bucket.blocked_until ? `Blocked until ${clock(bucket.blocked_until)}: newcomers are refused.` : "";
    setText(byId("held"), [held, blocked].filter(Boolean).join(" "));
    setText(byId("shared"), bucket.shared ? sharedText(bucket.shared) : "");
    setText(byId("adapts"), adapt ? adaptText(adapt) : "");
    setText(byId("forfeits"), this.forfeits(bucket) ? "Burst is too small for what is in flight: what was reserved too much has drained before it was settled, and can't be given back." : "");
    setText(byId("line-summary"), summary(bucket, next, line));
    rows(byId("waiters"), line.waiting, line.line.slice(0, shown).map((w) => [String(w.position), count(w.cost), duration(w.waited_s), w.leaves_in_s == null || noPlace(bucket) ? "–" : w.leaves_in_s <= 0 ? "now" : `in ${duration(w.leaves_in_s)}`, ...(w.key == null ? [] : [nameOf(encodeURIComponent(w.key))])]));
    byId("waiters-key").hidden = line.line[0]?.key == null; // only of shapers whose keys take turns
    const groups = together(refusals);
    rows(byId("refusals"), groups.length, groups.slice(0, shown).map((r) => [r.at, count(r.n), reasons[r.reason] ?? r.reason, r.retry > 0 ? duration(r.retry) : "–"]));
    setText(byId("refusals-summary"), refusals.length === 0 ? "None of late." : "");
    counts(byId("counts"), bucket);
    this.onBucket(answer);
  }

  /** Whether the bucket has forfeited units of late. Without a rate no burst would be large enough. */
  forfeits({ forfeited, rate }) {
    if (this.forfeited != null && forfeited > this.forfeited) this.forfeitedAt = performance.now();
    this.forfeited = forfeited;
    return rate != null && performance.now() - this.forfeitedAt < forfeiting;
  }
}

const lowered = { refused: "the upstream refused", failed: "answers failed", slow: "answers were slow" };

/** How the rate adapts; its course is the drain rate in the chart. */
function adaptText({ rate, min, max, decreases, last_decrease: last, reason }) {
  const bounds = max == null ? `from ${count(min)} a second on` : `between ${count(min)} and ${count(max)} a second`;
  const why = last ? `Lowered ${decreases === 1 ? "once" : several(decreases, "time")}, last at ${clock(last)}, because ${lowered[reason] ?? reason}.` : "It was never lowered.";
  return `The rate adapts ${bounds}, and is ${count(rate)} now. ${why}`;
}

/** A level beside the one of the limits. */
function meterText({ name, rate: perSecond, burst, level, fill }, ofQuota) {
  const words = ofQuota ? name.replaceAll("-", " ") : name;
  if (perSecond == null) return `${words}: lets all pass.`;
  if (ofQuota) return `${count(Math.round(perSecond * 60))} ${words} a minute, ${count(burst)} of them at once; ${percent(fill)} of that is taken`;
  return `${name}: ${rate(perSecond)}, burst ${count(burst)}; its level is ${number(level)}, ${percent(fill)} of the burst.`;
}

const states = {
  shared: "Its level is in a shared bucket.",
  down: "Its level is in a shared bucket, which can't be asked: nobody leaves.",
  local: "Its level is in a shared bucket, which can't be asked: requests leave at a part of the rate.",
  open: "Its level is in a shared bucket, which can't be asked: requests leave at the whole rate in each process.",
};

function sharedText({ state, error, held }) {
  return [states[state] ?? state, error ? `The latest failure: ${error}.` : "", held > 0 ? `Leased and not used yet: ${several(held, "cost unit")}.` : ""].filter(Boolean).join(" ");
}

function summary(bucket, next, line) {
  if (bucket.dry_run) return line.waiting === 0 ? "Nobody would wait." : `At ${clock(line.at)}, ${count(line.waiting)} would wait.`;
  if (line.waiting === 0) return "Nobody waits.";
  if (noPlace(bucket)) return `At ${clock(line.at)}, ${count(line.waiting)} ${line.waiting === 1 ? "waits" : "wait"}; the next leaves when ${bucket.in_flight > 0 ? "one in flight ends" : "this process gets a seat"}.`;
  const soon = next ? (Date.parse(next) - Date.parse(line.at)) / 1000 : null;
  const leaves = soon == null ? "" : soon <= 0 ? "; the next leaves now" : `; the next leaves in ${duration(soon)}`;
  return `At ${clock(line.at)}, ${count(line.waiting)} ${line.waiting === 1 ? "waits" : "wait"}${leaves}.`;
}

const reasons = { queue_full: "line full", too_late: "too late", too_costly: "cost above burst", closed: "closed", unavailable: "shared bucket unavailable" };

/** Refusals of one second and one reason together, the latest first: a burst has many. */
function together(refusals) {
  const groups = new Map();
  for (const refusal of refusals.toSorted((a, b) => Date.parse(b.at) - Date.parse(a.at))) {
    const at = clock(refusal.at);
    const name = `${at} ${refusal.reason}`;
    const group = groups.get(name) ?? { at, reason: refusal.reason, n: 0, retry: 0 };
    group.n++;
    group.retry = Math.max(group.retry, refusal.retry_after_s);
    groups.set(name, group);
  }
  return [...groups.values()];
}

/** The counts of a bucket since it is there, of which those that are always 0 are left out. */
function counts(list, bucket) {
  const would = bucket.dry_run ? "would have been refused" : "refused";
  const mean = bucket.departed > 0 && bucket.total_wait_s != null ? duration(bucket.total_wait_s / bucket.departed) : "–";
  const all = [
    ["departed", count(bucket.departed), true], [would, count(bucket.refused), true],
    ["– line full", count(bucket.queue_full), bucket.queue_full], ["– too late", count(bucket.too_late), bucket.too_late],
    ["– cost above burst", count(bucket.too_costly), bucket.too_costly], ["– closed", count(bucket.closed), bucket.closed],
    ["– shared bucket unavailable", count(bucket.unavailable), bucket.unavailable],
    ["gave up", count(bucket.abandoned), true], ["in flight", `${count(bucket.in_flight)} of ${capWords(bucket)}`, capWords(bucket)],
    ["– seats of this process", count(bucket.shared?.seats), bucket.shared?.in_flight_max],
    ["reserved, not settled", count(bucket.reserved), bucket.reserved || bucket.given_back || bucket.charged || bucket.forfeited],
    ["– given back", count(bucket.given_back), bucket.given_back], ["– charged", count(bucket.charged), bucket.charged],
    ["– drained before it was settled", count(bucket.forfeited), bucket.forfeited],
    ["mean wait", mean, true], ["since the last call", idle(bucket.idle_s), true],
  ].filter(([, , shown]) => shown);
  fill(list, all.flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value })]));
}

/** Fills the body of a table with the first rows of all that there are. */
function rows(table, all, texts) {
  const lines = texts.map((row) => make("tr", {}, ...row.map((text) => make("td", { text }))));
  if (all > texts.length && texts.length > 0) lines.push(make("tr", {}, make("td", { class: "hint", colspan: texts[0].length, text: `and ${count(all - texts.length)} more` })));
  fill(table.tBodies[0], lines);
  table.hidden = texts.length === 0;
}
