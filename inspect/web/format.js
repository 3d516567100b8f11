// Numbers, durations and instants as people read them: three significant digits, a unit
// that fits, and a real minus sign.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A count, all its digits: "12,345". */
export function count(n) {
  return n == null ? "–" : grouped.format(n);
}

/** A number with three significant digits: "0.25", "49.8", "1,230", "12.3 M". */
export function number(x) {
  if (x == null || Number.isNaN(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  for (const [from, name] of [[1e9, " G"], [1e6, " M"]]) {
    if (size >= from) return digits(x / from) + name;
  }
  if (size < 0.001) return x.toExponential(1).replace("e-", " × 10⁻").replace(/\d+$/, superscript);
  return digits(x);
}

function digits(x) {
  const size = Math.abs(x);
  if (size >= 999.5) return grouped.format(Number(x.toPrecision(3)));
  const decimals = size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3;
  return String(Number(x.toFixed(decimals)));
}

function superscript(text) {
  return [...text].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)]).join("");
}

/** A rate: "50/s", and below one in ten seconds "3/min". */
export function rate(perSecond) {
  if (perSecond == null) return "no bound";
  if (perSecond > 0 && perSecond < 0.1) {
    return perSecond * 60 >= 0.1 ? `${number(perSecond * 60)}/min` : `${number(perSecond * 3600)}/h`;
  }
  return `${number(perSecond)}/s`;
}

const units = [[2 * 86400, 86400, "days"], [2 * 3600, 3600, "h"], [120, 60, "min"], [1, 1, "s"], [1e-3, 1e-3, "ms"], [1e-6, 1e-6, "µs"], [0, 1e-9, "ns"]];

/** A duration with three digits: "20 ms", "2 s", "1.25 h". */
export function duration(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "–";
  if (!(seconds > 0)) return "0 s";
  const [, length, name] = units.find(([from]) => seconds * (1 + 5e-4) >= from);
  return `${digits(seconds / length)} ${name}`;
}

/** A share of one: "37 %", and never a rounded 0 % or 100 % that is not one. */
export function percent(share) {
  if (share == null || Number.isNaN(share)) return "–";
  if (share > 0 && share < 0.01) return "< 1 %";
  if (share < 1 && share > 0.99) return "> 99 %";
  if (share > 9.99) return "> 999 %"; // More digits would find no room, and say no more.
  return `${Math.round(share * 100)} %`;
}

/** The time of day of an instant (RFC 3339, or milliseconds), in the reader's time zone. */
export function clock(instant) {
  const date = new Date(instant);
  return Number.isNaN(date.getTime()) ? "–" : date.toLocaleTimeString("en-GB");
}

/** "1 request", "2 requests". */
export function several(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** How long ago the last call was; null if there was none. */
export function idle(seconds) {
  return seconds != null && seconds < 1 ? "< 1 s" : duration(seconds);
}
