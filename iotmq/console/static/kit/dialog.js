/** Dialogs over the page, by the browser's own element: focus stays inside, and Escape closes. */

import { html, signal, useEffect, useId, useRef, useSignal, useState } from "../ui.js";
import { texts } from "../texts.js";
import { Icon } from "./icons.js";

/**
 * A dialog that is open as long as it is part of the page.
 * @param {{title: string, onClose: () => void, children?: any, buttons?: any, isWide?: boolean}} props
 */
export function Dialog({ title, onClose, children, buttons, isWide }) {
  const id = useId();
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const before = document.activeElement;
    element.current?.showModal();
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return html`
    <dialog
      ref=${element}
      class=${`dialog ${isWide ? "is-wide" : ""}`}
      aria-labelledby=${id}
      onCancel=${(/** @type {Event} */ event) => {
        event.preventDefault();
        onClose();
      }}
    >
      <header class="dialog-head">
        <h2 id=${id}>${title}</h2>
        <button type="button" class="icon-button" aria-label=${texts.actions.close} onClick=${onClose}>
          <${Icon} name="close" />
        </button>
      </header>
      <div class="dialog-body">${children}</div>
      ${buttons && html`<footer class="dialog-foot">${buttons}</footer>`}
    </dialog>
  `;
}

/**
 * @typedef {{title: string, says: any, action: string, isDangerous?: boolean, typed?: string}} Question
 * says: what will happen, as text or elements; typed: a name that has to be typed first
 */

/** @type {import("../vendor/signals-core-1.14.5/signals-core.mjs").Signal<{question: Question, answer: (yes: boolean) => void} | null>} */
const asked = signal(null);

/**
 * Asks before something is done that cannot be taken back. It says what will happen.
 * @param {Question} question
 * @returns {Promise<boolean>}
 */
export function confirm(question) {
  asked.peek()?.answer(false);
  return new Promise((resolve) => {
    asked.value = {
      question,
      answer: (yes) => {
        asked.value = null;
        resolve(yes);
      },
    };
  });
}

/** The question that is asked now; the page has it once. */
export function Questions() {
  const current = useSignal(asked);
  return current && html`<${Ask} key=${current.question} ...${current} />`;
}

/** @param {{question: Question, answer: (yes: boolean) => void}} props */
function Ask({ question, answer }) {
  const [typed, setTyped] = useState("");
  const id = useId();
  const isReady = !question.typed || typed === question.typed;
  return html`
    <${Dialog}
      title=${question.title}
      onClose=${() => answer(false)}
      buttons=${html`
        <button type="button" class="button" autofocus onClick=${() => answer(false)}>${texts.actions.cancel}</button>
        <button
          type="submit"
          form=${id}
          class=${`button ${question.isDangerous ? "is-danger" : "is-primary"}`}
          disabled=${!isReady}
        >
          ${question.action}
        </button>
      `}
    >
      <form
        id=${id}
        onSubmit=${(/** @type {Event} */ event) => {
          event.preventDefault();
          if (isReady) answer(true);
        }}
      >
        <div class="prose">${typeof question.says === "string" ? html`<p>${question.says}</p>` : question.says}</div>
        ${question.typed &&
        html`
          <label class="field">
            <span class="field-label">${texts.actions.typeToConfirm(question.typed)}</span>
            <input
              class="input mono"
              value=${typed}
              autocomplete="off"
              spellcheck=${false}
              onInput=${(/** @type {any} */ event) => setTyped(event.target.value)}
            />
          </label>
        `}
      </form>
    <//>
  `;
}
