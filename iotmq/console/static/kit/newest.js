/** Rows that come by themselves: the newest in front, so many as fit, drawn some times a second. */

import { useEffect, useRef, useState } from "../ui.js";

const DRAWN_MS = 200;

/** @typedef {{rows: any[], count: number}} Newest */

/**
 * @param {number} size_max all rows together, by `sizeOf`
 * @param {(row: any) => number} [sizeOf] a function of the module
 */
export function useNewest(size_max, sizeOf = () => 1) {
  const [state, setState] = useState(/** @type {Newest} */ ({ rows: [], count: 0 }));
  const [isPaused, setPaused] = useState(false);
  const waiting = useRef(/** @type {any[]} */ ([]));
  const waitingSize = useRef(0);
  // Those that did not fit are counted, too.
  const cameCount = useRef(0);
  const held = useRef(false);
  held.current = isPaused;

  useEffect(() => {
    const drawing = setInterval(() => {
      if (!waiting.current.length || held.current) return;
      const came = waiting.current.reverse();
      const count = cameCount.current;
      waiting.current = [];
      waitingSize.current = cameCount.current = 0;
      setState((known) => ({ rows: fitting([...came, ...known.rows], size_max, sizeOf), count: known.count + count }));
    }, DRAWN_MS);
    return () => clearInterval(drawing);
  }, [size_max, sizeOf]);

  return {
    ...state,
    isPaused,
    pause: () => setPaused(!isPaused),
    /** While it is paused, the newest that fit are kept. */
    add(/** @type {any} */ row) {
      waiting.current.push(row);
      cameCount.current += 1;
      waitingSize.current += sizeOf(row);
      while (waitingSize.current > size_max && waiting.current.length > 1) waitingSize.current -= sizeOf(waiting.current.shift());
    },
    clear() {
      waiting.current = [];
      waitingSize.current = cameCount.current = 0;
      setState({ rows: [], count: 0 });
    },
  };
}

/** @param {any[]} rows @param {number} size_max @param {(row: any) => number} sizeOf */
function fitting(rows, size_max, sizeOf) {
  let size = 0;
  const end = rows.findIndex((row) => (size += sizeOf(row)) > size_max);
  return end < 0 ? rows : rows.slice(0, end);
}
