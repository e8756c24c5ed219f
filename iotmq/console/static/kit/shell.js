/** The frame around all pages: navigation, who is signed in, colours; and the page itself. */

import { html, useEffect, useRef, useSignal, useState } from "../ui.js";
import { PAGES, SIGN_IN } from "../pages.js";
import { texts } from "../texts.js";
import { Questions } from "./dialog.js";
import { Icon, Mark } from "./icons.js";
import { Trouble } from "./parts.js";
import { link, place } from "./router.js";
import { may, me, signOut } from "./session.js";
import { attempt, Told } from "./telling.js";
import { nextTheme, theme } from "./theme.js";

const THEME_ICONS = /** @type {Record<string, string>} */ ({ system: "screen", light: "sun", dark: "moon" });

export function Shell() {
  const who = useSignal(me);
  const { name, query } = useSignal(place);
  const [isOpen, setOpen] = useState(false);
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  const isSigningIn = who === null || name === SIGN_IN.path;
  const entry = isSigningIn ? SIGN_IN : PAGES.find((each) => each.path === name);
  const title = entry?.title ?? texts.navigation.notFound;

  useEffect(() => {
    document.title = `${title} · ${texts.product}`;
    setOpen(false);
  }, [title]);

  if (who === undefined) return html`<p class="waiting" role="status">${texts.navigation.loading}</p>`;

  const page = html`
    <main id="main" ref=${main} class="main" tabindex="-1">
      <div class="main-inner">
        ${!entry
          ? html`<div class="empty"><h1 tabindex="-1">${texts.navigation.notFound}</h1><a href=${link("overview")}>${texts.navigation.titles.overview}</a></div>`
          : entry.role && !may(entry.role)
            ? html`<div class="empty"><h1 tabindex="-1">${title}</h1><p>${texts.navigation.notAllowed(entry.role)}</p></div>`
            : html`<${Loaded} key=${entry.path} entry=${entry} query=${query} />`}
      </div>
    </main>
  `;
  const edge = html`<${Questions} /><${Told} />`;
  if (isSigningIn) return html`<div class="shell is-bare">${page}${edge}</div>`;
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => {
      event.preventDefault();
      main.current?.focus();
    }}>${texts.navigation.skip}</a>
    <div class=${`shell ${isOpen ? "is-open" : ""}`}>
      <header class="bar">
        <button
          type="button"
          class="icon-button"
          aria-expanded=${isOpen}
          aria-controls="navigation"
          aria-label=${isOpen ? texts.navigation.close : texts.navigation.open}
          onClick=${() => setOpen(!isOpen)}
        >
          <${Icon} name=${isOpen ? "close" : "menu"} />
        </button>
        <span class="brand"><${Mark} />${texts.product}</span>
        <${Theme} />
      </header>
      <${Navigation} current=${entry?.under ?? name} who=${who} />
      <div class="curtain" onClick=${() => setOpen(false)}></div>
      ${page}
    </div>
    ${edge}
  `;
}

/** @param {{current: string, who: import("./session.js").Me}} props */
function Navigation({ current, who }) {
  const shown = PAGES.filter((each) => each.group !== undefined && may(each.role));
  const groups = Object.values(texts.navigation.groups).filter((group) => shown.some((each) => each.group === group));
  return html`
    <div class="side" id="navigation">
      <header><a class="brand" href=${link("overview")}><${Mark} />${texts.product}</a></header>
      <nav aria-label=${texts.navigation.label}>
        ${groups.map(
          (group) => html`
            <div class="nav-group" key=${group}>
              ${group && html`<h2>${group}</h2>`}
              <ul>
                ${shown
                  .filter((each) => each.group === group)
                  .map(
                    (each) => html`
                      <li key=${each.path}>
                        <a href=${link(each.path)} aria-current=${each.path === current ? "page" : undefined}>
                          <${Icon} name=${each.icon ?? ""} />${each.title}
                        </a>
                      </li>
                    `,
                  )}
              </ul>
            </div>
          `,
        )}
      </nav>
      <footer class="who">
        <div class="who-name">
          <strong title=${who.name}>${who.name}</strong>
          <span>${who.role}</span>
        </div>
        <${Theme} />
        <button
          type="button"
          class="icon-button"
          aria-label=${texts.navigation.signOut}
          title=${texts.navigation.signOut}
          onClick=${() => attempt(signOut, texts.navigation.signedOut)}
        >
          <${Icon} name="out" />
        </button>
      </footer>
    </div>
  `;
}

function Theme() {
  const chosen = useSignal(theme);
  const words = texts.navigation.theme[/** @type {"system"} */ (chosen)];
  return html`
    <button type="button" class="icon-button" aria-label=${words} title=${words} onClick=${nextTheme}>
      <${Icon} name=${THEME_ICONS[chosen]} />
    </button>
  `;
}

/**
 * The component of a page, when its module is there. After a step from another page its heading has the focus.
 * @param {{entry: import("../pages.js").PageEntry, query: Record<string, string>}} props
 */
function Loaded({ entry, query }) {
  const [module, setModule] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  useEffect(() => {
    let isShown = true;
    entry.load().then(
      (loaded) => isShown && setModule(loaded),
      // Its file is not there any more after an update of the gateway: the page as a whole is loaded anew.
      (error) => isShown && setProblem(error),
    );
    return () => {
      isShown = false;
    };
  }, [entry]);
  useEffect(() => {
    if (module && stepsCount > 0) document.querySelector("h1")?.focus({ preventScroll: true });
    if (module) {
      stepsCount += 1;
      scrollTo(0, 0);
    }
  }, [module]);
  if (problem) {
    return html`
      <div class="empty">
        <h1 tabindex="-1">${entry.title}</h1>
        <p>${texts.problems.updated}</p>
        <button type="button" class="button is-primary" onClick=${() => location.reload()}>${texts.actions.reload}</button>
      </div>
    `;
  }
  if (!module) return html`<p class="waiting" role="status">${texts.navigation.loading}</p>`;
  return html`<${module.default} ...${query} />`;
}

let stepsCount = 0;
