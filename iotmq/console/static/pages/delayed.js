/** Messages that wait for the time of their delivery. */

import {
  api,
  at,
  attempt,
  buttonColumn,
  bytes,
  confirm,
  Filters,
  html,
  link,
  may,
  Name,
  Page,
  Search,
  Table,
  texts,
  Time,
  time,
  useAnswer,
  useMemo,
  useRested,
  useKept,
} from "../kit.js";

const words = texts.delayed;
const ROWS_MAX = 1000;

const COLUMNS = [
  { key: "due_ms", title: words.due, show: (/** @type {any} */ row) => html`<${Time} ms=${row.due_ms} />` },
  { key: "topic", title: words.forTopic, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.topic} to=${link("topic", { name: row.topic })} />` },
  { key: "message_id", title: words.message, width: "wide", hidden: "narrow", show: (/** @type {any} */ row) => html`<${Name} name=${row.message_id} />` },
  { key: "stored_ms", title: words.stored, hidden: "medium", show: (/** @type {any} */ row) => html`<${Time} ms=${row.stored_ms} />` },
  { key: "payload_bytes", title: words.size, isNumber: true, hidden: "narrow", show: (/** @type {any} */ row) => bytes(row.payload_bytes) },
  { key: "broker", title: words.broker, hidden: "medium", show: (/** @type {any} */ row) => html`<${Name} name=${row.broker} />` },
];

/** @param {{topic?: string}} props */
export default function Delayed({ topic = "" }) {
  const [typed, setTyped] = useKept("topic", topic);
  const asked = useAnswer("/delayed-messages", { query: { topic: useRested(typed), limit: ROWS_MAX }, every_s: 10 });

  /** @param {any} row */
  async function cancel(row) {
    const says = words.willCancel(row.topic, time(row.due_ms));
    if (!(await confirm({ title: words.cancelTitle, says, action: words.cancel, isDangerous: true }))) return;
    if (await attempt(() => api.remove(at`/delayed-messages/${row.topic}/${row.message_id}`), words.cancelled)) asked.reload();
  }

  const columns = useMemo(() => (may("operator") ? [...COLUMNS, buttonColumn(words.cancel, cancel, { isIn: (row) => row.message_id })] : COLUMNS), [asked.reload]);
  return html`
    <${Page} title=${words.title} lead=${words.lead} asked=${asked}>
      <${Filters}>
        <${Search} label=${words.topic} value=${typed} onChange=${setTyped} />
      <//>
      <${Table}
        caption=${words.title}
        rows=${asked.answer?.items ?? null}
        isComplete=${!asked.answer?.has_more}
        rowKey=${(/** @type {any} */ row) => `${row.broker} ${row.position} ${row.message_id}`}
        empty=${typed ? texts.table.noMatch : words.none}
        columns=${columns}
      />
    <//>
  `;
}
