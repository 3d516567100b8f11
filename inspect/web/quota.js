// What has been taken of the quota that teams share: of each of its parts, of the bucket, and by
// each team.

import { byId, fill, make, nameOf, setText, svg } from "./dom.js";
import { count, duration, percent, several } from "./format.js";
import { fromServer } from "./url.js";
import { shareBar, swatch } from "./turns.js";

export class Quota {
  /** turns: whose colors teams have in line, they have here. */
  constructor(turns) {
    this.turns = turns;
  }

  /** Shows what the stream tells of the quota; null: there is none. */
  show(quota) {
    byId("quota").hidden = !quota;
    if (!quota) return;
    setText(byId("quota-title"), `The quota of ${quota.provider || "the provider"}`);
    setText(byId("quota-words"), words(quota));
    fill(byId("quota-parts"), quota.parts.map((part) => partOf(part, part.name === quota.scarcest)));
    fill(byId("quota-figures"), figures(quota));
    setText(byId("quota-hint"), quota.hint ?? "");
    const rows = quota.teams.map((team) => this.row(team, quota));
    const { others } = quota;
    if (others.waiting > 0 || others.hour_requests > 0 || others.refused > 0) rows.push(this.row({ ...others, team: null }, quota));
    fill(byId("quota-teams").tBodies[0], rows);
    byId("quota-teams").hidden = rows.length === 0;
  }

  row(team, { teams, others }) {
    const all = teams.reduce((sum, each) => sum + each.minute_tokens, others.minute_tokens);
    const slot = team.team == null ? null : this.turns.slotOf(team.id);
    const name = team.team == null ? "all others" : nameOf(fromServer(team.id));
    const share = all > 0 ? team.minute_tokens / all : 0;
    return make("tr", { class: team.team == null ? "others" : "" },
      make("th", { scope: "row" }, swatch(slot), make("span", { class: "name", text: name, title: name })),
      make("td", { class: "bar" }, shareBar(slot, share)),
      cell("minute", `${count(team.minute_tokens)}${all > 0 ? ` (${percent(share)})` : ""}`),
      cell("hour", count(team.hour_tokens)), cell("requests", count(team.hour_requests)),
      cell("weight", team.team == null ? "–" : count(team.weight)), cell("waiting", count(team.waiting)),
      cell("oldest", team.longest_wait_s > 0 ? duration(team.longest_wait_s) : "–"), cell("refused", count(team.refused)));
  }
}

const cell = (name, text) => make("td", { class: name, text });

function words({ parts, scarcest, replicas }) {
  const part = parts.find(({ name }) => name === scarcest);
  const where = replicas ? `${replicas} ` : "";
  if (!part) return `${where}Nothing was taken in the last minute.`;
  return `${where}${parts.length > 1 ? `The scarcest is ${part.name}: ` : ""}the last minute took ${percent(part.share)} of what a minute may.`;
}

function partOf({ name, used, limit, share, level, reserved }, scarcest) {
  const held = Math.min(reserved, level);
  return make("li", { class: scarcest ? "scarcest" : "" },
    make("span", { class: "label", text: `${name} a minute` }), make("b", { text: percent(share) }),
    scale(share, 0, "used"), make("span", { class: "note", text: `${count(used)} of ${count(limit)}${scarcest ? " – the scarcest" : ""}` }),
    scale(level, held, "level"), make("span", { class: "note", text: `${percent(level)} of what may leave at once is taken${held > 0 ? `, ${percent(held)} by calls that have not ended` : ""}` }));
}

/** A bar of a share, whose right end is hatched as far as it is only reserved. */
function scale(share, reserved, kind) {
  const shape = svg("svg", { class: `scale ${kind}`, "aria-hidden": "true" });
  const full = Math.min(share, 1);
  const sure = Math.max(full - reserved, 0);
  shape.append(svg("rect", { class: "taken", width: `${(100 * sure).toFixed(1)}%`, height: "100%" }),
    svg("rect", { class: "reserved", x: `${(100 * sure).toFixed(1)}%`, width: `${(100 * (full - sure)).toFixed(1)}%`, height: "100%", fill: "url(#reserved-hatch)" }));
  return shape;
}

function figures(quota) {
  const refusals = quota.provider_refusals;
  return [
    ["longest wait of the last hour", quota.longest_wait_s > 0 ? duration(quota.longest_wait_s) : "nobody waited", ""],
    ["refused by the gateway", count(quota.refused), ""],
    ["429 of the provider", refusals === 0 ? "0, as it should be" : several(refusals, "time"), refusals > 0 ? "alarm" : ""],
    ["tokens that came back too late for others", count(quota.forfeited), quota.hint ? "alarm" : ""],
  ].map(([name, value, kind]) => make("div", {}, make("dt", { text: name }), make("dd", { text: value, class: kind })));
}
