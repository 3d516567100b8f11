// Changing the open bucket: other limits for a time, a hold, and back. Only there if the
// server allows it, and each change needs the token, which is kept in its field only.

import { byId, fill, make, nameOf, setText } from "./dom.js";
import { clock } from "./format.js";
import { fromServer } from "./url.js";
import { post } from "./api.js";

export class Control {
  constructor() {
    byId("limits").addEventListener("submit", (event) => {
      const { limits, duration } = event.target.elements;
      this.send(event, "limits", { limits: limits.value, for: duration.value }, (until) => `Limits are ${limits.value} until ${clock(until)}.`);
    });
    byId("hold").addEventListener("submit", (event) => {
      this.send(event, "hold", { for: event.target.elements.duration.value }, (until) => `Held until ${clock(until)}.`);
    });
    byId("release").addEventListener("click", (event) => this.send(event, "release", {}, () => "Released: no hold is in force."));
    byId("put-back").addEventListener("click", (event) => this.send(event, "reset", {}, (_, what) => `Put back: ${what}.`));
  }

  open(source, id) {
    if (source === this.source && id === this.id) return;
    Object.assign(this, { source, id });
    this.say("", false); // what was said is of another bucket
    this.showChanged();
  }

  /** Takes the list of changes, which tells whether the limits of the open bucket are changed. */
  learn(changes) {
    this.changes = changes;
    this.showChanged();
  }

  showChanged() {
    const change = this.changes?.findLast(({ source, id, what }) => source === this.source && fromServer(id) === this.id && what.startsWith("limits "));
    // A change that can't be ended stays in force beyond its end, and that is told without one.
    const inForce = change != null && (change.until != null || change.what.includes(" stay in force, because "));
    const hidesFocus = !inForce && document.activeElement === byId("put-back");
    byId("put-back").hidden = !inForce;
    if (hidesFocus) byId("limits").elements.limits.focus();
  }

  show(available) {
    byId("control").hidden = !available;
  }

  /** Asks for a change of the open bucket, and shows what said makes of the answer: its end, and what was done. */
  async send(event, path, body, said) {
    event.preventDefault();
    const token = byId("token").value;
    if (!token) {
      this.say("The token is missing: it is the one that the program was started with.", true);
      byId("token").focus();
      return;
    }
    const { source, id } = this;
    const elsewhere = () => source !== this.source || id !== this.id;
    try {
      const answer = await post(`api/${path}`, { source, id, ...body }, token);
      if (!elsewhere()) this.say(said(answer?.until, answer?.what), false);
    } catch (error) {
      if (elsewhere()) return; // What went wrong is of the bucket that was open.
      this.say(error.status ? error.message : "The server cannot be reached.", true);
      if (error.status === 401) byId("token").focus();
    }
  }

  say(text, failed) {
    setText(byId("control-result"), text);
    byId("control-result").classList.toggle("failed", failed);
  }
}

/** The list of changes, the latest first. */
export class Changes {
  /** Calls listener with the list whenever that has changed; isShaper tells whether a source has no keys. */
  constructor(listener, isShaper) {
    Object.assign(this, { listener, isShaper, list: [] });
  }

  set(changes) {
    this.list = changes.slice(-20);
    this.show();
    this.listener(this.list);
  }

  add(change) {
    this.set([...this.list, change]);
  }

  show() {
    byId("changes").hidden = this.list.length === 0;
    const items = this.list.toReversed().map((change) => make("li", {},
      make("time", { datetime: change.at, text: clock(change.at) }), " ",
      make("b", { text: this.isShaper(change.source) ? change.source : `${change.source}: ${nameOf(fromServer(change.id))}` }), ` ${change.what}`,
      change.until ? ` until ${clock(change.until)}` : "", make("span", { class: "who", text: ` by ${change.who}` })));
    fill(byId("changes").querySelector("ol"), items);
  }
}
