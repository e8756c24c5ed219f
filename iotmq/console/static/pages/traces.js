/** All traces, and how one is begun. */

import {
  api,
  Button,
  Choice,
  Dialog,
  Form,
  go,
  html,
  link,
  Name,
  number,
  Page,
  Problem,
  problemText,
  State,
  Table,
  TextField,
  tell,
  texts,
  Time,
  useAnswer,
  useState,
} from "../kit.js";

const words = texts.traces;

const COLUMNS = [
  { key: "name", title: words.name, show: (/** @type {any} */ row) => html`<${Name} name=${row.name} to=${link("trace", { name: row.name })} />` },
  { key: "kind", title: words.kind, hidden: "narrow", show: (/** @type {any} */ row) => words.kinds[/** @type {"client"} */ (row.kind)] },
  { key: "value", title: words.what, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.value} />` },
  { key: "is_running", title: words.state, show: stateOf },
  { key: "events", title: words.events, isNumber: true, show: (/** @type {any} */ row) => number(row.events) },
  { key: "lost", title: words.lost, hint: words.lostHint, isNumber: true, hidden: "medium", show: (/** @type {any} */ row) => number(row.lost) },
  { key: "skipped", title: words.skipped, hint: words.skippedHint, isNumber: true, hidden: "medium", show: (/** @type {any} */ row) => number(row.skipped) },
  { key: "until_ms", title: words.until, hidden: "narrow", show: (/** @type {any} */ row) => html`<${Time} ms=${row.until_ms} />` },
  { key: "by", title: words.by, hidden: "medium", show: (/** @type {any} */ row) => html`<${Name} name=${row.by} />` },
];

/** @param {{kind?: string, value?: string}} props a trace that is to be begun */
export default function Traces({ kind = "client", value = "" }) {
  const [isOpen, setOpen] = useState(Boolean(value));
  const asked = useAnswer("/traces", { every_s: 5 });
  const silent = Object.keys(asked.answer?.problems ?? {});
  return html`
    <${Page}
      title=${words.title}
      lead=${words.lead}
      asked=${asked}
      actions=${html`<${Button} kind="primary" icon="add" onClick=${() => setOpen(true)}>${words.add}<//>`}
    >
      ${silent.length > 0 && html`<p class="trouble" role="alert">${texts.clients.missing(silent.join(", "))}</p>`}
      <${Table}
        caption=${words.title}
        rows=${asked.answer?.items ?? null}
        rowKey=${(/** @type {any} */ row) => row.name}
        href=${(/** @type {any} */ row) => link("trace", { name: row.name })}
        empty=${words.none}
        columns=${COLUMNS}
      />
      ${isOpen && html`<${NewTrace} kind=${kind} value=${value} onClose=${() => setOpen(false)} />`}
    <//>
  `;
}

/** @param {{kind: string, value: string, onClose: () => void}} props */
function NewTrace({ onClose, ...given }) {
  const [kind, setKind] = useState(given.kind);
  const [value, setValue] = useState(given.value);
  const [duration_s, setDuration] = useState("600");
  const [payload_bytes, setPayload] = useState("0");
  const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));

  async function start() {
    setProblem(null);
    let begun;
    try {
      const sizes = { duration_s: Number(duration_s), payload_bytes: Number(payload_bytes) };
      begun = await api.post("/traces", { kind, value, ...sizes });
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      setProblem(error);
      return;
    }
    tell(words.started);
    go("trace", { name: begun.name });
  }

  return html`
    <${Dialog}
      title=${words.add}
      onClose=${onClose}
      buttons=${html`
        <${Button} onClick=${onClose}>${texts.actions.cancel}<//>
        <button type="submit" form="trace" class="button is-primary">${words.start}</button>
      `}
    >
      <${Form} id="trace" class="stack" onSubmit=${start}>
        ${problem && !problem.of("/value") && html`<p class="trouble" role="alert">${problemText(problem)}</p>`}
        <${Choice} label=${words.kind} value=${kind} options=${Object.entries(words.kinds)} onChange=${setKind} />
        <${TextField}
          label=${words.valueOf[/** @type {"client"} */ (kind)]}
          required
          value=${value}
          onChange=${setValue}
          wrong=${problem?.of("/value")}
        />
        <div class="row">
          <${Choice} label=${words.duration} value=${duration_s} options=${Object.entries(words.durations)} onChange=${setDuration} />
          <${Choice} label=${words.payload} value=${payload_bytes} options=${Object.entries(words.payloads)} onChange=${setPayload} />
        </div>
        <p class="hint">${words.payloadHint}</p>
      <//>
    <//>
  `;
}

/** @param {any} row */
export function stateOf(row) {
  return row.is_running
    ? html`<${State} kind="good">${words.running}<//>`
    : html`<${State} kind="quiet">${words.ended}<//>`;
}
