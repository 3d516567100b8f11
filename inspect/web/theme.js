// The colors of the style sheet for what is drawn on a canvas, which knows no light-dark().

const names = ["arrivals", "arrivals-fill", "departures", "refusals", "gave-up", "line", "line-fill", "grid", "muted", "halo", "held"];
let known = null;

/** The present colors, by the names that they have in the style sheet. */
export function colors() {
  if (known) return known;
  const probe = document.createElement("i");
  probe.hidden = true;
  probe.style.forcedColorAdjust = "none"; // or it would have the color of texts, whatever is asked for
  document.body.append(probe);
  known = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    known[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return known;
}

/** Calls listener when the colors have changed. */
export function onThemeChange(listener) {
  for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)", "print"]) {
    matchMedia(query).addEventListener("change", () => {
      known = null;
      listener();
    });
  }
}
