/** Short messages at the edge of the page, which screen readers read out. */

import { html, signal, useSignal } from "../ui.js";
import { texts } from "../texts.js";
import { Problem } from "./api.js";
import { Icon } from "./icons.js";

const SHOWN_MS = 6000;
const TOLD_MAX = 5;

/** @type {import("../vendor/signals-core-1.14.5/signals-core.mjs").Signal<{id: number, text: string, isProblem: boolean}[]>} */
const told = signal([]);
let lastId = 0;

/** Says that something is done; gone after some seconds. @param {string} text */
export function tell(text) {
  const id = add(text, false);
  setTimeout(() => forget(id), SHOWN_MS);
}

/** Says what went wrong; stays until it is closed. @param {unknown} error */
export function tellProblem(error) {
  if (!(error instanceof Problem)) throw error;
  add(problemText(error), true);
}

/** What went wrong, in a sentence. @param {Problem} problem */
export function problemText(problem) {
  if (problem.status === 0) return texts.problems.unreachable;
  if (problem.status === 403) return `${texts.problems.forbidden} ${problem.message}`;
  return problem.title && problem.title !== problem.message ? `${problem.title} ${problem.message}` : problem.message;
}

/**
 * Runs a change; says what it did, or what went wrong. Returns whether it was done.
 * @param {() => Promise<any>} change
 * @param {string | ((answer: any) => string)} done
 */
export async function attempt(change, done) {
  try {
    const answer = await change();
    tell(typeof done === "function" ? done(answer) : done);
    return true;
  } catch (error) {
    tellProblem(error);
    return false;
  }
}

/** @param {string} text @param {boolean} isProblem */
function add(text, isProblem) {
  lastId += 1;
  told.value = [...told.value, { id: lastId, text, isProblem }].slice(-TOLD_MAX);
  return lastId;
}

/** @param {number} id */
function forget(id) {
  told.value = told.value.filter((each) => each.id !== id);
}

/** The messages; the page has it once. */
export function Told() {
  const all = useSignal(told);
  const list = (/** @type {boolean} */ isProblem) =>
    all
      .filter((each) => each.isProblem === isProblem)
      .map(
        (each) => html`
          <div class=${`told ${isProblem ? "is-problem" : ""}`} key=${each.id}>
            <${Icon} name=${isProblem ? "warning" : "done"} />
            <p>${each.text}</p>
            <button class="icon-button" aria-label=${texts.actions.close} onClick=${() => forget(each.id)}>
              <${Icon} name="close" />
            </button>
          </div>
        `,
      );
  return html`
    <div class="told-list">
      <div role="status" aria-live="polite">${list(false)}</div>
      <div role="alert">${list(true)}</div>
    </div>
  `;
}
