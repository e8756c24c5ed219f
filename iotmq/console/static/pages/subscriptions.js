/** Subscriptions by filter, topic and client; the groups of shared ones; the exclusive ones. */

import {
  Filters,
  html,
  keep,
  link,
  Name,
  number,
  Page,
  Search,
  State,
  Table,
  Tabs,
  texts,
  useAnswer,
  useList,
  useRested,
  useState,
} from "../kit.js";

const words = texts.subscriptions;

const COLUMNS = [
  { key: "topic_filter", title: texts.client.filter, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.topic_filter} />` },
  { key: "client_id", title: texts.clients.client, width: "wide", show: clientOf },
  { key: "qos", title: texts.client.qos, isNumber: true },
  { key: "front_end", title: words.frontEnd, hidden: "narrow", show: frontEndOf },
];

const SHARED_COLUMNS = [
  { key: "share", title: words.share, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.share} />` },
  { key: "strategy", title: words.strategy, hidden: "narrow" },
  { key: "members", title: words.members, isNumber: true, show: membersOf },
  { key: "kept_sessions", title: words.kept, hint: words.keptHint, isNumber: true, hidden: "narrow", show: count("kept_sessions") },
  { key: "in_flight", title: words.inFlight, isNumber: true, hidden: "narrow", show: count("in_flight") },
  { key: "behind", title: words.behind, isNumber: true, show: count("behind") },
  { key: "broker", title: words.broker, hidden: "medium", show: (/** @type {any} */ row) => html`<${Name} name=${row.broker} />` },
];

/** @param {{part?: string, filter?: string, topic?: string, client?: string}} props */
export default function Subscriptions({ part = "all", filter = "", topic = "", client = "" }) {
  const tabs = Object.entries(words.tabs);
  const choice = html`
    <div><${Tabs} label=${words.parts} tabs=${tabs} value=${part} onChange=${(/** @type {string} */ value) => keep({ part: value })} /></div>
  `;
  if (part === "shared") return html`<${Shared} choice=${choice} />`;
  return html`<${Listed} key=${part} choice=${choice} isExclusive=${part === "exclusive"} filter=${filter} topic=${topic} client=${client} />`;
}

/** @param {any} props */
function Listed({ choice, isExclusive, ...given }) {
  const [filter, setFilter] = useState(given.filter);
  const [topic, setTopic] = useState(given.topic);
  const [client, setClient] = useState(given.client);
  const query = {
    topic_filter: isExclusive ? `$exclusive/${filter ? `*${filter}*` : "*"}` : patternOf(useRested(filter)),
    topic: useRested(topic),
    client_id: patternOf(useRested(client)),
  };
  const list = useList("/subscriptions", { query, every_s: 30 });
  const hasFilter = filter || topic || client;
  return html`
    <${Page} title=${words.title} lead=${words.lead} asked=${list}>
      ${choice}
      <${Filters}>
        <${Search} label=${words.filter} value=${filter} onChange=${kept("filter", setFilter)} />
        <${Search} label=${words.topic} value=${topic} onChange=${kept("topic", setTopic)} />
        <${Search} label=${words.client} value=${client} onChange=${kept("client", setClient)} />
      <//>
      <${Table}
        caption=${words.title}
        rows=${list.rows}
        isComplete=${list.isComplete}
        rowKey=${(/** @type {any} */ row) => `${row.client_id} ${row.topic_filter}`}
        href=${(/** @type {any} */ row) => link("client", { id: row.client_id })}
        empty=${hasFilter ? texts.table.noMatch : isExclusive ? words.noneExclusive : words.none}
        columns=${COLUMNS}
      />
    <//>
  `;
}

/** @param {any} props */
function Shared({ choice }) {
  const asked = useAnswer("/shared-subscriptions", { every_s: 10 });
  return html`
    <${Page} title=${words.title} lead=${words.lead} asked=${asked}>
      ${choice}
      <${Table}
        caption=${words.tabs.shared}
        rows=${asked.answer?.items ?? null}
        isComplete=${!asked.answer?.has_more}
        rowKey=${(/** @type {any} */ row) => `${row.broker} ${row.share}`}
        empty=${words.noneShared}
        columns=${SHARED_COLUMNS}
      />
    <//>
  `;
}

/** @param {string} name @param {(text: string) => void} set */
function kept(name, set) {
  return (/** @type {string} */ text) => {
    set(text);
    keep({ [name]: text });
  };
}

/** @param {string} text */
function patternOf(text) {
  return !text || text.includes("*") ? text : `*${text}*`;
}

/** @param {string} key */
function count(key) {
  return (/** @type {any} */ row) => number(row[key]);
}

/** @param {any} row */
function clientOf(row) {
  return html`<${Name} name=${row.client_id} to=${link("client", { id: row.client_id })} />`;
}

/** @param {any} row */
function frontEndOf(row) {
  return row.front_end ? html`<${Name} name=${row.front_end} />` : html`<${State} kind="quiet">${words.away}<//>`;
}

/** @param {any} row */
function membersOf(row) {
  return row.members || !row.behind ? number(row.members) : html`<${State} kind="warn">0<//>`;
}
