/** One broker: its members, and what it says of itself. */

import {
  Ago,
  at,
  bytes,
  Card,
  Figures,
  Filters,
  html,
  Icon,
  link,
  Name,
  number,
  Page,
  Search,
  State,
  Table,
  texts,
  useAnswer,
  useMemo,
  useKept,
  Words,
} from "../kit.js";

const words = texts.broker;

const FACT_COLUMNS = [
  { key: "name", title: words.fact, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.name} />` },
  { key: "value", title: words.value, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.value} />` },
];

const MEMBER_COLUMNS = [
  { key: "broker_id", title: texts.brokers.role, show: roleOf },
  { key: "address", title: texts.brokers.address, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.address} />` },
];

const FOLLOWER_COLUMNS = [
  { key: "name", title: words.replication.follower, value: (/** @type {any} */ row) => Number(row.name) || row.name, show: (/** @type {any} */ row) => html`<${Name} name=${row.name} />` },
  { key: "address", title: words.replication.address, width: "wide", hidden: "narrow", show: (/** @type {any} */ row) => html`<${Name} name=${row.address || "–"} />` },
  { key: "state", title: words.replication.state, value: stateOf, show: shownState },
  { key: "behind_bytes", title: words.replication.behind, isNumber: true, show: (/** @type {any} */ row) => (row.behind_bytes === null ? "–" : bytes(row.behind_bytes)) },
  { key: "position", title: words.replication.position, isNumber: true, hidden: "narrow", show: (/** @type {any} */ row) => (row.position === null ? "–" : number(row.position)) },
];

/** @param {{name?: string, match?: string}} props */
export default function Broker({ name = "", match = "" }) {
  const [typed, setTyped] = useKept("match", match);
  const asked = useAnswer(name ? at`/brokers/${name}` : null, { every_s: 10 });
  const all = useAnswer("/brokers", { every_s: 10 });
  const facts = asked.answer?.facts ?? null;
  const members = all.answer?.items.filter((/** @type {any} */ row) => row.name === name) ?? null;
  const rows = useMemo(() => factRows(facts, typed), [facts, typed]);
  return html`
    <${Page} title=${html`<${Name} name=${name} />`} back=${["brokers", texts.brokers.title]} asked=${asked}>
      ${facts && html`<${Figures} items=${figuresOf(facts)} />`}
      <${Card} title=${words.members} isFlush>
        <${Table}
          caption=${words.members}
          rows=${members}
          rowKey=${(/** @type {any} */ row) => `${row.broker_id} ${row.address}`}
          empty=${words.unknown}
          columns=${MEMBER_COLUMNS}
          isTall=${false}
        />
      <//>
      ${asked.answer && html`<${Replication} state=${asked.answer.replication} />`}
      ${facts &&
      html`
        <${Card} title=${words.facts} isFlush>
          <div class="card-filters">
            <${Filters}>
              <${Search} label=${words.search} value=${typed} onChange=${setTyped} />
            <//>
          </div>
          <${Table}
            caption=${words.facts}
            rows=${rows}
            rowKey=${(/** @type {any} */ row) => row.name}
            empty=${texts.table.noMatch}
            columns=${FACT_COLUMNS}
          />
        <//>
      `}
    <//>
  `;
}

/** Who copies the log, and how far they are. @param {{state: any}} props null: nobody does */
function Replication({ state }) {
  const { title, modes, notAsked, noFollowers, alarms } = words.replication;
  if (!state) return html`<${Card} title=${title}><p class="hint">${notAsked}</p><//>`;
  return html`
    <${Card} title=${title} hint=${modes[/** @type {"elected"} */ (state.mode)] ?? state.mode} isFlush>
      ${state.alarms.length > 0 &&
      html`
        <div class="trouble" role="alert">
          <${Icon} name="warning" />
          <ul>${state.alarms.map((/** @type {string} */ text) => html`<li><${Words} text=${text} /></li>`)}</ul>
          <a class="button is-small" href=${link("alarms")}>${alarms}</a>
        </div>
      `}
      <${Figures} items=${replicationFigures(state)} />
      <${Table}
        caption=${title}
        rows=${state.followers}
        rowKey=${(/** @type {any} */ row) => row.name}
        empty=${noFollowers}
        columns=${FOLLOWER_COLUMNS}
        isTall=${state.followers.length > 24}
      />
    <//>
  `;
}

/** @param {any} state */
function replicationFigures(state) {
  const { figures } = words.replication;
  const behind = Math.max(0, ...state.followers.map((/** @type {any} */ each) => each.behind_bytes ?? 0));
  const isElected = state.mode === "elected";
  return [
    isElected && { label: figures.epoch, value: number(state.epoch) },
    {
      label: figures.inSync,
      value: `${number(state.in_sync)} / ${number(state.followers.length + 1)}`,
      note: isElected && figures.inSyncNote(number(state.in_sync_min)),
      state: state.in_sync < state.in_sync_min ? "bad" : state.in_sync <= state.followers.length ? "warn" : "",
    },
    { label: figures.end, value: number(state.end) },
    { label: figures.confirmed, value: bytes(state.end - state.confirmed) },
    { label: figures.behind, value: bytes(behind) },
  ].filter(Boolean);
}

/** @param {any} row */
function stateOf(row) {
  const { inSync, catchesUp, away } = words.replication;
  if (!row.is_connected) return away;
  return row.is_in_sync ? inSync : catchesUp;
}

/** @param {any} row */
function shownState(row) {
  const kind = !row.is_connected ? "bad" : row.is_in_sync ? "good" : "warn";
  return html`<${State} kind=${kind}>${stateOf(row)}<//>`;
}

/** @param {Record<string, string>} facts */
function figuresOf(facts) {
  const { figures } = words;
  const items = [
    { label: figures.version, value: facts.brokerVersionDesc },
    { label: figures.since, value: html`<${Ago} ms=${Number(facts.bootTimestamp)} />` },
    { label: figures.put, value: number(Number(facts.putMessageTimesTotal)) },
    { label: figures.putRate, value: (facts.putTps ?? "").split(" ")[0] },
    { label: figures.getRate, value: (facts.getTransferedTps ?? "").split(" ")[0] },
    { label: figures.latency, value: facts.putLatency99 && `${facts.putLatency99} ms` },
  ];
  return items.filter((each) => each.value);
}

/** @param {Record<string, string> | null} facts @param {string} typed */
function factRows(facts, typed) {
  if (!facts) return null;
  const match = typed.toLowerCase();
  return Object.entries(facts)
    .map(([name, value]) => ({ name, value }))
    .filter((row) => row.name.toLowerCase().includes(match))
    .sort((a, b) => (a.name < b.name ? -1 : 1));
}

/** @param {any} row */
function roleOf(row) {
  return row.broker_id === 0
    ? html`<${State} kind="good">${texts.brokers.master}<//>`
    : html`<${State} kind="quiet">${texts.brokers.replica(row.broker_id)}<//>`;
}
