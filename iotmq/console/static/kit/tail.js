/** Messages as they are stored, by the API's stream of server-sent events. */

import { useEffect, useState } from "../ui.js";
import { texts } from "../texts.js";
import { Problem, request } from "./api.js";
import { useNewest } from "./newest.js";

const ROWS_MAX = 500;
const AGAIN_MS = 2000;

/**
 * The newest messages of a filter, the newest in front. A stream that breaks goes on where it was.
 * @param {string} filter empty: none
 */
export function useTail(filter) {
  const { add, ...newest } = useNewest(ROWS_MAX);
  const [isOpen, setOpen] = useState(false);
  const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));
  const [note, setNote] = useState("");

  useEffect(() => {
    newest.clear();
    setOpen(false);
    setProblem(null);
    setNote("");
    if (!filter) return undefined;
    const abort = new AbortController();
    let lastId = "";

    /** @param {{kind: string, data: string, id: string | null}} event */
    function take(event) {
      if (event.id !== null) lastId = event.id;
      if (!event.data) return;
      const data = JSON.parse(event.data);
      if (event.kind === "") add(data);
      else if (event.kind === "gap") setNote(texts.messages.gap(data.broker));
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
    return () => abort.abort();
  }, [filter]);

  return { ...newest, isOpen, problem, note };
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
