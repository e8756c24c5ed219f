/** The last message of each MQTT topic that was sent with retain. */

import {
  api,
  at,
  attempt,
  Button,
  confirm,
  Filters,
  For,
  html,
  may,
  MessageDialog,
  Name,
  number,
  Page,
  PAYLOAD_COLUMNS,
  ROWS_MAX,
  Search,
  SendDialog,
  Table,
  texts,
  Time,
  useKept,
  useList,
  useMemo,
  useRested,
  useState,
} from "../kit.js";

const words = texts.retained;
const PAGE_ROWS = 500;

const rowKey = (/** @type {any} */ row) => row.mqtt_topic;

/** @param {{filter?: string}} props */
export default function Retained({ filter = "" }) {
  const [typed, setTyped] = useKept("filter", filter);
  const [rows_max, setRowsMax] = useState(2 * PAGE_ROWS);
  const [chosen, setChosen] = useState(new Set());
  const [shown, setShown] = useState(/** @type {any} */ (null));
  const [isSending, setSending] = useState(false);
  const columns = useMemo(() => columnsFor(setShown), []);
  const list = useList("/retained", {
    query: { filter: useRested(typed) || "#", payload_bytes_max: 512 },
    every_s: rows_max > 2 * PAGE_ROWS ? 0 : 15,
    page_rows: PAGE_ROWS,
    rows_max,
  });

  /** @param {string[]} topics */
  async function end(topics) {
    const says = words.willEnd(number(topics.length), topics.length, topics.slice(0, 5));
    if (!(await confirm({ title: words.end, says, action: words.end, isDangerous: true }))) return;
    const done = await attempt(async () => {
      for (const each of topics) await api.remove(at`/retained/${each}`);
    }, words.ended(number(topics.length), topics.length));
    if (done) setChosen(new Set());
    list.reload();
  }

  return html`
    <${Page}
      title=${words.title}
      lead=${words.lead}
      asked=${list}
      actions=${html`<${For} role="operator"><${Button} icon="add" onClick=${() => setSending(true)}>${texts.message.send}<//><//>`}
    >
      <${Filters}>
        <${Search}
          label=${words.search}
          placeholder="plant/+/temperature"
          value=${typed}
          onChange=${setTyped}
        />
        <${For} role="operator">
          <${Button} kind="danger" disabled=${!chosen.size} onClick=${() => end(/** @type {string[]} */ ([...chosen]))}>${words.end}<//>
        <//>
      <//>
      <${Table}
        caption=${words.title}
        rows=${list.rows}
        rowKey=${rowKey}
        columns=${columns}
        chosen=${may("operator") ? chosen : undefined}
        onChoose=${setChosen}
        onOpen=${setShown}
        empty=${typed ? texts.table.noMatch : words.none}
        isComplete=${list.isComplete}
        onMore=${() => setRowsMax(ROWS_MAX)}
      />
      ${shown &&
      html`
        <${MessageDialog}
          message=${shown}
          onClose=${() => setShown(null)}
          actions=${() =>
            may("operator") &&
            html`
              <${Button} kind="danger" onClick=${() => {
                setShown(null);
                end([shown.mqtt_topic]);
              }}>${words.end}<//>
            `}
        />
      `}
      ${isSending && html`<${SendDialog} onClose=${() => setSending(false)} onSent=${list.reload} />`}
    <//>
  `;
}

/** @param {(row: any) => void} onShow */
const columnsFor = (onShow) => [
  {
    key: "mqtt_topic",
    title: words.topic,
    width: "wide",
    show: (/** @type {any} */ row) => html`<button type="button" class="link" onClick=${() => onShow(row)}><${Name} name=${row.mqtt_topic} /></button>`,
  },
  ...PAYLOAD_COLUMNS,
  { key: "stored_ms", title: words.stored, show: (/** @type {any} */ row) => html`<${Time} ms=${row.stored_ms} />` },
];
