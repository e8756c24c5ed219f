/** Front ends, and draining them. */

import {
  api,
  at,
  attempt,
  buttonColumn,
  Check,
  confirm,
  duration,
  Figures,
  FormDialog,
  html,
  may,
  Name,
  number,
  Page,
  State,
  Table,
  tell,
  TextField,
  texts,
  useAnswer,
  useForm,
  useMemo,
  useState,
} from "../kit.js";

const words = texts.frontEnds;

const COLUMNS = [
  { key: "name", title: words.name, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.name} />` },
  { key: "is_draining", title: words.state, hidden: "narrow", show: stateOf },
  { key: "clients", title: words.clients, isNumber: true, show: (/** @type {any} */ row) => number(row.clients) },
];

export default function FrontEnds() {
  const asked = useAnswer("/front-ends", { every_s: 3 });
  const [drained, setDrained] = useState(/** @type {any} */ (null));
  const rows = asked.answer?.items ?? null;

  /** @param {any} row */
  async function undo(row) {
    if (!(await confirm({ title: words.undo, says: words.willUndo(row.name), action: words.undo }))) return;
    const change = () => api.post(at`/front-ends/${row.name}/drain`, { is_draining: false });
    if (await attempt(change, words.isUndone)) asked.reload();
  }

  const columns = useMemo(() => {
    const wordOf = (/** @type {any} */ row) => (row.is_draining ? words.undo : words.drain);
    const drain = buttonColumn(words.drain, (row) => (row.is_draining ? undo(row) : setDrained(row)), { wordOf });
    return may("operator") ? [...COLUMNS, drain] : COLUMNS;
  }, [asked.reload]);
  const open = (rows ?? []).filter((/** @type {any} */ row) => !row.is_draining);
  return html`
    <${Page} title=${words.title} lead=${words.lead} asked=${asked}>
      ${rows?.length > 0 &&
      html`
        <${Figures}
          items=${[
            { label: words.title, value: number(rows.length) },
            { label: words.openCount, value: number(open.length), state: open.length ? "" : "bad" },
            { label: words.total, value: number(rows.reduce((/** @type {number} */ total, /** @type {any} */ row) => total + row.clients, 0)) },
          ]}
        />
      `}
      <${Table}
        caption=${words.title}
        rows=${rows}
        rowKey=${(/** @type {any} */ row) => row.name}
        empty=${words.none}
        columns=${columns}
      />
      ${drained &&
      html`<${Drain} row=${drained} isLast=${open.length === 1} onClose=${() => setDrained(null)} onDone=${asked.reload} />`}
    <//>
  `;
}

/** @param {{row: any, isLast: boolean, onClose: () => void, onDone: () => void}} props */
function Drain({ row, isLast, onClose, onDone }) {
  const [rate, setRate] = useState("100");
  const [reference, setReference] = useState("");
  const [hasMoved, setMoved] = useState(false);
  const clients = words.clientsOf(number(row.clients), row.clients);
  const time = duration(Math.ceil(row.clients / Math.max(1, Number(rate))));
  const form = useForm(
    () =>
      api.post(at`/front-ends/${row.name}/drain`, {
        is_draining: true,
        per_second: Number(rate),
        server_reference: reference,
        has_moved: hasMoved && reference !== "",
      }),
    () => {
      tell(words.isDrained);
      onDone();
      onClose();
    },
  );

  return html`
    <${FormDialog}
      form=${form}
      title=${words.drainTitle(row.name)}
      action=${words.drain.replace("…", "")}
      isDangerous
      onClose=${onClose}
    >
      <p>${words.willDrain(clients, time)}</p>
      ${isLast && html`<p class="trouble" role="alert">${words.last}</p>`}
      <${TextField}
        label=${words.rate}
        type="number"
        min="1"
        max="10000"
        required
        value=${rate}
        onChange=${setRate}
        hint=${words.rateHint}
        wrong=${form.of("/per_second")}
      />
      <${TextField} label=${words.reference} value=${reference} onChange=${setReference} hint=${words.referenceHint} wrong=${form.of("/server_reference")} />
      <${Check} label=${words.moved} hint=${words.movedHint} value=${hasMoved} onChange=${setMoved} />
    <//>
  `;
}

/** @param {any} row */
function stateOf(row) {
  return row.is_draining
    ? html`<${State} kind="warn">${words.draining}<//>`
    : html`<${State} kind="good">${words.open}<//>`;
}
