// Changing the open bucket: other limits for a time, a hold, and back. Only there if the
// server allows it, and each change needs the token, which is kept in its field only.

import { byId, keyText, make, setText } from "./dom.js";
import { clock } from "./format.js";
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
    byId("release").addEventListener("click", (event) => this.send(event, "release", {}, () => "Released: the bucket is as configured."));
  }

  open(source, id) {
    Object.assign(this, { source, id });
  }

  show(available) {
    byId("control").hidden = !available;
  }

  async send(event, path, body, said) {
    event.preventDefault();
    const token = byId("token").value;
    if (!token) {
      this.say("The token is missing: it is the one that the program was started with.", true);
      byId("token").focus();
      return;
    }
    try {
      const answer = await post(`/api/${path}`, { source: this.source, id: this.id, ...body }, token);
      this.say(said(answer?.until), false);
    } catch (error) {
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
  constructor() {
    this.list = [];
  }

  set(changes) {
    this.list = changes.slice(-20);
    this.show();
  }

  add(change) {
    this.set([...this.list, change]);
  }

  show() {
    byId("changes").hidden = this.list.length === 0;
    const items = this.list.toReversed().map((change) => make("li", {},
      make("time", { datetime: change.at, text: clock(change.at) }), " ",
      make("b", { text: change.key ? `${change.source}: ${keyText(change.key)}` : change.source }), ` ${change.what}`,
      change.until ? ` until ${clock(change.until)}` : "", make("span", { class: "who", text: ` by ${change.who}` })));
    byId("changes").querySelector("ol").replaceChildren(...items);
  }
}
