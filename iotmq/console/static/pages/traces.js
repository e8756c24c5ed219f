/** All traces, and how one is begun. */

import {
  api,
  Button,
  Choice,
  FormDialog,
  go,
  html,
  link,
  Name,
  number,
  Page,
  State,
  Table,
  tell,
  TextField,
  texts,
  Time,
  useAnswer,
  useForm,
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
  const form = useForm(
    () => api.post("/traces", { kind, value, duration_s: Number(duration_s), payload_bytes: Number(payload_bytes) }),
    (begun) => {
      tell(words.started);
      go("trace", { name: begun.name });
    },
  );

  return html`
    <${FormDialog} form=${form} title=${words.add} action=${words.start} onClose=${onClose}>
      <${Choice} label=${words.kind} value=${kind} options=${Object.entries(words.kinds)} onChange=${setKind} />
      <${TextField}
        label=${words.valueOf[/** @type {"client"} */ (kind)]}
        required
        value=${value}
        onChange=${setValue}
        wrong=${form.of("/value")}
      />
      <div class="row">
        <${Choice} label=${words.duration} value=${duration_s} options=${Object.entries(words.durations)} onChange=${setDuration} />
        <${Choice} label=${words.payload} value=${payload_bytes} options=${Object.entries(words.payloads)} onChange=${setPayload} />
      </div>
      <p class="hint">${words.payloadHint}</p>
    <//>
  `;
}

/** @param {any} row */
export function stateOf(row) {
  return row.is_running
    ? html`<${State} kind="good">${words.running}<//>`
    : html`<${State} kind="quiet">${words.ended}<//>`;
}
