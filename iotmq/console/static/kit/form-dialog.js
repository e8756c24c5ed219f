/** A form over the page, with the buttons that leave it and send it. */

import { html } from "../ui.js";
import { texts } from "../texts.js";
import { Dialog } from "./dialog.js";
import { Form } from "./form.js";
import { Button } from "./parts.js";

/**
 * @param {{form: import("./form.js").FormState, title: string, action?: string, isDangerous?: boolean, isUnchanged?: boolean,
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
