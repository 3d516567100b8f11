// The last 60 seconds of what the charts show, as the server tells it.

const span = 60; // seconds

export class History {
  constructor() {
    this.points = [];
  }

  set(points) {
    this.points = points.slice();
  }

  push(point) {
    this.points.push(point);
    const oldest = point.at_ms - (span + 1) * 1000;
    while (this.points.length > 0 && this.points[0].at_ms < oldest) this.points.shift();
  }

  get last() {
    return this.points.at(-1) ?? null;
  }

  /** The values of one field, oldest first. */
  values(field) {
    return this.points.map((point) => point[field] ?? null);
  }

  /** Seconds before the latest point, so 0 for that one and below 0 for all others. */
  ages() {
    const now = this.last?.at_ms ?? 0;
    return this.points.map((point) => (point.at_ms - now) / 1000);
  }

  max(...fields) {
    let max = 0;
    for (const point of this.points) {
      for (const field of fields) max = Math.max(max, point[field] ?? 0);
    }
    return max;
  }
}
