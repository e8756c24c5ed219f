/** Light or dark: as the system says, until somebody chooses. */

import { effect, signal } from "../ui.js";

const KEY = "iotmq.theme";
const THEMES = ["system", "light", "dark"];

export const theme = signal(THEMES.find((each) => each === localStorage.getItem(KEY)) ?? "system");

/** Counts changes of what colours look like: canvases are drawn anew then. */
export const coloursCount = signal(0);

effect(() => {
  const chosen = theme.value;
  if (chosen === "system") {
    document.documentElement.removeAttribute("data-theme");
    localStorage.removeItem(KEY);
  } else {
    document.documentElement.dataset.theme = chosen;
    localStorage.setItem(KEY, chosen);
  }
  coloursCount.value = coloursCount.peek() + 1;
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  coloursCount.value += 1;
});

/** The next of system, light, dark. */
export function nextTheme() {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length];
}
