/** Messages: found by offset, time, key or id; or as they come. */

import {
  api,
  at,
  Button,
  Choice,
  Filters,
  For,
  Form,
  html,
  inputTime,
  keep,
  MessageDialog,
  Name,
  number,
  Page,
  PAYLOAD_COLUMNS,
  SendDialog,
  storedColumn,
  Table,
  Tabs,
  TextField,
  texts,
  Trouble,
  useAnswer,
  useEffect,
  useForm,
  useMemo,
  useState,
} from "../kit.js";
import { useTail } from "../kit/tail.js";

const words = texts.messages;
const SEARCH_ROWS = 100;

/** @param {(row: any) => void} onShow */
const columnsFor = (onShow) => [
  storedColumn(onShow),
  { key: "queue", title: words.queue, isNumber: true, hidden: "medium" },
  { key: "offset", title: words.offset, isNumber: true, hidden: "narrow", show: (/** @type {any} */ row) => number(row.offset) },
  { key: "mqtt_topic", title: words.about, value: aboutOf, show: (/** @type {any} */ row) => html`<${Name} name=${aboutOf(row)} />` },
  ...PAYLOAD_COLUMNS,
];

/** @param {any} row */
function aboutOf(row) {
  return row.mqtt_topic || row.keys?.join(" ") || row.tags || "";
}

const rowKey = (/** @type {any} */ row) => row.offset_message_id;

/** @param {Record<string, string>} props */
export default function Messages({ view = "find", ...query }) {
  const [shown, setShown] = useState(/** @type {any} */ (null));
  const [isSending, setSending] = useState(false);
  return html`
    <${Page}
      title=${words.title}
      lead=${view === "tail" ? words.tailLead : words.lead}
      actions=${html`<${For} role="operator"><${Button} icon="add" onClick=${() => setSending(true)}>${texts.message.send}<//><//>`}
    >
      <${Filters}>
        <${Tabs}
          label=${words.view}
          value=${view}
          onChange=${(/** @type {string} */ each) => keep({ view: each })}
          tabs=${[
            ["find", words.find],
            ["tail", words.tail],
          ]}
        />
      <//>
      ${view === "tail" ? html`<${Tail} ...${query} onShow=${setShown} />` : html`<${Find} ...${query} onShow=${setShown} />`}
      ${shown && html`<${MessageDialog} message=${shown} onClose=${() => setShown(null)} />`}
      ${isSending && html`<${SendDialog} topic=${query.topic} onClose=${() => setSending(false)} />`}
    <//>
  `;
}

/** @param {any} props */
function Find({ topic = "", by = "time", broker = "", queue = "0", offset = "0", time = "", text = "", onShow }) {
  const [draft, setDraft] = useState({ topic, by, broker, queue, offset, time: time || inputTime(Date.now() - 3_600_000), text });
  const [found, setFound] = useState(/** @type {any[] | null} */ (topic ? null : []));
  const [next, setNext] = useState(/** @type {number | null} */ (null));
  const [isAsked, setAsked] = useState(false);
  const topics = useAnswer("/topics", { query: { limit: 1000, has_system: true } }).answer?.items ?? [];
  const detail = useAnswer(topics.some((/** @type {any} */ each) => each.name === draft.topic) ? at`/topics/${draft.topic}` : null).answer;
  const places = detail?.queues ?? [];
  const place = `${draft.broker} ${draft.queue}`;
  const columns = useMemo(() => columnsFor(onShow), [onShow]);
  const isPlaced = draft.by === "offset" || draft.by === "time";

  const set = (/** @type {string} */ name) => (/** @type {string} */ value) => setDraft((known) => ({ ...known, [name]: value }));

  const form = useForm(
    /** @param {number | null} [from] where the list goes on */
    (from = null) => {
      setAsked(true);
      if (from === null) setFound(null);
      keep({ ...draft, view: "" });
      /** @type {Record<string, unknown>} */
      const query = { limit: SEARCH_ROWS };
      if (draft.by === "key") query.key = draft.text;
      else if (draft.by === "id") query.message_id = draft.text;
      else {
        query.broker = draft.broker;
        query.queue = draft.queue;
        if (from !== null) query.offset = from;
        else if (draft.by === "offset") query.offset = draft.offset || 0;
        else query.from_ms = new Date(draft.time).getTime();
      }
      return api.get(at`/topics/${draft.topic}/messages`, query);
    },
    (answer, from = null) => {
      setFound((known) => (from === null ? answer.items : [...(known ?? []), ...answer.items]));
      setNext(isPlaced && answer.items.length ? answer.next_offset : null);
    },
  );

  useEffect(() => {
    if (topic) form.send();
  }, []);

  return html`
    <${Form} form=${form} class="row card">
      <${TextField} label=${words.topic} value=${draft.topic} onChange=${set("topic")} required list="topics" />
      <datalist id="topics">${topics.map((/** @type {any} */ each) => html`<option value=${each.name} />`)}</datalist>
      <${Choice}
        label=${words.by}
        value=${draft.by}
        onChange=${set("by")}
        isNarrow
        options=${[
          ["time", words.byTime],
          ["offset", words.byOffset],
          ["key", words.byKey],
          ["id", words.byId],
        ]}
      />
      ${isPlaced &&
      html`
        <${Choice}
          label=${words.queue}
          value=${place}
          onChange=${(/** @type {string} */ value) => {
            const [where, which] = value.split(/ (?=\d+$)/);
            setDraft((known) => ({ ...known, broker: where, queue: which }));
          }}
          isNarrow
          options=${
            places.length
              ? [
                  ...(places.some((/** @type {any} */ each) => `${each.broker} ${each.queue}` === place) ? [] : [[place, draft.queue]]),
                  ...places.map((/** @type {any} */ each) => [`${each.broker} ${each.queue}`, words.queueOf(each.queue, each.broker)]),
                ]
              : [[place, draft.queue]]
          }
        />
      `}
      ${draft.by === "time" && html`<${TextField} label=${words.from} type="datetime-local" step="1" value=${draft.time} onChange=${set("time")} required />`}
      ${draft.by === "offset" && html`<${TextField} label=${words.offset} type="number" min="0" value=${draft.offset} onChange=${set("offset")} isNarrow required />`}
      ${draft.by === "key" && html`<${TextField} label=${words.key} value=${draft.text} onChange=${set("text")} required />`}
      ${draft.by === "id" && html`<${TextField} label=${words.id} value=${draft.text} onChange=${set("text")} required />`}
      <button type="submit" class="button is-primary" disabled=${form.isBusy}>${words.search}</button>
    <//>
    ${!isAsked
      ? html`<div class="empty">${words.begin}</div>`
      : html`
          <${Table}
            caption=${words.title}
            rows=${form.problem ? [] : found}
            rowKey=${rowKey}
            columns=${columns}
            onOpen=${onShow}
            empty=${words.none}
            isComplete=${next === null || form.problem !== null}
            onMore=${() => form.send(next)}
          />
        `}
  `;
}

/** @param {any} props */
function Tail({ filter = "", onShow }) {
  const [draft, setDraft] = useState(filter);
  const columns = useMemo(() => columnsFor(onShow), [onShow]);
  const tail = useTail(filter);
  return html`
    <${Form} class="row card" onSubmit=${() => keep({ filter: draft })}>
      <${TextField} label=${words.filter} value=${draft} onChange=${setDraft} required placeholder="plant/+/temperature" hint=${words.filterHint} />
      <button type="submit" class="button is-primary">${words.follow}</button>
      ${filter &&
      html`
        <${Button} icon=${tail.isPaused ? "play" : "pause"} onClick=${tail.pause}>${tail.isPaused ? words.goOn : words.pause}<//>
        <${Button} onClick=${tail.clear}>${words.clear}<//>
      `}
    <//>
    ${tail.problem && html`<${Trouble} problem=${tail.problem} />`}
    ${tail.note && html`<p class="note" role="status">${tail.note}</p>`}
    ${!filter
      ? html`<div class="empty">${words.beginTail}</div>`
      : html`
          <p class="hint" role="status">${tail.isOpen ? words.following(filter, number(tail.count)) : words.opening}</p>
          <${Table} caption=${words.tail} rows=${tail.rows} rowKey=${rowKey} columns=${columns} onOpen=${onShow} empty=${words.noneYet} />
        `}
  `;
}
