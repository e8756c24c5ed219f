import { html, Page, texts } from "../kit.js";

export default function Later() {
  return html`<${Page} title=${"groups"} />`;
}
