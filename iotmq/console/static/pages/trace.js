/** One trace: its events as they come, and as files. */

import {
  api,
  at,
  attempt,
  Button,
  Choice,
  confirm,
  Dialog,
  download,
  exactTime,
  Facts,
  Figures,
  Filters,
  go,
  html,
  keep,
  link,
  Name,
  number,
  Page,
  Payload,
  request,
  Search,
  Table,
  texts,
  Time,
  time,
  useAnswer,
  useAsking,
  useCallback,
  useMemo,
  useRef,
  useKept,
  useState,
  visible,
} from "../kit.js";
import { stateOf } from "./traces.js";

const words = texts.trace;
const EVENTS_SHOWN_MAX = 10_000;
const PAGE_EVENTS = 1000;
const CELL_CHARACTERS = 400;
const VALUE_CHARACTERS = 200;

const COLUMNS = [
  { key: "time_ms", title: words.time, isSorted: false, show: momentOf },
  { key: "what", title: html`<span class="unseen">${words.event}</span>`, isSorted: false, hidden: "narrow", show: (/** @type {any} */ row) => words[/** @type {"sent"} */ (row.what)] },
  { key: "kind", title: words.event, isSorted: false, show: (/** @type {any} */ row) => html`<button type="button" class="link" data-event=${keyOf(row)}>${row.kind}</button>` },
  { key: "client", title: words.client, isSorted: false, hidden: "medium", show: (/** @type {any} */ row) => row.client && html`<${Name} name=${row.client} />` },
  { key: "topic", title: words.topic, isSorted: false, hidden: "narrow", show: (/** @type {any} */ row) => row.topic && html`<${Name} name=${row.topic} />` },
  { key: "facts", title: words.facts, isSorted: false, width: "wide", show: (/** @type {any} */ row) => html`<bdi>${factsText(row)}</bdi>` },
];

/** @param {{name?: string, match?: string, only?: string}} props */
export default function Trace({ name = "", match = "", only = "all" }) {
  const [typed, setTyped] = useKept("match", match);
  const [open, setOpen] = useState("");
  const state = useAnswer(name ? at`/traces/${name}` : null, { every_s: 5 });
  const trace = state.answer;
  const events = useEvents(name, trace?.is_running ?? true);
  const rows = useMemo(() => shownRows(events.answer, typed, only), [events.answer, typed, only]);
  const opened = open && events.answer?.find((/** @type {any} */ row) => keyOf(row) === open);

  async function stop() {
    if (!(await confirm({ title: words.stop, says: words.willStop, action: words.stop }))) return;
    if (await attempt(() => api.post(at`/traces/${name}/stop`), words.stopped)) state.reload();
  }

  async function remove() {
    const question = { title: words.remove, says: words.willRemove(name), action: words.remove, isDangerous: true };
    if (!(await confirm(question))) return;
    if (await attempt(() => api.remove(at`/traces/${name}`), words.removed)) go("traces");
  }

  /** @param {string} format @param {string} ending */
  async function save(format, ending) {
    const accept = format === "text" ? "text/plain" : "application/jsonl";
    const response = await request("GET", at`/traces/${name}/download`, { query: { format }, accept });
    download(await response.text(), `${name}.${ending}`, accept);
  }

  return html`
    <${Page}
      title=${html`<${Name} name=${name} />`}
      lead=${trace && leadOf(trace)}
      back=${["traces", texts.traces.title]}
      asked=${state.problem ? state : { ...events, reload: events.reload }}
      actions=${
        trace &&
        html`
          <${Button} icon="download" onClick=${() => save("text", "txt")}>${words.asText}<//>
          <${Button} icon="download" onClick=${() => save("jsonl", "jsonl")}>${words.asJson}<//>
          ${trace.is_running && html`<${Button} onClick=${stop}>${words.stop}<//>`}
          <${Button} kind="danger" onClick=${remove}>${words.remove}<//>
        `
      }
    >
      ${trace && html`<${Figures} items=${figuresOf(trace)} />`}
      <${Filters}>
        <${Search} label=${words.search} value=${typed} onChange=${setTyped} />
        <${Choice}
          label=${words.show}
          isLabelHidden
          value=${only}
          options=${[["all", words.all], ["packets", words.packets], ["decided", words.decisions]]}
          onChange=${(/** @type {string} */ value) => keep({ only: value === "all" ? "" : value })}
        />
      <//>
      <div
        onClick=${(/** @type {MouseEvent} */ event) => {
          const hit = /** @type {Element} */ (event.target).closest("[data-event]");
          if (hit instanceof HTMLElement) setOpen(hit.dataset.event ?? "");
        }}
      >
        <${Table}
          caption=${words.events}
          rows=${rows}
          rowKey=${keyOf}
          empty=${typed || only !== "all" ? texts.table.noMatch : words.none}
          columns=${COLUMNS}
        />
      </div>
      ${events.answer?.length === EVENTS_SHOWN_MAX && html`<p class="hint">${words.left(number(EVENTS_SHOWN_MAX))}</p>`}
      ${opened && html`<${Event} row=${opened} onClose=${() => setOpen("")} />`}
    <//>
  `;
}

/** @param {{row: any, onClose: () => void}} props */
function Event({ row, onClose }) {
  /** @type {[any, any][]} */
  const items = [
    [words.time, momentOf(row)],
    [words.event, `${row.kind}, ${words[/** @type {"sent"} */ (row.what)]}`],
    [words.frontEnd, html`<${Name} name=${row.front_end} />`],
  ];
  if (row.client) items.push([words.client, html`<${Name} name=${row.client} to=${link("client", { id: row.client })} />`]);
  if (row.address) items.push([texts.clients.address, html`<${Name} name=${row.address} />`]);
  if (row.topic) items.push([words.topic, html`<${Name} name=${row.topic} />`]);
  for (const [key, value] of Object.entries(row.facts ?? {})) {
    items.push([key, html`<${Name} name=${Array.isArray(value) ? value.join(", ") : value} />`]);
  }
  for (const [key, value] of row.properties ?? []) items.push([`${words.properties}: ${visible(key)}`, html`<${Name} name=${value} />`]);
  const hasPayload = row.payload || row.payload_base64;
  return html`
    <${Dialog} title=${words.oneEvent} onClose=${onClose} isWide>
      <${Facts} items=${items} />
      ${hasPayload &&
      html`<${Payload} payload=${row.payload_base64 ? null : row.payload} payload_base64=${row.payload_base64} payload_bytes=${row.facts.payload_bytes} name=${`event-${row.number}`} />`}
    <//>
  `;
}

/**
 * The events of a trace, asked for from behind the last one that is known.
 * @param {string} name @param {boolean} isRunning
 */
function useEvents(name, isRunning) {
  const known = useRef({ name: "", cursor: "", rows: /** @type {any[]} */ ([]) });
  const ask = useCallback(
    async (/** @type {AbortSignal} */ abort) => {
      if (known.current.name !== name) known.current = { name, cursor: "", rows: [] };
      const seen = known.current;
      let hasMore = Boolean(name);
      while (hasMore) {
        const query = { limit: PAGE_EVENTS, cursor: seen.cursor };
        const page = await api.get(at`/traces/${name}/events`, query, abort);
        if (page.items.length) seen.rows = [...seen.rows, ...page.items].slice(-EVENTS_SHOWN_MAX);
        seen.cursor = page.last;
        hasMore = page.next !== null;
      }
      return seen.rows;
    },
    [name],
  );
  return useAsking(ask, isRunning ? 2 : 10);
}

/** @param {any} trace */
function leadOf(trace) {
  const value = visible(trace.value);
  const shown = value.length > VALUE_CHARACTERS ? `${value.slice(0, VALUE_CHARACTERS)}…` : value;
  return `${texts.traces.valueOf[/** @type {"client"} */ (trace.kind)]}: ${shown}`;
}

/** With milliseconds: events of a trace are close to each other. @param {any} row */
function momentOf(row) {
  const text = `${time(row.time_ms)}.${String(row.time_ms % 1000).padStart(3, "0")}`;
  return html`<time datetime=${exactTime(row.time_ms)} title=${exactTime(row.time_ms)}>${text}</time>`;
}

/** @param {any} trace */
function figuresOf(trace) {
  return [
    { label: texts.traces.state, value: stateOf(trace), note: html`${texts.traces.until} <${Time} ms=${trace.until_ms} />` },
    { label: texts.traces.events, value: number(trace.events) },
    { label: texts.traces.lost, value: number(trace.lost), state: trace.lost ? "warn" : "" },
    { label: texts.traces.skipped, value: number(trace.skipped), state: trace.skipped ? "warn" : "" },
  ];
}

/** @param {any[] | null} rows @param {string} typed @param {string} only */
function shownRows(rows, typed, only) {
  if (!rows) return rows;
  const match = typed.toLowerCase();
  return rows.filter((row) => {
    if (only === "packets" && row.what === "decided") return false;
    if (only === "decided" && row.what !== "decided") return false;
    return !match || `${row.kind} ${row.client ?? ""} ${row.topic ?? ""} ${factsText(row)}`.toLowerCase().includes(match);
  });
}

/** @param {any} row */
function keyOf(row) {
  return `${row.number} ${row.front_end}`;
}

/** @param {any} row */
function factsText(row) {
  const text = Object.entries(row.facts ?? {})
    .map(([key, value]) => `${key} ${Array.isArray(value) ? value.join(", ") : value}`)
    .join(" · ");
  return visible(text).slice(0, CELL_CHARACTERS);
}
