// The page: it connects the view (the address), the event stream, and the parts that
// show them.

import { Changes, Control } from "./control.js";
import { Charts } from "./charts.js";
import { Detail } from "./detail.js";
import { History, spans } from "./history.js";
import { SpacingHistogram, WaitHistogram } from "./histogram.js";
import { Picture } from "./picture.js";
import { Quota } from "./quota.js";
import { Reports } from "./reports.js";
import { Stream } from "./stream.js";
import { Table } from "./table.js";
import { Tiles } from "./tiles.js";
import { Turns } from "./turns.js";
import { byId, fill, make, nameOf, setAttribute, setText } from "./dom.js";
import { fromServer, go, href, onChange, view } from "./url.js";
import { onThemeChange } from "./theme.js";
import { clock, rate } from "./format.js";
import { paceWords, story } from "./story.js";

const recent = new History();
const reports = new Reports(() => stream.retry());
const charts = new Charts(recent);
const tiles = new Tiles(recent);
const picture = new Picture();
const spacing = new SpacingHistogram(byId("spacing"));
const waits = new WaitHistogram(byId("waits"));
const table = new Table(reports, (answer) => {
  if (!stream.refused) return;
  // The server answers, but does not tell of this bucket by a stream.
  sources = answer.sources;
  showSelected();
  if (isBucket()) detail.refresh(true);
});
const detail = new Detail((answer) => {
  control.show(answer.control);
  costly = [...answer.line.line, ...answer.refusals].some(({ cost }) => cost !== 1);
});
const turns = new Turns();
const quota = new Quota(turns);
const control = new Control();
const changes = new Changes((inForce) => control.learn(inForce), isShaper);
const stream = new Stream(receive, connected, () => recent.latest?.at_ms);

let sources = [];
let selected = { source: view.source, id: view.id };
let bucket = null; // of the latest detail event
let costly = false; // a request of the bucket is known whose cost is not 1
let frames = 0;

/** Follows the connection: while it is lost, nothing else is asked of the server either. */
function connected(state, retryAt, message) {
  reports.connection(state, retryAt, message);
  if (state === "lost" || state === "bye") pausePolls();
  if ((state === "live" || state === "refused") && running() && !table.running) {
    table.start();
  }
}

function pausePolls() {
  table.stop();
  table.follow(null);
  detail.stop();
}

function receive(event, data) {
  switch (event) {
    case "hello": {
      const others = namesOf(data.sources) !== namesOf(sources);
      sources = data.sources;
      selected = { source: data.selected?.source || null, id: view.source == null ? idOf(data.selected) : view.id };
      reports.server(data.reports ?? []);
      reports.sources(sources);
      changes.set(data.changes ?? [], data.in_force ?? []);
      control.show(data.control);
      showSelected();
      if (others && running()) table.sourcesChange(); // The table may have been read before the source came that it is of.
      break;
    }
    case "history":
      recent.add(data.points ?? [], data.long ?? []);
      showFrame();
      showSlowly();
      break;
    case "frame":
      if (data.at_ms < recent.latest?.at_ms) recent.clear(); // The server's clock was set back.
      recent.add([data], []);
      frames++;
      if (frames % 2 === 0) showFrame(); // Five times a second is enough for eyes, and for batteries.
      if (frames % 10 === 0) showSlowly();
      break;
    case "step":
      recent.add([], [data]);
      break;
    case "detail":
      showDetail(data);
      showFrame(); // What the tiles say also depends on the bucket.
      if (!running()) { // one look was asked for
        stream.close();
        connected("paused");
      }
      break;
    case "change":
      changes.add(data);
      detail.soon();
      break;
    case "report":
      reports.server([data]);
      break;
    case "sources":
      sources = data;
      reports.sources(sources);
      showSelected();
      if (running()) table.sourcesChange();
  }
}

/** The id of what the server selected by itself: of a shaper the empty one, of a group none. */
function idOf(bucketSelected) {
  if (!bucketSelected) return null;
  if (bucketSelected.id != null) return fromServer(bucketSelected.id);
  return isShaper(bucketSelected.source) ? "" : null;
}

function isShaper(name) {
  return sources.some((source) => source.name === name && source.kind === "shaper");
}

const namesOf = (list) => JSON.stringify(list.map((source) => source.name));

function isShared(name) {
  return sources.some((source) => source.name === name && source.shared != null);
}

function isClosed(name) {
  return sources.some((source) => source.name === name && source.closed);
}

/** Whether one bucket is selected, not all of a group. */
function isBucket() {
  return selected.source != null && (selected.id != null || isShaper(selected.source));
}

function showFrame() {
  const { last } = recent;
  if (last) reports.latest = last.at_ms;
  byId("now").classList.toggle("waiting-for-data", !recent.latest);
  charts.draw();
  tiles.show(bucket, !isBucket());
  picture.show(last, bucket);
  table.follow(last && view.at == null && bucket && isBucket() ? { ...bucket, ...levelAt(last) } : null);
  showStory(false);
}

/** What a point of the history tells of the level and the line, as a row of the table has it. */
function levelAt({ waiting, level }) {
  const room = Math.max(1, bucket.burst) + bucket.depth;
  const oldest = bucket.waiting > 0 ? bucket.oldest_wait_s : null; // not known if nobody waited when the bucket was told
  return { waiting, oldest_wait_s: oldest, level: level ?? bucket.level, fill: Math.min(1, ((level ?? 0) + waiting) / room) };
}

function showSlowly() {
  tiles.drawCurves();
  showStory(true);
  const dry = recent.last?.dry_run ?? false;
  byId("dry-run").hidden = !dry;
  document.body.classList.toggle("dry", dry);
  if (frames % 50 === 0) charts.describe();
}

/** Shows the story: at once if it is another one, and its figures once a second. */
function showStory(figures) {
  const forgotten = recent.at != null && recent.latest && !recent.last;
  const text = forgotten ? `How things were at ${clock(recent.at)} is not known here: the history is of the last hour at most.` : sources.length === 0 ? "The program adds its shapers and groups to the inspector." : story(recent.last, bucket, isBucket(), isClosed(selected.source));
  setText(byId("pace"), paceWords(recent.last, bucket, isBucket()));
  const beginning = (words) => words.slice(0, 12);
  if (figures || beginning(text) !== beginning(byId("story").textContent)) setText(byId("story"), text);
}

/**
 * Whether requests are known to cost other than 1, so that the drain rate says nothing of how many leave; and
 * the lines of the keys that take turns, if all are known.
 */
function costsOf({ bucket: { reserved, given_back: back, charged, forfeited }, turns: of, quota: shared }) {
  const weighed = shared != null || costly || reserved + back + charged + forfeited > 0 || (of?.rows.some((row) => row.cost !== row.waiting) ?? false);
  return { weighed, quota: shared ?? null, lines: of && of.others.waiting === 0 ? of.rows : null };
}

function showDetail(data) {
  bucket = data.bucket ?? null;
  if (bucket) Object.assign(bucket, costsOf(data));
  charts.weighed = bucket?.weighed ?? false;
  turns.show(data.turns ?? null, bucket);
  quota.show(data.quota ?? null);
  document.body.classList.toggle("of-a-quota", bucket?.quota != null); // What each call costs of it is not one number.
  if (isBucket()) detail.refresh(bucket != null, bucket?.quota != null);
  const { histograms } = data;
  if (!histograms) return;
  const scope = histograms.of === "source" && selected.id != null ? ` of all keys of ${selected.source}` : "";
  spacing.show(histograms.spacing ?? [], scope, isShared(selected.source), bucket?.quota != null);
  waits.show(histograms.wait ?? [], { p50: histograms.wait_p50_s, p95: histograms.wait_p95_s, p99: histograms.wait_p99_s }, scope);
}

/** Shows which source or bucket the charts are of, and opens its detail. */
function showSelected() {
  const { source, id } = selected;
  const nav = byId("sources");
  nav.hidden = sources.length < 2;
  fill(nav, sources.map((each) => make("a", {
    href: href({ source: each.name, id: null }), "aria-current": each.name === source ? "true" : null, "data-health": healthOf(each),
    onclick: (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      go({ source: each.name, id: null });
    },
  }, make("i", { class: "mark", "aria-hidden": "true" }), make("span", { class: "name", text: each.name }), " ", make("span", { class: "health", text: healthWords(each) }))));
  table.select(source, id ?? (isShaper(source) ? "" : null));
  const isKey = id != null && !isShaper(source);
  const name = isKey ? nameOf(id) : source ?? "No source yet";
  setText(byId("selected"), name);
  byId("selected").classList.toggle("long", name.length > 60);
  byId("now").classList.toggle("no-source", source == null);
  setText(byId("selected-of"), isKey ? `a bucket of ${source}` : source == null ? "" : isShaper(source) ? "one bucket" : "all its buckets together");
  document.title = source == null ? pageTitle : `${name} · ${pageTitle}`;
  if (!isBucket()) return detail.close();
  for (const part of [detail, control]) part.open(source, id ?? "");
}

const healthOf = (source) => (source.closed ? "closed" : source.health ?? "rest");

/** How a source does, for those who do not tell the marks apart by their color or shape. */
function healthWords(source) {
  const words = { rest: "at rest", line: "in line", refusing: source.dry_run ? "would refuse" : "refusing", unavailable: "unavailable", closed: "closed" };
  return words[healthOf(source)];
}

const pageTitle = document.title;
const running = () => !view.paused && !document.hidden;

/** Begins or ends everything that costs the server something. */
function run() {
  setAttribute(byId("pause"), "aria-pressed", view.paused);
  if (running()) {
    stream.open(view.source, view.id);
    table.start();
    return;
  }
  stop();
}

function stop() {
  stream.close();
  pausePolls();
  connected(view.paused ? "paused" : "hidden");
}

/** Shows the time of the view: the last minute or the last hour, until now or until the instant of a link. */
function showTime() {
  recent.show(spans[view.span], view.at);
  for (const button of document.querySelectorAll("[data-span]")) setAttribute(button, "aria-pressed", button.dataset.span === view.span);
  if (!recent.latest) return;
  showFrame();
  showSlowly();
  charts.describe();
}

/** Shows what the view is of now. While paused that is one look. */
function look() {
  stream.open(view.source, view.id);
  table.read();
}

onChange((now, before) => {
  const moved = now.source !== before.source || now.id !== before.id;
  if (moved) {
    selected = { source: now.source, id: now.id };
    bucket = null;
    costly = false;
    recent.clear();
    turns.clear();
    quota.show(null);
    table.follow(null);
    showSelected();
    const smooth = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    byId("selected").focus({ preventScroll: true });
    byId("now").scrollIntoView({ block: "start", behavior: smooth ? "smooth" : "auto" });
  }
  table.showControls();
  if (now.span !== before.span || now.at !== before.at) showTime();
  if (now.paused !== before.paused) run();
  else if (moved) look();
  else table.read({ announced: true });
});

// The address of a paused page has the instant, so that others see by it what was seen here.
byId("pause").addEventListener("click", () => go({ paused: !view.paused, at: view.paused ? null : recent.latest?.at_ms ?? null }, { replace: true }));
for (const button of document.querySelectorAll("[data-span]")) button.addEventListener("click", () => go({ span: button.dataset.span }));
document.addEventListener("visibilitychange", run);
onThemeChange(() => charts.repaint());
showTime();
run();
if (view.paused && !document.hidden) look();
