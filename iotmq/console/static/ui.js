/** Preact, its hooks, templates and signals: the one file that names their versions. */

import { h, render } from "./vendor/preact-11.2.0/preact.mjs";
import {
  useCallback,
  useEffect,
  useId,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "./vendor/preact-11.2.0/hooks.mjs";
import htm from "./vendor/htm-3.1.1/htm.mjs";
import { effect, signal } from "./vendor/signals-core-1.14.5/signals-core.mjs";

/** Makes elements of a template: html`<p class="note">${text}</p>`. Text is never read as markup. */
export const html = htm.bind(h);

/**
 * The value of a signal, in a component that is drawn again when it changes.
 * @template T
 * @param {import("./vendor/signals-core-1.14.5/signals-core.mjs").ReadonlySignal<T>} source
 * @returns {T}
 */
export function useSignal(source) {
  const [, redraw] = useState(0);
  const shown = source.peek();
  useLayoutEffect(
    () =>
      effect(() => {
        if (source.value !== shown) redraw((count) => count + 1);
      }),
    [source, shown],
  );
  return shown;
}

export {
  effect,
  render,
  signal,
  useCallback,
  useEffect,
  useId,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
};
