/** Messages as they are stored, by the API's stream of server-sent events. */

import { useEffect, useRef, useState } from "../ui.js";
import { texts } from "../texts.js";
import { Problem, request } from "./api.js";

const ROWS_MAX = 500;
const AGAIN_MS = 2000;
const DRAWN_MS = 200;

/**
 * The newest messages of a filter, the newest in front. A stream that breaks goes on where it was.
 * @param {string} filter empty: none
 */
export function useTail(filter) {
  const [state, setState] = useState(/** @type {{rows: any[], count: number}} */ ({ rows: [], count: 0 }));
  const [isOpen, setOpen] = useState(false);
  const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));
  const [note, setNote] = useState("");
  const [isPaused, setPaused] = useState(false);
  const waiting = useRef(/** @type {any[]} */ ([]));
  const held = useRef(false);
  held.current = isPaused;

  useEffect(() => {
    setState({ rows: [], count: 0 });
    setOpen(false);
    setProblem(null);
    setNote("");
    waiting.current = [];
    if (!filter) return undefined;
    const abort = new AbortController();
    let lastId = "";
    // Drawn some times a second, however many come.
    const drawing = setInterval(() => {
      if (!waiting.current.length || held.current) return;
      const came = waiting.current.reverse();
      waiting.current = [];
      setState((known) => ({ rows: [...came, ...known.rows].slice(0, ROWS_MAX), count: known.count + came.length }));
    }, DRAWN_MS);

    /** @param {{kind: string, data: string, id: string | null}} event */
    function take(event) {
      if (event.id !== null) lastId = event.id;
      if (!event.data) return;
      const data = JSON.parse(event.data);
      if (event.kind === "") {
        waiting.current.push(data);
        // While it is paused, the newest that fit are kept.
        if (waiting.current.length > ROWS_MAX) waiting.current.shift();
      } else if (event.kind === "gap") setNote(texts.messages.gap(data.broker));
      else if (event.kind === "end") setNote(texts.messages.ended(data.reason));
    }

    async function follow() {
      while (!abort.signal.aborted) {
        try {
          const response = await request("GET", "/stream/messages", {
            query: { filter, payload_bytes_max: 4096, since: lastId },
            abort: abort.signal,
            accept: "text/event-stream",
          });
          setOpen(true);
          setProblem(null);
          if (response.body) await readEvents(response.body, take);
        } catch (error) {
          if (abort.signal.aborted) return;
          if (error instanceof Problem && error.status >= 400 && error.status < 500 && error.status !== 429) {
            setProblem(error);
            setOpen(false);
            return;
          }
          if (error instanceof Problem) setProblem(error);
        }
        setOpen(false);
        await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
      }
    }
    follow();
    return () => {
      abort.abort();
      clearInterval(drawing);
    };
  }, [filter]);

  return {
    ...state,
    isOpen,
    problem,
    note,
    isPaused,
    pause: () => setPaused(!isPaused),
    clear: () => {
      waiting.current = [];
      setState({ rows: [], count: 0 });
    },
  };
}

/**
 * Reads server-sent events. Throws when the connection breaks.
 * @param {ReadableStream<Uint8Array>} body
 * @param {(event: {kind: string, data: string, id: string | null}) => void} take
 */
export async function readEvents(body, take) {
  const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop() ?? "";
    for (const part of parts) {
      const event = { kind: "", data: "", id: /** @type {string | null} */ (null) };
      for (const line of part.split("\n")) {
        const [name, rest] = line.split(/: ?(.*)/s);
        if (name === "event") event.kind = rest;
        else if (name === "data") event.data += rest;
        else if (name === "id") event.id = rest;
      }
      take(event);
    }
  }
}
