/** Small parts of pages: the frame of a page, figures, states, names, times. */

import { html, useEffect, useState } from "../ui.js";
import { texts } from "../texts.js";
import { ago, exactTime, time, visible } from "./format.js";
import { Icon } from "./icons.js";
import { link } from "./router.js";
import { may } from "./session.js";
import { problemText } from "./telling.js";

/**
 * The frame of a page: its title, what can be done with it, and what is in it.
 * @param {{title: any, lead?: string, actions?: any, back?: [string, string], asked?: import("./asking.js").Asked | import("./asking.js").Listed, children?: any}} props
 * back: a page and its title; asked: what the page shows, whose problems stand on top
 */
export function Page({ title, lead, actions, back, asked, children }) {
  return html`
    <header class="page-head">
      <div class="page-title">
        ${back && html`<a class="back" href=${link(back[0])}><${Icon} name="back" />${back[1]}</a>`}
        <h1 tabindex="-1">${title}</h1>
        ${lead && html`<p class="lead">${lead}</p>`}
      </div>
      <div class="page-actions">
        ${actions}
        ${asked &&
        html`
          <button
            type="button"
            class="icon-button"
            aria-label=${texts.actions.refresh}
            title=${asked.at_ms ? `${texts.actions.refresh} · ${time(asked.at_ms)}` : texts.actions.refresh}
            onClick=${asked.reload}
          >
            <${Icon} name="refresh" />
          </button>
        `}
      </div>
    </header>
    ${asked?.problem && html`<${Trouble} problem=${asked.problem} at_ms=${asked.at_ms} onRetry=${asked.reload} />`}
    ${children}
  `;
}

/** What could not be asked, and from when what is shown is. @param {{problem: import("./api.js").Problem, at_ms?: number, onRetry?: () => void}} props */
export function Trouble({ problem, at_ms, onRetry }) {
  return html`
    <div class="trouble" role="alert">
      <${Icon} name="warning" />
      <p>${problemText(problem)} ${at_ms ? texts.problems.shownFrom(time(at_ms)) : ""}</p>
      ${onRetry && html`<button type="button" class="button is-small" onClick=${onRetry}>${texts.actions.retry}</button>`}
    </div>
  `;
}

/** A box with a heading. @param {{title?: any, actions?: any, children?: any, isFlush?: boolean, hint?: string}} props */
export function Card({ title, actions, children, isFlush, hint }) {
  return html`
    <section class=${`card ${isFlush ? "is-flush" : ""}`}>
      ${(title || actions) &&
      html`<header class="card-head"><h2>${title}</h2>${actions && html`<div class="card-actions">${actions}</div>`}</header>`}
      ${hint && html`<p class="hint card-hint">${hint}</p>`}
      ${children}
    </section>
  `;
}

/** Numbers in large type. @param {{items: {label: string, value: any, note?: any, href?: string, state?: string}[]}} props */
export function Figures({ items }) {
  return html`
    <dl class="figures">
      ${items.map(
        (each) => html`
          <div class=${`figure ${each.state ? `is-${each.state}` : ""}`} key=${each.label}>
            <dt>${each.href ? html`<a href=${each.href}>${each.label}</a>` : each.label}</dt>
            <dd>
              <span class="figure-value">${each.value}</span>
              ${each.note && html`<span class="figure-note">${each.note}</span>`}
            </dd>
          </div>
        `,
      )}
    </dl>
  `;
}

/** Names and values, one under the other. @param {{items: [any, any][]}} props */
export function Facts({ items }) {
  return html`
    <dl class="facts">
      ${items.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
    </dl>
  `;
}

/** A state: a word with a dot, never the colour alone. @param {{kind: "good" | "warn" | "bad" | "quiet", children?: any}} props */
export function State({ kind, children }) {
  return html`<span class=${`state is-${kind}`}>${children}</span>`;
}

/** A name of a peer's, as it is and readable; with `to` a link. @param {{name: any, to?: string}} props */
export function Name({ name, to }) {
  const text = visible(name);
  const inner = html`<bdi class="name" title=${text}>${text.length > 300 ? `${text.slice(0, 300)}…` : text}</bdi>`;
  return to ? html`<a class="name-link" href=${to}>${inner}</a>` : inner;
}

/** A sentence in which names of peers may stand. @param {{text: any}} props */
export function Words({ text }) {
  const shown = visible(text);
  return html`<bdi title=${shown}>${shown}</bdi>`;
}

/** @param {{ms: number | null | undefined}} props */
export function Time({ ms }) {
  return ms ? html`<time datetime=${exactTime(ms)} title=${exactTime(ms)}>${time(ms)}</time>` : html`<span>–</span>`;
}

/** Counts on by itself. @param {{ms: number | null | undefined}} props */
export function Ago({ ms }) {
  const [now_ms, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 5000);
    return () => clearInterval(timer);
  }, []);
  return ms ? html`<time datetime=${exactTime(ms)} title=${exactTime(ms)}>${ago(ms, now_ms)}</time>` : html`<span>–</span>`;
}

/** What only a role may see; the server refuses the others all the same. @param {{role: string, children?: any}} props */
export function For({ role, children }) {
  return may(role) ? children : null;
}

/** @param {{icon?: string, kind?: "primary" | "danger" | "quiet", onClick?: () => void, children?: any, [more: string]: any}} props */
export function Button({ icon, kind, children, ...more }) {
  return html`
    <button type="button" class=${`button ${kind ? `is-${kind}` : ""}`} ...${more}>
      ${icon && html`<${Icon} name=${icon} />`}${children}
    </button>
  `;
}

/** The line of filters above a table. @param {{children?: any}} props */
export function Filters({ children }) {
  return html`<div class="filters" role="search">${children}</div>`;
}

/** @param {{label: string, value: string, onChange: (value: string) => void, placeholder?: string}} props */
export function Search({ label, value, onChange, placeholder }) {
  return html`
    <label class="search">
      <span class="unseen">${label}</span>
      <${Icon} name="search" />
      <input
        type="search"
        value=${value}
        placeholder=${placeholder ?? label}
        spellcheck=${false}
        onInput=${(/** @type {any} */ event) => onChange(event.target.value)}
      />
    </label>
  `;
}

/** Parts of a page of which one is shown. @param {{label: string, tabs: [string, any][], value: string, onChange: (value: string) => void}} props */
export function Tabs({ label, tabs, value, onChange }) {
  return html`
    <div class="tabs" role="group" aria-label=${label}>
      ${tabs.map(
        ([name, title]) => html`
          <button key=${name} type="button" class="tab" aria-pressed=${name === value} onClick=${() => onChange(name)}>${title}</button>
        `,
      )}
    </div>
  `;
}
