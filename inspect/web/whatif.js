// What would have become of the last minute's arrivals of the open bucket under other
// limits. Asking begins the recording, so the first answers hold little.

import { byId, make, setText } from "./dom.js";
import { clock, count, duration, several } from "./format.js";
import { get } from "./api.js";

const every = 2000; // ms between two readings

export class WhatIf {
  constructor() {
    this.form = byId("what-if");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.limits = this.form.elements.limits.value.trim();
      if (this.limits) this.read();
    });
  }

  /** The bucket to ask about; another one than before, or none (id null), clears the answer. */
  open(source, id) {
    if (this.source === source && this.id === id) return;
    this.stop();
    Object.assign(this, { source, id, limits: "" });
    this.form.elements.limits.value = "";
    this.show(null);
  }

  stop() {
    clearTimeout(this.timer);
    this.request?.abort();
  }

  /** Goes on with what was asked before stop. */
  resume() {
    if (this.limits) this.read();
  }

  async read() {
    this.stop();
    const request = new AbortController();
    this.request = request;
    try {
      const answer = await get("api/v1/what-if", { source: this.source, id: this.id, limits: this.limits }, request.signal);
      this.show(answer);
      this.timer = setTimeout(() => this.read(), every);
    } catch (error) {
      if (request.signal.aborted) return;
      this.show(null);
      setText(byId("what-if-error"), error.message);
      this.form.elements.limits.setAttribute("aria-invalid", "true");
    }
  }

  show(answer) {
    this.form.elements.limits.removeAttribute("aria-invalid");
    setText(byId("what-if-error"), "");
    byId("what-if-answer").hidden = answer == null || answer.arrivals === 0;
    if (answer == null) {
      setText(byId("what-if-summary"), "");
      byId("what-if-notes").replaceChildren();
      return;
    }
    if (answer.arrivals === 0) {
      setText(byId("what-if-summary"), `Recording since ${clock(answer.since)}. The answer appears here with the next arrivals.`);
      return;
    }
    setText(byId("what-if-summary"), `${answer.limits}: ${answer.in_words.join("; ")}. What became of ${several(answer.arrivals, "arrival")} since ${clock(answer.since)}:`);
    byId("what-if-notes").replaceChildren(...(answer.notes ?? []).map((text) => make("li", { text })));
    const { now, then } = answer;
    const lines = [["departed", "departed", count], ["refused", "refused", count]];
    for (const [name, text] of [["queue_full", "– line full"], ["too_late", "– too late"], ["too_costly", "– cost above burst"], ["closed", "– closed"], ["unavailable", "– shared bucket unavailable"]]) {
      if (now[name] || then[name]) lines.push([name, text, count]);
    }
    if (now.waiting || then.waiting) lines.push(["waiting", "still waiting", count]);
    lines.push(["abandoned", "gave up", count], ["wait_p50_s", "half waited at most", duration], ["wait_p95_s", "95 % waited at most", duration], ["wait_max_s", "longest wait", duration]);
    byId("what-if-answer").tBodies[0].replaceChildren(...lines.map(([name, text, format]) => make("tr", {},
      make("th", { scope: "row", text }), make("td", { text: format(now[name]) }),
      make("td", {}, `${format(then[name])} `, change(name, now[name], then[name], format)))));
  }
}

/** By how much a figure would be another, and whether that is better or worse. */
function change(name, now, then, format) {
  if (now === then || now == null || then == null) return make("span", { class: "change" });
  const by = `${then > now ? "+" : "−"}${format(Math.abs(then - now))}`;
  // To give up, or to wait still, is neither by itself.
  const verdict = ["abandoned", "waiting"].includes(name) ? "" : (name === "departed" ? then > now : then < now) ? "better" : "worse";
  return make("span", { class: `change ${verdict}`, text: `${by} ${verdict}` });
}
