/** Brokers, and which of their processes is the master. */

import { Figures, html, link, Name, number, Page, State, Table, texts, useAnswer, useMemo } from "../kit.js";

const words = texts.brokers;

const COLUMNS = [
  { key: "name", title: words.name, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.name} to=${link("broker", { name: row.name })} />` },
  { key: "broker_id", title: words.role, show: roleOf },
  { key: "address", title: words.address, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.address} />` },
  { key: "cluster", title: words.cluster, hidden: "narrow", show: (/** @type {any} */ row) => html`<${Name} name=${row.cluster} />` },
];

export default function Brokers() {
  const asked = useAnswer("/brokers", { every_s: 5 });
  const rows = asked.answer?.items ?? null;
  const { names, headless } = useMemo(() => groupsOf(rows ?? []), [rows]);
  return html`
    <${Page} title=${words.title} lead=${words.lead} asked=${asked}>
      ${rows?.length > 0 &&
      html`
        <${Figures}
          items=${[
            { label: words.names, value: number(names) },
            { label: words.processes, value: number(rows.length) },
            {
              label: words.noMaster,
              value: number(headless.length),
              note: headless.slice(0, 4).join(", "),
              state: headless.length ? "bad" : "",
            },
          ]}
        />
        ${headless.length > 0 && html`<p class="trouble" role="alert">${headless.slice(0, 4).join(", ")}: ${words.noMasterHint}</p>`}
      `}
      <${Table}
        caption=${words.title}
        rows=${rows}
        rowKey=${(/** @type {any} */ row) => `${row.name} ${row.broker_id} ${row.address}`}
        href=${(/** @type {any} */ row) => link("broker", { name: row.name })}
        empty=${words.none}
        columns=${COLUMNS}
      />
    <//>
  `;
}

/** @param {any} row */
function roleOf(row) {
  return row.broker_id === 0
    ? html`<${State} kind="good">${words.master}<//>`
    : html`<${State} kind="quiet">${words.replica(row.broker_id)}<//>`;
}

/** How many names there are, and those none of whose processes is the master. @param {any[]} rows */
function groupsOf(rows) {
  /** @type {Map<string, boolean>} */
  const found = new Map();
  for (const row of rows) found.set(row.name, Boolean(found.get(row.name)) || row.broker_id === 0);
  return { names: found.size, headless: [...found].filter(([, hasMaster]) => !hasMaster).map(([name]) => name) };
}
