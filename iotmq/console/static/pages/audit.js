/** Who was refused, and who has changed what. */

import {
  api,
  Choice,
  Dialog,
  Facts,
  Filters,
  html,
  keep,
  Name,
  Page,
  Search,
  State,
  Table,
  texts,
  Time,
  useAsking,
  useCallback,
  useMemo,
  useRested,
  useState,
} from "../kit.js";

const words = texts.audit;
const PAGE_RECORDS = 200;
const EVENTS = ["administered", "refused", "denied", "banned", "revoked", "kicked", "connected", "disconnected"];
const BAD = new Set(["refused", "denied", "failed"]);

/** @param {{event?: string, client?: string, account?: string}} props */
export default function Audit({ event = "", client = "", account = "" }) {
  const [typedClient, setClient] = useState(client);
  const [typedAccount, setAccount] = useState(account);
  const [pages, setPages] = useState(1);
  const [open, setOpen] = useState(/** @type {any} */ (null));
  const query = JSON.stringify({ event, client: useRested(typedClient), account: useRested(typedAccount) });
  const ask = useCallback(
    async (/** @type {AbortSignal} */ abort) => {
      /** @type {any[]} */
      const rows = [];
      let cursor = "";
      for (let page = 0; page < pages; page += 1) {
        const answer = await api.get("/audit", { ...JSON.parse(query), limit: PAGE_RECORDS, cursor }, abort);
        rows.push(...answer.items);
        cursor = answer.next ?? "";
        if (!cursor) break;
      }
      return { rows: rows.map((row, index) => ({ ...row, index })), isComplete: !cursor };
    },
    [query, pages],
  );
  const asked = useAsking(ask, 0, "audit");
  const columns = useMemo(() => columnsOf(setOpen), []);
  return html`
    <${Page} title=${words.title} lead=${words.lead} asked=${asked}>
      <${Filters}>
        <${Choice}
          label=${words.event}
          isLabelHidden
          value=${event}
          options=${[["", words.anyEvent], ...EVENTS.map((each) => [each, each])]}
          onChange=${(/** @type {string} */ value) => keep({ event: value })}
        />
        <${Search} label=${words.client} value=${typedClient} onChange=${(/** @type {string} */ text) => {
          setClient(text);
          keep({ client: text });
        }} />
        <${Search} label=${words.account} value=${typedAccount} onChange=${(/** @type {string} */ text) => {
          setAccount(text);
          keep({ account: text });
        }} />
      <//>
      <${Table}
        caption=${words.title}
        rows=${asked.answer?.rows ?? null}
        isComplete=${asked.answer?.isComplete ?? true}
        rowKey=${(/** @type {any} */ row) => `${row.index} ${row.time_ms}`}
        onOpen=${setOpen}
        onMore=${() => setPages(pages + 1)}
        empty=${event || client || account ? texts.table.noMatch : words.none}
        columns=${columns}
      />
      ${open && html`<${Record} row=${open} onClose=${() => setOpen(null)} />`}
    <//>
  `;
}

/** @param {(row: any) => void} open */
function columnsOf(open) {
  return [
    { key: "time_ms", title: words.time, show: (/** @type {any} */ row) => html`<${Time} ms=${row.time_ms} />` },
    { key: "event", title: words.event, show: (/** @type {any} */ row) => html`<button type="button" class="link" onClick=${() => open(row)}>${row.event}</button>` },
    { key: "account", title: words.who, value: whoOf, show: (/** @type {any} */ row) => html`<${Name} name=${whoOf(row)} />` },
    { key: "request", title: words.request, width: "wide", value: whatOf, show: (/** @type {any} */ row) => html`<${Name} name=${whatOf(row)} />` },
    { key: "result", title: words.result, hidden: "narrow", value: outcomeOf, show: resultOf },
    { key: "address", title: words.address, hidden: "medium", show: (/** @type {any} */ row) => html`<${Name} name=${row.address} />` },
    { key: "source", title: words.source, hidden: "medium", show: (/** @type {any} */ row) => html`<${Name} name=${row.source} />` },
  ];
}

/** @param {{row: any, onClose: () => void}} props */
function Record({ row, onClose }) {
  const { index, time_ms, details, ...fields } = row;
  /** @type {[any, any][]} */
  const items = [[words.time, html`<${Time} ms=${time_ms} />`]];
  for (const [name, value] of Object.entries({ ...fields, ...details })) {
    if (value !== "") items.push([name, html`<${Name} name=${value} />`]);
  }
  return html`<${Dialog} title=${words.record} onClose=${onClose} isWide><${Facts} items=${items} /><//>`;
}

/** @param {any} row */
function whoOf(row) {
  return row.account || row.user || row.client || row.address || "";
}

/** @param {any} row */
function whatOf(row) {
  const fields = row.details?.fields ?? row.details?.topic ?? row.details?.detail ?? "";
  return `${row.request ?? ""} ${fields}`.trim();
}

/** @param {any} row */
function outcomeOf(row) {
  return row.result || row.reason || "";
}

/** @param {any} row */
function resultOf(row) {
  const isBad = BAD.has(row.result) || BAD.has(row.event);
  const text = outcomeOf(row) || row.event;
  return html`<${State} kind=${isBad ? "bad" : "good"}>${text}<//>`;
}
