/** Which page is shown: the part of the address behind #, as in #/topics?match=orders. */

import { signal, useState } from "../ui.js";

/**
 * @typedef {{name: string, query: Record<string, string>}} Place
 * @type {import("../vendor/signals-core-1.14.5/signals-core.mjs").Signal<Place>}
 */
export const place = signal(read());

addEventListener("hashchange", () => {
  place.value = read();
});

/** @returns {Place} */
function read() {
  const [name, words] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { name: name || "overview", query: Object.fromEntries(new URLSearchParams(words ?? "")) };
}

/**
 * The address of a page, for `href`.
 * @param {string} name
 * @param {Record<string, unknown>} [query] values that are "", null, undefined or false are left out
 */
export function link(name, query = {}) {
  const words = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (value !== "" && value !== null && value !== undefined && value !== false) words.set(key, String(value));
  }
  const text = words.toString();
  return `#/${name}${text ? `?${text}` : ""}`;
}

/** Shows a page. @param {string} name @param {Record<string, unknown>} [query] */
export function go(name, query) {
  location.hash = link(name, query);
}

/**
 * Keeps what a page was told (a filter, a tab) in its address, without a step of the browser's history.
 * @param {Record<string, unknown>} changed
 */
export function keep(changed) {
  const { name, query } = place.peek();
  history.replaceState(null, "", link(name, { ...query, ...changed }));
  place.value = read();
}

/**
 * A text of a page that its address keeps, such as what is searched for.
 * @param {string} name @param {string} first
 * @returns {[string, (text: string) => void]}
 */
export function useKept(name, first) {
  const [text, setText] = useState(first);
  return [
    text,
    (/** @type {string} */ typed) => {
      setText(typed);
      keep({ [name]: typed });
    },
  ];
}
