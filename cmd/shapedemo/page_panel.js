// The demo-only part of the page: buttons that send clients to the proxy, and a slider for
// its rate. It fills the section that the page keeps for such a script, and asks the demo for
// its state once a second while the page is visible. As long as its visitor has pressed no
// button it sends some traffic, so that there is something to see.

const beat = 1000; // ms between two questions
const patience = 5000; // ms until the next question after one without an answer
const settle = 120; // ms for which the slider must rest before the rate is set

const panel = document.getElementById("panel");
const status = document.getElementById("status"); // of the page's connection
let state = null;
let told = ""; // the errand whose end has been told
let sliding = 0; // timer of the slider; 0: it rests
let traffic = true; // the visitor wants traffic
let beats = 0; // since the traffic began

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
const buttons = {
  burst: sender("burst", "Burst", "All clients send a request at one instant"),
  herd: sender("herd", "Herd", "As a burst; and those that are refused come back together when their Retry-After is over"),
  impatient: sender("impatient", "Clients that give up", "As a burst; and every second client goes away if it has to wait long"),
  traffic: button("traffic", "Traffic", "A few clients all the time, and a burst every few seconds, while this page is open", () => {
    traffic = !traffic;
    beats = 0;
    show(state);
  }),
  stop: button("stop", "Stop", "All simulated clients go away", () => {
    traffic = false;
    attempt(() => act("stop"));
  }),
};
const slider = make("input", { type: "range", id: "demo-rate", min: 0, max: 200, step: 1, oninput: slide, onchange: slide });
const rate = make("output", { htmlFor: "demo-rate" });
const last = make("p", { className: "hint" });
const result = make("p", { id: "demo-result", role: "status" });

const sending = make("div", { role: "group", className: "row", "aria-label": "Send clients" },
  make("label", { htmlFor: "demo-clients", textContent: "Clients" }), clients, buttons.burst, buttons.herd, buttons.impatient);
const lasting = make("div", { role: "group", className: "row", "aria-label": "What lasts" }, buttons.traffic, buttons.stop);
const speed = make("div", { className: "row setting" },
  make("label", { htmlFor: "demo-rate", textContent: "Rate of the proxy" }), slider, rate, last);

/** Asks the demo to do something, and shows the state that it answers. */
async function act(name, value = "") {
  const response = await fetch(`/demo/${name}`, { method: "POST", body: String(value) });
  if (!response.ok) throw new Refusal((await response.text()).trim());
  show(await response.json());
}

class Refusal extends Error {}

/** Runs what a button does, and tells what goes wrong. */
async function attempt(action) {
  try {
    await action();
  } catch (error) {
    tell(error instanceof Refusal ? `Not done: ${error.message}.` : "The demo does not answer.", true);
  }
}

function tell(text, failed = false) {
  if (result.textContent !== text) result.textContent = text;
  result.classList.toggle("failed", failed);
}

function send(name) {
  if (!clients.reportValidity()) return;
  traffic = false; // The page now shows what its visitor does.
  attempt(() => act(name, clients.valueAsNumber));
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
    await attempt(() => act("rate", rateAt(place)));
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
  if (first) build();
  last.textContent = state.waiting === 0 ? "Nobody waits." : `${state.waiting} in line, the last leaves in ${seconds(state.last_in_s)}.`;
  if (state.fastest > 0 && sliding === 0) {
    slider.value = placeOf(state.rate);
    showRate(state.rate);
  }
  if (state.sends_clients) showClients();
}

function showClients() {
  buttons.traffic.setAttribute("aria-pressed", String(traffic));
  const errand = state.errand;
  if (traffic) {
    tell(`Traffic comes: a burst of ${burst()} every ${period()} s, and a few clients in between. It ends when you send clients.`);
  } else if (errand) {
    const id = JSON.stringify([errand.name, errand.id, errand.ended]);
    if (id !== told) tell(errand.ended ? outcome(errand) : beginning(errand), errand.ended && errand.failed > 0);
    told = id;
  }
}

/** How many clients make a burst that does not fit the line. */
function burst() {
  return Math.min(Math.max(3, Math.ceil(1.5 * state.fits)), 300);
}

/** Seconds from one burst of the traffic to the next, in which the line leaves. */
function period() {
  return Math.round(Math.min(Math.max(8, 1.5 * state.drain_s), 60));
}

/** How many clients the traffic sends in the next second. */
function trafficNow() {
  const single = Math.min(state.fastest > 0 ? state.rate / 2 : 100, 100);
  return Math.floor((beats + 1) * single) - Math.floor(beats * single) + (beats % period() === 0 ? burst() : 0);
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
  const settings = make("div", { className: "settings" }, result);
  if (state.fastest > 0) settings.prepend(speed);
  if (state.sends_clients) {
    clients.value = Math.min(Math.max(10, 2 * state.fits), 500);
    panel.append(make("div", { className: "actions" }, sending, lasting));
  }
  panel.append(settings);
  panel.classList.add("card", "demo");
}

/** Shows the state, again and again, unless nobody sees it or the page has lost its server. */
async function watch() {
  clearTimeout(watch.timer);
  let pause = beat;
  if (!document.hidden && !["lost", "bye", "refused"].includes(status?.dataset.state)) {
    try {
      const now = state?.sends_clients && traffic ? trafficNow() : 0;
      await (now > 0 ? act("traffic", now) : act("state"));
      if (traffic) beats++;
    } catch (error) {
      if (error instanceof Refusal) traffic = false; // The demo stops, or has no room for more clients.
      else pause = patience; // The page itself tells that the connection is lost.
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
