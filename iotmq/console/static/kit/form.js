/** Forms: their fields, with labels, hints and what is wrong with them, and how they are sent. */

import { html, useId, useRef, useState } from "../ui.js";
import { texts } from "../texts.js";
import { Problem } from "./api.js";
import { Dialog } from "./dialog.js";
import { visible } from "./format.js";
import { Button } from "./parts.js";
import { problemText } from "./telling.js";

/**
 * @typedef {{label: string, value: any, onChange: (value: any) => void, hint?: string, wrong?: string,
 *   isNarrow?: boolean, isLabelHidden?: boolean, [more: string]: any}} FieldProps
 */

/** One line of text, a number (type="number"), a time, a password. @param {FieldProps} props */
export function TextField({ label, value, onChange, hint, wrong, isNarrow, isLabelHidden, ...more }) {
  return field({ label, hint, wrong, isNarrow, isLabelHidden }, (/** @type {any} */ names) => html`
    <input
      class="input"
      spellcheck=${false}
      autocomplete="off"
      ...${more}
      ...${names}
      value=${value}
      onInput=${(/** @type {any} */ event) => onChange(event.target.value)}
    />
  `);
}

/** Several lines of text. @param {FieldProps} props */
export function LongField({ label, value, onChange, hint, wrong, isNarrow, isLabelHidden, ...more }) {
  return field({ label, hint, wrong, isNarrow, isLabelHidden }, (/** @type {any} */ names) => html`
    <textarea
      class="input"
      rows="6"
      spellcheck=${false}
      ...${more}
      ...${names}
      value=${value}
      onInput=${(/** @type {any} */ event) => onChange(event.target.value)}
    ></textarea>
  `);
}

/** One of some. @param {FieldProps & {options: [string | number, string][]}} props */
export function Choice({ label, value, onChange, options, hint, wrong, isNarrow, isLabelHidden, ...more }) {
  return field({ label, hint, wrong, isNarrow, isLabelHidden }, (/** @type {any} */ names) => html`
    <select
      class="input"
      ...${more}
      ...${names}
      value=${value}
      onChange=${(/** @type {any} */ event) => onChange(event.target.value)}
    >
      ${options.map(([each, text]) => html`<option value=${each} selected=${String(each) === String(value)}>${visible(text)}</option>`)}
    </select>
  `);
}

/** Yes or no. @param {{label: string, value: boolean, onChange: (value: boolean) => void, hint?: string}} props */
export function Check({ label, value, onChange, hint }) {
  const id = useId();
  return html`
    <label class="check">
      <input
        type="checkbox"
        checked=${value}
        aria-describedby=${hint ? id : undefined}
        onChange=${(/** @type {any} */ event) => onChange(event.target.checked)}
      />
      <span>${label}${hint && html`<span class="hint" id=${id}>${hint}</span>`}</span>
    </label>
  `;
}

/**
 * @param {{label: string, hint?: string, wrong?: string, isNarrow?: boolean, isLabelHidden?: boolean}} about
 * @param {(names: Record<string, unknown>) => any} control
 */
function field({ label, hint, wrong, isNarrow, isLabelHidden }, control) {
  const id = useId();
  const described = [hint && `${id}-hint`, wrong && `${id}-wrong`].filter(Boolean).join(" ") || undefined;
  return html`
    <div class=${`field ${isNarrow ? "is-narrow" : ""}`}>
      <label class=${isLabelHidden ? "unseen" : "field-label"} for=${id}>${label}</label>
      ${control({ id, "aria-describedby": described, "aria-invalid": wrong ? "true" : undefined })}
      ${hint && html`<p class="hint" id=${`${id}-hint`}>${hint}</p>`}
      ${wrong && html`<p class="wrong" id=${`${id}-wrong`}>${wrong}</p>`}
    </div>
  `;
}

/**
 * @typedef {{id: string, send: (...given: any[]) => Promise<void>, isBusy: boolean, problem: Problem | null,
 *   of: (pointer: string) => string, isSaid: () => boolean}} FormState
 */

/**
 * What a form does when it is sent, not twice at a time, and what was refused: `of("/name")` is what is wrong with
 * a field. What is wrong with none of the fields that were asked about stands on top of the form.
 * @param {(...given: any[]) => Promise<any>} ask
 * @param {(answer: any, ...given: any[]) => void} done
 * @returns {FormState}
 */
export function useForm(ask, done) {
  const id = useId();
  const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));
  const [isBusy, setBusy] = useState(false);
  const isSent = useRef(false);
  /** @type {Set<string>} */
  const said = new Set();
  async function send(/** @type {any[]} */ ...given) {
    if (isSent.current) return;
    isSent.current = true;
    setBusy(true);
    setProblem(null);
    try {
      done(await ask(...given), ...given);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      setProblem(error);
    } finally {
      isSent.current = false;
      setBusy(false);
    }
  }
  function of(/** @type {string} */ pointer) {
    const wrong = problem?.of(pointer) ?? "";
    if (wrong) said.add(wrong);
    return wrong;
  }
  const isSaid = () => !problem || (problem.errors.length > 0 && problem.errors.every((each) => said.has(each.detail)));
  return { id, send, isBusy, problem, of, isSaid };
}

/**
 * A form that sends when Enter is pressed, and says what went wrong with all of it.
 * @param {{form?: FormState, onSubmit?: () => void, children?: any, class?: string}} props
 */
export function Form({ form, onSubmit = form?.send, children, ...more }) {
  return html`
    <form
      id=${form?.id}
      ...${more}
      onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        onSubmit?.();
      }}
    >
      ${form?.problem && !form.isSaid() && html`<p class="trouble" role="alert">${problemText(form.problem)}</p>`}
      ${children}
    </form>
  `;
}

/**
 * A form over the page, with the buttons that leave it and send it.
 * @param {{form: FormState, title: string, action?: string, isDangerous?: boolean, isUnchanged?: boolean,
 *   isWide?: boolean, onClose: () => void, children?: any}} props
 */
export function FormDialog({ form, title, action = title, isDangerous, isUnchanged, isWide, onClose, children }) {
  return html`
    <${Dialog}
      title=${title}
      isWide=${isWide}
      onClose=${onClose}
      buttons=${html`
        <${Button} onClick=${onClose}>${texts.actions.cancel}<//>
        <button
          type="submit"
          form=${form.id}
          class=${`button ${isDangerous ? "is-danger" : "is-primary"}`}
          disabled=${form.isBusy || isUnchanged}
        >
          ${action}
        </button>
      `}
    >
      <${Form} form=${form}>${children}<//>
    <//>
  `;
}
