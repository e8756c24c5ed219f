/** Begins: asks who is signed in, and shows the page. */

import { html, render } from "./ui.js";
import { Problem } from "./kit/api.js";
import { Shell } from "./kit/shell.js";
import { me, refresh } from "./kit/session.js";
import "./kit/theme.js";

const AGAIN_MS = 3000;

async function begin() {
  try {
    await refresh();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    // A gateway that starts, or is gone: the page says so with what it asks, and asks again itself.
    if (me.peek() === undefined) setTimeout(begin, AGAIN_MS);
  }
}

const root = document.getElementById("console");
if (root) render(html`<${Shell} />`, root);
begin();
