/** One broker: its members, and what it says of itself. */

import {
  Ago,
  at,
  Card,
  Figures,
  Filters,
  html,
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
