// The demo-only part of the page: buttons that send clients to the proxy, a slider for
// its rate, and limits to try in a dry run. It fills the section that the page keeps for
// such a script, and asks the demo for its state once a second while the page is visible:
// that is also how the demo knows that somebody watches.

const beat = 1000; // ms between two questions
const patience = 5000; // ms until the next question after one without an answer
const settle = 120; // ms for which the slider must rest before the rate is set

const panel = document.getElementById("panel");
const status = document.getElementById("status"); // of the page's connection
let state = null;
let told = ""; // the errand whose end has been told
let failedBefore = 0; // requests that found no worker before the page was opened, such as those that the demo sends without the shaper
let sliding = 0; // timer of the slider; 0: it rests

/** Makes an element with properties, attributes (aria-…) and children. */
function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-")) element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children);
  return element;
}

function button(name, text, title, press) {
  return make("button", { type: "button", textContent: text, title, onclick: press, "data-demo": name });
}

const clients = make("input", { type: "number", id: "demo-clients", min: 1, max: 10000, step: 1, required: true, inputMode: "numeric", className: "short" });
const sender = (name, text, title) => button(name, text, title, () => send(name));
const toggler = (name, text, title) => button(name, text, title, () => toggle(name));
const buttons = {
  burst: sender("burst", "Burst", "All clients send a request at one instant"),
  herd: sender("herd", "Herd", "As a burst; and those that are refused come back together when their Retry-After is over"),
  impatient: sender("impatient", "Clients that give up", "As a burst; and every second client goes away if it has to wait long"),
  scene: toggler("scene", "Play a scene", "A burst every few seconds and a few clients in between, while a page is open"),
  steady: toggler("steady", "Steady traffic", "Four fifths of the rate that the proxy had at first, all the time"),
  slow: toggler("slow", "Slow upstream", "Each request takes the upstream ten times as long; when it is busy it asks for a pause, which holds the line"),
  stop: button("stop", "Stop", "All simulated clients go away", () => attempt(() => act("stop", {}))),
};
const upstream = make("p", { className: "hint", id: "demo-upstream" });
const slider = make("input", { type: "range", id: "demo-rate", min: 0, max: 200, step: 1, oninput: slide, onchange: slide });
const rate = make("output", { htmlFor: "demo-rate" });
const last = make("p", { className: "hint" });
const limits = make("input", { id: "demo-candidate", autocomplete: "off", spellcheck: false, required: true, "autocapitalize": "off", "aria-describedby": "demo-verdict" });
const verdict = make("p", { className: "hint", id: "demo-verdict" });
const result = make("p", { id: "demo-result", role: "status" });

const sending = make("div", { role: "group", className: "row", "aria-label": "Send clients" },
  make("label", { htmlFor: "demo-clients", textContent: "Clients" }), clients, buttons.burst, buttons.herd, buttons.impatient);
const lasting = make("div", { role: "group", className: "row", "aria-label": "What lasts" },
  buttons.scene, buttons.steady, buttons.slow, buttons.stop);
const speed = make("div", { className: "row setting" },
  make("label", { htmlFor: "demo-rate", textContent: "Rate of the proxy" }), slider, rate, last);
const trial = make("form", { className: "row setting", noValidate: true, onsubmit: tryLimits },
  make("label", { htmlFor: "demo-candidate", textContent: "Dry run of" }), limits, make("button", { textContent: "Try" }), verdict);

/** Asks the demo to do something, and shows the state that it answers. */
async function act(name, body) {
  const response = await fetch(`/demo/${name}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json().catch(() => ({})); // What stands in between may answer in another form.
  if (!response.ok) throw new Refusal(answer.error ?? { message: `the server answered ${response.status}` });
  show(answer);
  return answer;
}

class Refusal extends Error {
  constructor({ parameter, message }) {
    super(parameter ? `${parameter} ${message}` : message);
  }
}

/** Runs what a button does, and tells what goes wrong. */
async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    tell(error instanceof Refusal ? `Not done: ${error.message}.` : "The demo does not answer.", true);
    return null;
  }
}

function tell(text, failed = false) {
  if (result.textContent !== text) result.textContent = text;
  result.classList.toggle("failed", failed);
}

function send(name) {
  if (!clients.reportValidity()) return;
  attempt(() => act(name, { n: clients.valueAsNumber }));
}

function toggle(name) {
  attempt(() => act(name, { on: !state.clients[name] }));
}

function tryLimits(event) {
  event.preventDefault();
  attempt(async () => {
    limits.setAttribute("aria-invalid", "true");
    await act("candidate", { limits: limits.value });
    limits.removeAttribute("aria-invalid");
    tell(`The dry run goes on with ${state.candidate.limits}.`);
  });
}

/** The rate at the slider's place: the scale is logarithmic, and the numbers are round. */
function rateAt(place) {
  const exact = state.slowest * (state.fastest / state.slowest) ** (place / slider.max);
  const digit = Math.max(10 ** (Math.floor(Math.log10(exact)) - 1), exact >= 5 ? 1 : 0);
  return Math.min(Math.max(Number((Math.round(exact / digit) * digit).toPrecision(6)), state.slowest), state.fastest);
}

function placeOf(rate) {
  return Math.round((slider.max * Math.log(rate / state.slowest)) / Math.log(state.fastest / state.slowest));
}

function slide() {
  showRate(rateAt(slider.valueAsNumber));
  clearTimeout(sliding);
  sliding = setTimeout(async () => {
    const place = slider.valueAsNumber;
    await attempt(() => act("rate", { rate: rateAt(place) }));
    if (slider.valueAsNumber === place) sliding = 0;
  }, settle);
}

function showRate(perSecond) {
  const [number, unit] = perSecond >= 1 ? [perSecond, "second"] : perSecond * 60 >= 1 ? [perSecond * 60, "minute"] : [perSecond * 3600, "hour"];
  const text = String(Number(number.toPrecision(3)));
  rate.textContent = `${text} per ${unit}`;
  slider.setAttribute("aria-valuetext", `${text} per ${unit}`);
}

function show(now) {
  const first = state === null;
  state = now;
  if (first) {
    failedBefore = state.clients?.failed ?? 0;
    build();
  }
  last.textContent = state.waiting === 0 ? "Nobody waits." : `${state.waiting} in line, the last leaves in ${seconds(state.last_in_s)}.`;
  if (state.fastest > 0 && sliding === 0) {
    slider.value = placeOf(state.rate);
    showRate(state.rate);
  }
  const { seen, refused } = state.candidate;
  verdict.textContent = seen === 0 ? "No request has come since." : `It would have refused ${refused} of ${seen}.`;
  if (state.clients) showClients();
}

function showClients() {
  const now = state.clients;
  for (const name of ["scene", "steady", "slow"]) buttons[name].setAttribute("aria-pressed", String(now[name]));
  const failed = now.failed > failedBefore ? `; ${now.failed - failedBefore} found all busy since you opened this page` : "";
  upstream.textContent = `Upstream: ${now.busy} of ${now.workers} workers busy, ${seconds(now.service_s)} a request${failed}.`;
  const errand = state.errand;
  if (!errand) {
    if (now.scene) tell(`A scene plays: a burst of ${now.scene_burst} every ${seconds(now.scene_period_s)}, and a few clients in between. It ends when you send clients.`);
    return;
  }
  const name = `${errand.id} ${errand.ended}`;
  if (name !== told) tell(errand.ended ? outcome(errand) : beginning(errand), errand.ended && errand.failed > 0);
  told = name;
}

function beginning(errand) {
  const came = `${errand.clients} clients have come at one instant`;
  switch (errand.name) {
    case "herd": return `${came}. Those that are refused come back together.`;
    case "impatient": return `${came}. Every second one goes away if it has to wait.`;
  }
  return `${came}.`;
}

function outcome(errand) {
  const counts = [`${errand.served} served`, `${errand.refused} refused`];
  if (errand.gave_up > 0) counts.push(`${errand.gave_up} gave up`);
  if (errand.failed > 0) counts.push(`${errand.failed} failed`);
  const title = { burst: "Burst", herd: "Herd", impatient: "Clients that give up" }[errand.name];
  const requests = errand.sent > errand.clients ? ` in ${errand.sent} requests` : "";
  return `${title}: of ${errand.clients} clients${requests}, ${counts.join(", ")}.`;
}

function seconds(s) {
  return s < 1 ? `${Math.round(s * 1000)} ms` : s < 120 ? `${Number(s.toFixed(1))} s` : `${Math.round(s / 60)} min`;
}

/** Puts the parts into the page for which there is something behind them. */
function build() {
  limits.value = state.candidate.limits;
  const settings = make("div", { className: "settings" });
  if (state.fastest > 0) settings.append(speed);
  settings.append(trial);
  const row = make("div", { className: "settings" }, result);
  if (state.clients) {
    clients.value = state.clients.suggested;
    row.append(upstream);
    panel.append(make("div", { className: "actions" }, sending, lasting), row, settings);
  } else {
    panel.append(settings, row);
  }
  panel.classList.add("card", "demo");
}

/** Shows the state, again and again, unless nobody sees it or the page has lost its server. */
async function watch() {
  clearTimeout(watch.timer);
  let pause = beat;
  if (!document.hidden && !["lost", "bye", "refused"].includes(status?.dataset.state)) {
    try {
      await act("watch", {});
    } catch {
      pause = patience; // The page itself tells that the connection is lost.
    }
  }
  clearTimeout(watch.timer);
  watch.timer = setTimeout(watch, pause);
}

document.head.append(make("link", { rel: "stylesheet", href: "/demo/panel.css" }));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) watch();
});
watch();
