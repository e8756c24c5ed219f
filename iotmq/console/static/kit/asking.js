/** Answers of the API in components: asked again while the page can be seen, and page by page for lists. */

import { useCallback, useEffect, useRef, useState } from "../ui.js";
import { api, Problem } from "./api.js";

const PAGE_ROWS = 1000;
const LONG_LIST_TIMES = 6;
/** Rows that a list holds at most; a filter finds what is behind them. */
export const ROWS_MAX = 10_000;

/**
 * @typedef {{answer: any, problem: Problem | null, isAsking: boolean, at_ms: number, reload: () => void}} Asked
 */

/**
 * The answer to a GET, and again every `every_s` seconds. While asking fails the last answer stays, with the problem.
 * @param {string | null} path null: nothing is asked
 * @param {{query?: Record<string, unknown>, every_s?: number}} [options]
 * @returns {Asked}
 */
export function useAnswer(path, { query = {}, every_s = 0 } = {}) {
  const words = JSON.stringify(query);
  return useAsking(
    useCallback((abort) => (path === null ? null : api.get(path, JSON.parse(words), abort)), [path, words]),
    every_s,
    path,
  );
}

/**
 * What a function returns that asks, and again every `every_s` seconds.
 * @param {(abort: AbortSignal) => Promise<any> | null} ask changes when something else is to be asked (useCallback)
 * @param {number} [every_s]
 * @param {unknown} [subject] the last answer stays while another one about the same is asked for
 * @returns {Asked}
 */
export function useAsking(ask, every_s = 0, subject = ask) {
  const [state, setState] = useState(
    /** @type {{answer: any, problem: Problem | null, isAsking: boolean, at_ms: number}} */ ({
      answer: null,
      problem: null,
      isAsking: true,
      at_ms: 0,
    }),
  );
  const again = useRef(() => {});
  const known = useRef(subject);
  useEffect(() => {
    let timer = 0;
    let isDue = false;
    let isRunning = false;
    let rowsCount = 0;
    const abort = new AbortController();
    const isSame = known.current === subject;
    known.current = subject;
    setState((last) => (isSame ? { ...last, isAsking: true } : { answer: null, problem: null, isAsking: true, at_ms: 0 }));

    async function run() {
      if (isRunning) return;
      clearTimeout(timer);
      isRunning = true;
      isDue = false;
      try {
        const answer = await ask(abort.signal);
        if (abort.signal.aborted) return;
        rowsCount = answer?.rows?.length ?? 0;
        setState({ answer, problem: null, isAsking: false, at_ms: Date.now() });
      } catch (error) {
        if (abort.signal.aborted) return;
        if (!(error instanceof Problem)) throw error;
        setState((last) => ({ ...last, problem: error, isAsking: false }));
      } finally {
        isRunning = false;
      }
      // A long list is many requests, so it is asked for less often.
      const pause_s = rowsCount > PAGE_ROWS ? LONG_LIST_TIMES * every_s : every_s;
      if (every_s) timer = window.setTimeout(due, pause_s * 1000);
    }
    function due() {
      if (document.hidden) isDue = true;
      else run();
    }
    function seen() {
      if (!document.hidden && isDue) run();
    }
    again.current = run;
    document.addEventListener("visibilitychange", seen);
    run();
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [ask, every_s, subject]);
  return { ...state, reload: useCallback(() => again.current(), []) };
}

/**
 * @typedef {{rows: any[] | null, pages: any[], problem: Problem | null, isAsking: boolean, isComplete: boolean,
 *   at_ms: number, reload: () => void}} Listed
 */

const NO_PAGES = /** @type {any[]} */ ([]);

/**
 * The rows of a list, all its pages until `rows_max`; filters are in the query, because the server has all rows.
 * `pages` are the answers, for what they say beside the rows.
 * @param {string | null} path
 * @param {{query?: Record<string, unknown>, every_s?: number, page_rows?: number, rows_max?: number}} [options]
 * @returns {Listed}
 */
export function useList(path, { query = {}, every_s = 0, page_rows = PAGE_ROWS, rows_max = ROWS_MAX } = {}) {
  const words = JSON.stringify(query);
  const ask = useCallback(
    async (/** @type {AbortSignal} */ abort) => {
      if (path === null) return null;
      /** @type {any[]} */
      const rows = [];
      const pages = [];
      let cursor = "";
      do {
        const page = await api.get(path, { ...JSON.parse(words), limit: page_rows, cursor }, abort);
        rows.push(...page.items);
        pages.push(page);
        cursor = page.next ?? "";
      } while (cursor && rows.length < rows_max);
      return { rows, pages, isComplete: !cursor };
    },
    [path, words, page_rows, rows_max],
  );
  const { answer, ...rest } = useAsking(ask, every_s, path);
  return { ...rest, rows: answer?.rows ?? null, pages: answer?.pages ?? NO_PAGES, isComplete: answer?.isComplete ?? true };
}

/**
 * A value that follows another one when that has rested, so that not every key is a request.
 * @template T
 * @param {T} value
 * @param {number} [rest_ms]
 * @returns {T}
 */
export function useRested(value, rest_ms = 250) {
  const [rested, setRested] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setRested(value), rest_ms);
    return () => clearTimeout(timer);
  }, [value, rest_ms]);
  return rested;
}
