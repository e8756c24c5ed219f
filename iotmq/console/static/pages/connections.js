/** Clients that are connected, those whose sessions wait for them, and who was refused. */

import {
  Ago,
  api,
  Button,
  bytes,
  Choice,
  confirm,
  Figures,
  Filters,
  For,
  html,
  keep,
  link,
  may,
  Name,
  number,
  Page,
  rate,
  Search,
  State,
  Table,
  Tabs,
  tell,
  tellProblem,
  texts,
  Time,
  useList,
  useAnswer,
  useRested,
  useKept,
  useState,
} from "../kit.js";

const words = texts.clients;
/** Rows of one answer: the server filters and sorts, so what is behind them is found by that. */
const ROWS_MAX = 1000;
const KICKED_MAX = 10_000;
const SHOWN_NAMES = 8;

const COLUMNS = [
  { key: "client_id", title: words.client, width: "wide", show: named },
  { key: "user", title: words.user, hidden: "medium", show: (/** @type {any} */ row) => row.user && html`<${Name} name=${row.user} />` },
  { key: "address", title: words.address, hidden: "narrow", show: (/** @type {any} */ row) => html`<${Name} name=${row.address} />` },
  { key: "front_end", title: words.frontEnd, hidden: "medium", isSorted: false, show: (/** @type {any} */ row) => html`<${Name} name=${row.front_end} />` },
  { key: "connected_ms", title: words.since, hidden: "narrow", show: (/** @type {any} */ row) => html`<${Ago} ms=${row.connected_ms} />` },
  { key: "messages_received_per_s", title: words.received, hint: words.receivedHint, isNumber: true, hidden: "medium", show: perSecond("messages_received_per_s") },
  { key: "messages_sent_per_s", title: words.sent, hint: words.sentHint, isNumber: true, hidden: "medium", show: perSecond("messages_sent_per_s") },
  { key: "in_flight", title: words.inFlight, isNumber: true, hidden: "narrow", show: count("in_flight") },
  { key: "queued", title: words.queued, isNumber: true, show: waiting },
  { key: "dropped", title: words.dropped, isNumber: true, show: missed },
  { key: "subscriptions", title: words.subscriptions, isNumber: true, hidden: "medium", show: count("subscriptions") },
  { key: "version", title: words.version, hidden: "medium" },
];

const AWAY_COLUMNS = [
  { key: "client_id", title: words.client, width: "wide", show: named },
  { key: "state", title: texts.away.state, value: (/** @type {any} */ row) => (row.front_end ? 1 : 0), show: presence },
  { key: "closed_ms", title: texts.away.since, hidden: "narrow", show: (/** @type {any} */ row) => html`<${Ago} ms=${row.closed_ms} />` },
  { key: "expires_ms", title: texts.away.expires, hidden: "narrow", show: ends },
  { key: "subscriptions", title: texts.away.subscriptions, isNumber: true, show: count("subscriptions") },
  { key: "in_flight", title: texts.away.inFlight, isNumber: true, show: count("in_flight") },
];

const REFUSED_COLUMNS = [
  { key: "time_ms", title: texts.refused.time, show: (/** @type {any} */ row) => html`<${Time} ms=${row.time_ms} />` },
  { key: "client_id", title: texts.refused.who, show: (/** @type {any} */ row) => html`<${Name} name=${row.client_id || row.account || row.request} />` },
  { key: "user", title: texts.refused.user, hidden: "medium", show: (/** @type {any} */ row) => html`<${Name} name=${row.user} />` },
  { key: "address", title: texts.refused.address, hidden: "narrow", show: (/** @type {any} */ row) => html`<${Name} name=${row.address} />` },
  { key: "reason", title: texts.refused.reason },
  { key: "detail", title: texts.refused.detail, width: "wide", hidden: "narrow", show: (/** @type {any} */ row) => html`<${Name} name=${row.detail} />` },
  { key: "source", title: texts.refused.source, hidden: "medium" },
];

/** What is looked for beside names. */
const ONLY = /** @type {Record<string, Record<string, unknown>>} */ ({
  all: {},
  kept: { is_kept: true },
  queued: { queued_min: 1 },
  dropped: { dropped_min: 1 },
  unread: { unsent_bytes_min: 1 },
});

/** @param {{part?: string, match?: string, user?: string, address?: string, version?: string, only?: string, sort?: string}} props */
export default function Connections({ part = "connected", ...query }) {
  const tabs = Object.entries(words.tabs);
  const choice = html`
    <div><${Tabs} label=${words.parts} tabs=${tabs} value=${part} onChange=${(/** @type {string} */ value) => keep({ part: value })} /></div>
  `;
  if (part === "away") return html`<${Away} choice=${choice} match=${query.match} />`;
  if (part === "refused") return html`<${Refused} choice=${choice} match=${query.match} />`;
  return html`<${Connected} choice=${choice} ...${query} />`;
}

/** @param {any} props */
function Connected({ choice, match = "", user = "", address = "", version = "", only = "all", sort = "client_id" }) {
  const [typed, setTyped] = useKept("match", match);
  const [chosen, setChosen] = useState(new Set());
  const wanted = wantedOf({ client_id: useRested(typed), user: useRested(user), address: useRested(address), version, only });
  const asked = useAnswer("/clients", { query: { ...wanted, sort, limit: ROWS_MAX }, every_s: 10 });
  const rows = asked.answer?.items ?? null;
  const there = new Set((rows ?? []).map((/** @type {any} */ row) => row.client_id));
  const picked = [...chosen].filter((name) => there.has(name));

  /** @param {Record<string, unknown>} body */
  async function kick(body) {
    try {
      const found = await api.post("/clients:kick", { ...body, is_dry_run: true });
      if (!found.matched) return tell(words.nothingToKick);
      if (found.matched > KICKED_MAX) return tell(words.tooMany(number(KICKED_MAX)));
      const says = html`
        <p>${words.willKick(words.clientsOf(number(found.matched), found.matched))}</p>
        <p>${found.client_ids.slice(0, SHOWN_NAMES).map((/** @type {string} */ name) => html`<${Name} key=${name} name=${name} />${" "}`)}
        ${words.kickNames(found.matched - Math.min(found.client_ids.length, SHOWN_NAMES))}</p>
      `;
      if (!(await confirm({ title: words.kickTitle, says, action: words.kick(found.matched), isDangerous: true }))) return;
      const done = await api.post("/clients:kick", body.filter ? { ...body, limit: found.matched } : body);
      tell(words.kicked(done.kicked));
      setChosen(new Set());
      asked.reload();
    } catch (error) {
      tellProblem(error);
    }
  }

  const missing = Object.keys(asked.answer?.problems ?? {});
  return html`
    <${Page}
      title=${words.title}
      lead=${words.lead}
      asked=${asked}
      actions=${html`
        <${For} role="operator">
          <${Button} kind="danger" disabled=${!picked.length} onClick=${() => kick({ client_ids: picked })}>${words.kick(picked.length)}<//>
          <${Button} kind="danger" disabled=${!rows?.length} onClick=${() => kick({ filter: wanted })}>${words.kickAll}<//>
        <//>
      `}
    >
      ${choice}
      <${Figures}
        items=${[
          { label: words.connected, value: number(asked.answer?.connected) },
          { label: words.matched, value: number(asked.answer?.matched) },
        ]}
      />
      ${missing.length > 0 && html`<p class="trouble" role="alert">${words.missing(missing.join(", "))}</p>`}
      <${Filters}>
        <${Search} label=${words.search} value=${typed} onChange=${setTyped} />
        <${Search} label=${words.user} value=${user} onChange=${(/** @type {string} */ text) => keep({ user: text })} />
        <${Search} label=${words.address} value=${address} onChange=${(/** @type {string} */ text) => keep({ address: text })} />
        <${Choice}
          label=${words.version}
          isLabelHidden
          value=${version}
          options=${[["", words.anyVersion], ["3.1", "MQTT 3.1"], ["3.1.1", "MQTT 3.1.1"], ["5", "MQTT 5"]]}
          onChange=${(/** @type {string} */ value) => keep({ version: value })}
        />
        <${Choice}
          label=${words.show}
          isLabelHidden
          value=${only}
          options=${Object.entries(words.only)}
          onChange=${(/** @type {string} */ value) => keep({ only: value === "all" ? "" : value })}
        />
      <//>
      <${Table}
        caption=${words.title}
        rows=${rows}
        isComplete=${!asked.answer?.next}
        rowKey=${(/** @type {any} */ row) => row.client_id}
        href=${(/** @type {any} */ row) => link("client", { id: row.client_id })}
        empty=${typed || user || address || version || only !== "all" ? texts.table.noMatch : words.none}
        columns=${COLUMNS}
        sort=${{ key: sort.replace("-", ""), isDescending: sort.startsWith("-") }}
        onSort=${(/** @type {any} */ next) => keep({ sort: (next.isDescending ? "-" : "") + next.key })}
        chosen=${may("operator") ? chosen : undefined}
        onChoose=${setChosen}
      />
    <//>
  `;
}

/** @param {any} props */
function Away({ choice, match = "" }) {
  const [typed, setTyped] = useKept("match", match);
  const list = useList("/sessions", { query: { prefix: useRested(typed) }, every_s: 30 });
  return html`
    <${Page} title=${words.title} lead=${texts.away.leadHint} asked=${list}>
      ${choice}
      <${Filters}>
        <${Search} label=${texts.away.prefix} value=${typed} onChange=${setTyped} />
      <//>
      <${Table}
        caption=${words.tabs.away}
        rows=${list.rows}
        isComplete=${list.isComplete}
        rowKey=${(/** @type {any} */ row) => row.client_id}
        href=${(/** @type {any} */ row) => link("client", { id: row.client_id })}
        empty=${typed ? texts.table.noMatch : texts.away.none}
        columns=${AWAY_COLUMNS}
      />
    <//>
  `;
}

/** @param {any} props */
function Refused({ choice, match = "" }) {
  const [typed, setTyped] = useKept("match", match);
  const client = patternOf(useRested(typed));
  const asked = useAnswer("/refused-clients", { query: { client_id: client, limit: ROWS_MAX }, every_s: 10 });
  const rows = asked.answer?.items.map((/** @type {any} */ row, /** @type {number} */ index) => ({ ...row, index })) ?? null;
  return html`
    <${Page} title=${words.title} lead=${texts.refused.hint} asked=${asked}>
      ${choice}
      <${Filters}>
        <${Search} label=${words.search} value=${typed} onChange=${setTyped} />
      <//>
      <${Table}
        caption=${words.tabs.refused}
        rows=${rows}
        rowKey=${(/** @type {any} */ row) => `${row.time_ms} ${row.source} ${row.index}`}
        empty=${typed ? texts.table.noMatch : texts.refused.none}
        columns=${REFUSED_COLUMNS}
      />
    <//>
  `;
}

/** A part of a name, with * for the rest where none is typed. @param {string} text */
function patternOf(text) {
  return !text || text.includes("*") ? text : `*${text}*`;
}

/** @param {{client_id: string, user: string, address: string, version: string, only: string}} typed */
function wantedOf({ client_id, user, address, version, only }) {
  const wanted = {
    client_id: patternOf(client_id),
    user: patternOf(user),
    address: patternOf(address),
    version,
    ...(ONLY[only] ?? {}),
  };
  return Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== ""));
}

/** @param {any} row */
function named(row) {
  return html`<${Name} name=${row.client_id} to=${link("client", { id: row.client_id })} />`;
}

/** @param {string} key */
function count(key) {
  return (/** @type {any} */ row) => number(row[key]);
}

/** @param {string} key */
function perSecond(key) {
  return (/** @type {any} */ row) => rate(row[key]);
}

/** @param {any} row */
function waiting(row) {
  if (!row.queued && !row.unsent_bytes) return "0";
  const text = row.queued ? number(row.queued) : bytes(row.unsent_bytes);
  return html`<${State} kind="warn">${text}<//>`;
}

/** @param {any} row */
function missed(row) {
  return row.dropped ? html`<${State} kind="bad">${number(row.dropped)}<//>` : "0";
}

/** @param {any} row */
function presence(row) {
  return row.front_end
    ? html`<${State} kind="good">${texts.away.here}<//>`
    : html`<${State} kind="quiet">${texts.away.gone}<//>`;
}

/** @param {any} row */
function ends(row) {
  return row.expires_ms ? html`<${Time} ms=${row.expires_ms} />` : texts.away.never;
}
