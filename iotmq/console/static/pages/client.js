/** One client: its connection, its session, its subscriptions and what waits for them. */

import {
  Ago,
  api,
  at,
  attempt,
  Button,
  bytes,
  Card,
  confirm,
  duration,
  Facts,
  Figures,
  For,
  go,
  html,
  keep,
  link,
  MessageDialog,
  Name,
  number,
  Page,
  PAYLOAD_COLUMNS,
  Problem,
  rate,
  ROWS_MAX,
  State,
  storedColumn,
  Table,
  texts,
  Time,
  Trouble,
  useAnswer,
  useList,
  useMemo,
  useState,
  visible,
} from "../kit.js";

const words = texts.client;
const TRACE_S = 600;
const QUEUE_ROWS = 100;

const COLUMNS = [
  { key: "topic_filter", title: words.filter, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.topic_filter} />` },
  { key: "qos", title: words.qos, isNumber: true },
  { key: "options", title: words.options, hidden: "narrow", isSorted: false, show: optionsOf },
  { key: "brokers", title: words.broker, hidden: "narrow", isSorted: false, show: (/** @type {any} */ row) => html`<${Name} name=${row.brokers.join(", ")} />` },
  { key: "behind", title: words.behindColumn, hint: words.behindHint, isNumber: true, show: behindOf },
];

/** @param {{id?: string, queue?: string}} props queue: the filter whose messages are shown */
export default function Client({ id = "", queue = "" }) {
  const live = useAnswer(id ? at`/clients/${id}` : null, { every_s: 5 });
  const kept = useAnswer(id ? at`/sessions/${id}` : null, { every_s: 10 });
  const isGone = is404(live.problem) && is404(kept.problem);
  const client = is404(live.problem) ? null : live.answer;
  const session = is404(kept.problem) ? null : kept.answer;
  const row = client?.row;
  const subscriptions = subscriptionsOf(client, session);
  const behind = subscriptions.reduce((total, each) => total + (each.behind ?? 0), 0);
  const asked = {
    ...live,
    problem: [live.problem, kept.problem].find((each) => each && !is404(each)) ?? null,
    reload: () => {
      live.reload();
      kept.reload();
    },
  };

  async function trace() {
    const says = words.willTrace(id);
    if (!(await confirm({ title: words.trace, says, action: words.trace }))) return;
    let name = "";
    const start = async () => {
      name = (await api.post("/traces", { kind: "client", value: id, duration_s: TRACE_S })).name;
    };
    if (await attempt(start, words.traced)) go("trace", { name });
  }

  async function kick() {
    const question = { title: words.kick, says: words.willKick(id), action: words.kick, isDangerous: true };
    if (!(await confirm(question))) return;
    if (await attempt(() => api.remove(at`/clients/${id}`), words.kicked)) asked.reload();
  }

  async function end() {
    const question = { title: words.end, says: words.willEnd(id, number(behind)), action: words.end, isDangerous: true, typed: id };
    if (!(await confirm(question))) return;
    if (await attempt(() => api.remove(at`/sessions/${id}`), words.ended)) asked.reload();
  }

  return html`
    <${Page}
      title=${html`<${Name} name=${id} />`}
      back=${["connections", texts.clients.title]}
      asked=${asked}
      actions=${html`
        <${For} role="operator">
          <${Button} icon="traces" onClick=${trace}>${words.trace}<//>
          <a class="button" href=${link("bans", { kind: "client", value: id })}>${words.ban}</a>
          ${row && html`<${Button} kind="danger" onClick=${kick}>${words.kick}<//>`}
        <//>
        <${For} role="administrator">
          ${session && html`<${Button} kind="danger" onClick=${end}>${words.end}<//>`}
        <//>
      `}
    >
      ${isGone && html`<div class="empty">${words.notThere}</div>`}
      ${(row || session) &&
      html`
        <${Figures} items=${figuresOf(row, session, behind)} />
        ${row && html`<${Card} title=${words.facts}><${Facts} items=${connectionFacts(client)} /><//>`}
        <${Card} title=${words.session}><${Facts} items=${sessionFacts(client, session)} /><//>
        <${Card} title=${words.subscriptions} isFlush>
          <${Table}
            caption=${words.subscriptions}
            rows=${subscriptions}
            rowKey=${(/** @type {any} */ each) => each.topic_filter}
            empty=${words.noSubscriptions}
            columns=${COLUMNS}
            isTall=${subscriptions.length > 24}
          />
        <//>
        ${queue && html`<${Queue} key=${queue} id=${id} filter=${queue} />`}
      `}
    <//>
  `;
}

const QUEUE_COLUMNS = [
  { key: "is_in_flight", title: words.queue.state, value: queueState, show: (/** @type {any} */ row) => html`<${State} kind=${row.is_in_flight ? "good" : "quiet"}>${queueState(row)}<//>` },
  { key: "mqtt_topic", title: words.queue.topic, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.mqtt_topic ?? ""} />` },
  ...PAYLOAD_COLUMNS,
];

/** @param {any} row */
function queueState(row) {
  return row.is_in_flight ? words.queue.inFlight : words.queue.waits;
}

/** The messages of one filter that the client is not done with. @param {{id: string, filter: string}} props */
function Queue({ id, filter }) {
  const [rows_max, setRowsMax] = useState(QUEUE_ROWS);
  const [shown, setShown] = useState(/** @type {any} */ (null));
  const list = useList(at`/clients/${id}/queue`, {
    query: { topic_filter: filter, payload_bytes_max: 512 },
    every_s: 10,
    page_rows: QUEUE_ROWS,
    rows_max,
  });
  const rows = useMemo(
    () => list.rows && list.pages.flatMap((page) => page.items.map((/** @type {any} */ each, /** @type {number} */ index) => ({ ...each, is_in_flight: page.is_in_flight[index] }))),
    [list.pages],
  );
  const columns = useMemo(() => [storedColumn(setShown), ...QUEUE_COLUMNS], []);
  const leftOut = list.pages.reduce((count, page) => count + page.left_out, 0);
  const missing = Object.keys(Object.assign({}, ...list.pages.map((page) => page.problems)));
  return html`
    <${Card}
      title=${words.queue.title}
      hint=${words.queue.hint}
      isFlush
      actions=${html`<${Button} icon="close" aria-label=${words.queue.close} onClick=${() => keep({ queue: "" })} />`}
    >
      <p class="card-hint"><${Name} name=${filter} /> ${leftOut > 0 && words.queue.leftOut(number(leftOut))}</p>
      ${missing.length > 0 && html`<p class="trouble" role="alert">${texts.clients.missing(missing.join(", "))}</p>`}
      ${list.problem && !is404(list.problem) && html`<${Trouble} problem=${list.problem} at_ms=${list.at_ms} onRetry=${list.reload} />`}
      <${Table}
        caption=${words.queue.title}
        rows=${is404(list.problem) ? [] : rows}
        rowKey=${(/** @type {any} */ row) => row.offset_message_id}
        columns=${columns}
        onOpen=${setShown}
        empty=${words.queue.none}
        isComplete=${list.isComplete}
        onMore=${() => setRowsMax(Math.min(10 * rows_max, ROWS_MAX))}
      />
    <//>
    ${shown && html`<${MessageDialog} message=${shown} extra=${[[words.queue.state, queueState(shown)]]} onClose=${() => setShown(null)} />`}
  `;
}

/** @param {Problem | null} problem */
function is404(problem) {
  return problem?.status === 404;
}

/** @param {any} row @param {any} session @param {number} behind */
function figuresOf(row, session, behind) {
  const { figures } = words;
  const items = [];
  if (row) {
    items.push(
      { label: figures.received, value: rate(row.messages_received_per_s), note: number(row.messages_received) },
      { label: figures.sent, value: rate(row.messages_sent_per_s), note: number(row.messages_sent) },
    );
  }
  items.push({ label: figures.inFlight, value: number(row?.in_flight ?? session?.in_flight) });
  if (row) items.push({ label: figures.queued, value: number(row.queued), note: bytes(row.queued_bytes), state: row.queued ? "warn" : "" });
  if (session) items.push({ label: figures.behind, value: number(behind) });
  const dropped = (row?.dropped ?? 0) + (session?.dropped ?? 0);
  items.push({ label: figures.dropped, value: number(dropped), state: dropped ? "bad" : "" });
  if (row?.latency_ms) items.push({ label: figures.latency, value: duration(row.latency_ms / 1000) });
  return items;
}

/** @param {any} client @returns {[any, any][]} */
function connectionFacts(client) {
  const { row } = client;
  /** @type {[any, any][]} */
  const items = [
    [words.frontEnd, html`<${Name} name=${row.front_end} />`],
    [words.user, row.user ? html`<${Name} name=${row.user} />` : words.nobody],
    [words.address, html`<${Name} name=${row.address} />`],
    [words.listener, html`<${Name} name=${row.listener} />`],
    [words.version, row.version],
    [words.keepAlive, row.keep_alive_s ? duration(row.keep_alive_s) : words.noKeepAlive],
    [words.since, html`<${Ago} ms=${row.connected_ms} />`],
    [words.idle, words.idleAgo(duration(client.idle_s))],
    [
      words.reads,
      client.is_write_paused
        ? html`<${State} kind="warn">${words.readsNot(bytes(row.unsent_bytes))}<//>`
        : html`<${State} kind="good">${words.readsWell}<//>`,
    ],
  ];
  if (row.certificate) items.push([words.certificate, html`<${Name} name=${row.certificate} />`]);
  if (client.server_name) items.push([words.serverName, html`<${Name} name=${client.server_name} />`]);
  if (client.is_bridge) items.push([words.bridge, words.isBridge]);
  return items;
}

/** @param {any} client @param {any} session @returns {[any, any][]} */
function sessionFacts(client, session) {
  const isKept = session?.is_kept ?? client?.row.is_kept;
  const expiry_s = client?.session_expiry_s ?? session?.expiry_s ?? 0;
  const isOnline = Boolean(client);
  const will = client?.will_topic || session?.will_topic;
  /** @type {[any, any][]} */
  const items = [
    [texts.away.state, html`<${State} kind=${isOnline ? "good" : "quiet"}>${isOnline ? words.online : words.offline}<//>`],
    [words.kept, isKept ? words.keptFor(duration(expiry_s)) : words.notKept],
  ];
  if (client) {
    items.push([words.resumed, client.is_resumed ? words.yes : words.no]);
  } else if (session) {
    items.push(
      [texts.away.since, html`<${Ago} ms=${session.closed_ms} />`],
      [words.expires, session.expires_ms ? html`<${Time} ms=${session.expires_ms} />` : texts.away.never],
    );
  }
  items.push([words.will, will ? html`<${Name} name=${will} />` : words.noWill]);
  return items;
}

/** One row for each filter, out of what front end and brokers know. @param {any} client @param {any} session */
function subscriptionsOf(client, session) {
  /** @type {Map<string, any>} */
  const found = new Map();
  for (const each of client?.subscriptions ?? []) {
    found.set(each.topic_filter, { ...each, brokers: [], behind: null });
  }
  for (const each of session?.filters ?? []) {
    const row = found.get(each.topic_filter) ?? { ...each, brokers: [], behind: null };
    row.brokers.push(each.broker);
    row.behind = (row.behind ?? 0) + each.behind;
    row.isEstimate = row.isEstimate || each.is_wide;
    found.set(each.topic_filter, row);
  }
  return [...found.values()];
}

/** @param {any} row */
function behindOf(row) {
  if (row.behind === null) return "–";
  const count = `${row.isEstimate && row.behind ? `${words.estimate} ` : ""}${number(row.behind)}`;
  if (row.topic_filter.startsWith("$share/")) return count;
  return html`
    <button type="button" class="link" aria-label=${words.queue.show(count, visible(row.topic_filter))} onClick=${() => keep({ queue: row.topic_filter })}>
      ${count}
    </button>
  `;
}

/** @param {any} row */
function optionsOf(row) {
  return [
    row.topic_filter.startsWith("$share/") && words.shared,
    row.is_exclusive && words.exclusive,
    row.no_local && words.noLocal,
    row.retain_as_published && words.asPublished,
    row.identifier && words.identifier(row.identifier),
  ]
    .filter(Boolean)
    .join(", ");
}
