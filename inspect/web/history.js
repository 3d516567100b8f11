// What the charts show, as the server tells it: the last minute in steps of a tenth of a
// second, and the last hour in steps of ten seconds.

export const spans = { minute: 60, hour: 3600 }; // seconds

export class History {
  constructor() {
    this.clear();
    this.show(spans.minute, null);
  }

  clear() {
    this.points = [];
    this.long = [];
    this.shown = null;
  }

  /** Sets how many seconds are shown, and at which instant they end, in ms; null: at the latest point. */
  show(span, at) {
    Object.assign(this, { span, at, shown: null });
  }

  /** Takes what the server has told at the beginning of a stream: all, or what is later than what is known. */
  add(points, long) {
    this.points = recent(this.points, points, spans.minute + 1);
    this.long = recent(this.long, long, spans.hour);
    this.shown = null;
  }

  /** The latest point of all. */
  get latest() {
    return this.points.at(-1) ?? null;
  }

  /** The instant at which what is shown ends, in ms. */
  get end() {
    return this.at ?? this.latest?.at_ms ?? 0;
  }

  /** The points that are shown, oldest first. Before the last minute a minute, too, is of long steps. */
  get all() {
    if (this.shown) return this.shown;
    this.known = new Map(); // values by field
    const from = this.end - this.span * 1000;
    const finest = this.span === spans.minute ? (this.points[0]?.at_ms ?? Infinity) : Infinity;
    const long = this.long.filter((point) => point.at_ms < finest);
    const short = finest < Infinity ? this.points : [];
    this.shown = [...long, ...short].filter((point) => point.at_ms >= from - 1000 && point.at_ms <= this.end);
    return this.shown;
  }

  /** The point whose figures are those of now, or of the instant at which what is shown ends. */
  get last() {
    return this.at == null ? this.latest : (this.all.at(-1) ?? null);
  }

  /** The values of one field, oldest first: "waiting", or "brief.arrivals". */
  values(field) {
    const { all } = this;
    if (!this.known.has(field)) this.known.set(field, all.map((point) => valueAt(point, field)));
    return this.known.get(field);
  }

  /** Seconds before the end, so 0 for a point there and below 0 for all others. */
  ages() {
    return this.all.map((point) => (point.at_ms - this.end) / 1000);
  }

  max(...fields) {
    return Math.max(0, ...fields.flatMap((field) => this.values(field)));
  }

  /** The greatest value of a field in the last few seconds. */
  lately(field, seconds) {
    const ages = this.ages();
    return Math.max(0, ...this.values(field).filter((_, i) => ages[i] >= -seconds));
  }
}

/** The value of a field of a point, null if there is none. */
export function valueAt(point, field) {
  const [name, inner] = field.split(".");
  return (inner ? point[name]?.[inner] : point[name]) ?? null;
}

/** The points that are known and those that are later, for as long as they count. */
function recent(known, told, seconds) {
  const last = known.at(-1)?.at_ms ?? -Infinity;
  const all = known.concat(told.filter((point) => point.at_ms > last));
  const oldest = (all.at(-1)?.at_ms ?? 0) - seconds * 1000;
  return all[0]?.at_ms < oldest ? all.filter((point) => point.at_ms >= oldest) : all;
}
