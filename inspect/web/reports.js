// What people must see: the connection, a reload that failed, a source that is closed.

import { byId, make, setText } from "./dom.js";
import { clock } from "./format.js";

const names = { connecting: "connecting …", live: "live", paused: "paused", hidden: "paused while hidden", lost: "connection lost", bye: "ended", refused: "refused" };

export class Reports {
  constructor(retry) {
    this.retry = retry;
    this.items = new Map(); // kind: element
    this.latest = null; // ms, of the latest figures
  }

  /** Shows the state of the connection. */
  connection(state, retryAt, message) {
    const status = byId("status");
    clearInterval(this.countdown);
    if (state === "connecting" && this.items.has("connection")) {
      setText(this.when, "trying again …");
      return; // still lost until it is live
    }
    status.dataset.state = state;
    setText(status.querySelector("span"), state === "live" && message ? `${names[state]}, ${message}` : names[state]);
    document.body.classList.toggle("stale", ["lost", "bye", "refused"].includes(state));
    if (state === "live" || state === "paused" || state === "hidden") {
      this.clear("connection");
      return;
    }
    if (state === "connecting") return;
    const since = this.latest == null ? "" : ` The figures are those of ${clock(this.latest)}.`;
    const what = { lost: "Connection lost.", bye: "The program has stopped, or shows this source no longer.", refused: `The server refused: ${message}.` }[state];
    if (this.items.get("connection")?.dataset.what !== what + since) {
      this.when = make("span", { class: "when", "aria-hidden": "true" });
      const button = retryAt && make("button", { type: "button", text: "Try now", onclick: () => this.retry() });
      this.set("connection", make("p", { "data-what": what + since }, make("strong", { text: what }), since, " ", this.when, " ", button));
    }
    if (!retryAt) return;
    const tick = () => setText(this.when, `Next try in ${Math.max(0, Math.ceil((retryAt - Date.now()) / 1000))} s.`);
    tick();
    this.countdown = setInterval(tick, 500);
  }

  /** Shows what the server reports; an empty message takes it away. */
  server(messages) {
    const some = messages.filter(({ message }) => message);
    if (some.length === 0) return this.clear("server");
    this.set("server", make("div", {}, ...some.map(({ at, message }) => make("p", {}, make("strong", { text: `Reported at ${clock(at)}: ` }), make("span", { class: "message", text: message })))));
  }

  /** Shows which sources are closed, and whether those in line still leave. */
  sources(list) {
    const closed = list.filter((source) => source.closed);
    if (closed.length === 0) return this.clear("closed");
    this.set("closed", make("div", {}, ...closed.map(({ name, waiting }) => make("p", {}, make("strong", { text: `Source closed: “${name}”. ` }),
      waiting > 0 ? "It takes no more requests; those in line still leave." : "It takes no more requests, and nobody waits: the figures are its last."))));
  }

  /** Shows why the table could not be read; null takes it away. */
  table(why) {
    if (why == null) return this.clear("table");
    this.set("table", make("p", {}, make("strong", { text: "The table could not be read: " }), why));
  }

  set(kind, element) {
    const old = this.items.get(kind);
    if (old?.textContent === element.textContent && kind !== "connection") return;
    element.classList.add("report", kind);
    if (old) old.replaceWith(element);
    else byId("reports").append(element);
    this.items.set(kind, element);
  }

  clear(kind) {
    this.items.get(kind)?.remove();
    this.items.delete(kind);
  }
}
