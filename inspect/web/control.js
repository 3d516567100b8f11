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
    byId("release").addEventListener("click", (event) => this.send(event, "release", {}, (_, what) => (what === "released" ? "Released: no hold is in force." : `${what[0].toUpperCase()}${what.slice(1)}.`)));
    byId("put-back").addEventListener("click", (event) => this.send(event, "reset", {}, (_, what) => `Put back: ${what}.`));
  }

  open(source, id) {
    if (source === this.source && id === this.id) return;
    Object.assign(this, { source, id });
    this.say("", false); // what was said is of another bucket
    this.showChanged();
  }

  /** Takes the changes that are in force, which tell whether the limits of the open bucket are changed. */
  learn(inForce) {
    this.inForce = inForce;
    this.showChanged();
  }

  showChanged() {
    const inForce = this.inForce?.some(({ kind, source, id }) => kind === "limits" && source === this.source && fromServer(id) === this.id) ?? false;
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
      const answer = await post(`api/v1/${path}`, { source, id, ...body }, token);
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

/** The list of changes, the latest first, and those that are in force. */
export class Changes {
  /** Calls listener with those in force whenever they have changed; isShaper tells whether a source has no keys. */
  constructor(listener, isShaper) {
    Object.assign(this, { listener, isShaper, list: [], inForce: [] });
  }

  set(changes, inForce) {
    this.list = changes.slice(-20);
    this.inForce = inForce;
    this.show();
    this.listener(inForce);
  }

  /** Takes a change that was told: of limits or a hold of its bucket, which another one may have been of before. */
  add(told) {
    const { change } = told;
    const others = this.inForce.filter(({ kind, source, id }) => kind !== change.kind || source !== change.source || id !== change.id);
    this.set([...this.list, told], change.ended == null ? [...others, change] : others);
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
