/** All consumer groups, with how far behind they are. */

import {
  api,
  at,
  Button,
  Check,
  Filters,
  For,
  FormDialog,
  html,
  keep,
  link,
  Name,
  number,
  Page,
  rate,
  ROWS_MAX,
  Search,
  State,
  Table,
  tell,
  TextField,
  texts,
  useForm,
  useKept,
  useList,
  useRested,
  useState,
} from "../kit.js";

const words = texts.groups;
/** Each row is several requests of the gateway to its brokers, so not all groups are asked for at once. */
const PAGE_ROWS = 200;

const COLUMNS = [
  {
    key: "name",
    title: words.name,
    width: "wide",
    show: (/** @type {any} */ row) => html`<${Name} name=${row.name} to=${link("group", { name: row.name })} />`,
  },
  { key: "behind", title: words.behind, isNumber: true, hint: words.behindHint, show: (/** @type {any} */ row) => number(row.behind) },
  { key: "consumed_per_s", title: words.rate, isNumber: true, show: (/** @type {any} */ row) => rate(row.consumed_per_s) },
  { key: "members", title: words.members, isNumber: true, show: (/** @type {any} */ row) => number(row.members) },
  {
    key: "state",
    title: words.state,
    hidden: "narrow",
    value: stateOf,
    show: (/** @type {any} */ row) => html`<${State} kind=${row.members ? "good" : row.behind ? "warn" : "quiet"}>${stateOf(row)}<//>`,
  },
  { key: "model", title: words.model, hidden: "medium", show: (/** @type {any} */ row) => row.model ?? "–" },
];

/** @param {{match?: string, system?: string}} props */
export default function Groups({ match = "", system = "" }) {
  const [typed, setTyped] = useKept("match", match);
  const [rows_max, setRowsMax] = useState(PAGE_ROWS);
  const [isMaking, setMaking] = useState(false);
  const every_s = rows_max > PAGE_ROWS ? 0 : 15;
  const hasSystem = system === "yes";
  const list = useList("/groups", { query: { match: useRested(typed), has_system: hasSystem }, every_s, page_rows: PAGE_ROWS, rows_max });
  return html`
    <${Page}
      title=${words.title}
      lead=${words.lead}
      asked=${list}
      actions=${html`<${For} role="operator"><${Button} icon="add" onClick=${() => setMaking(true)}>${words.make}<//><//>`}
    >
      <${Filters}>
        <${Search}
          label=${words.search}
          value=${typed}
          onChange=${setTyped}
        />
        <${Check}
          label=${texts.topics.system}
          value=${hasSystem}
          onChange=${(/** @type {boolean} */ yes) => keep({ system: yes ? "yes" : "" })}
        />
      <//>
      <${Table}
        caption=${words.title}
        rows=${list.rows}
        isComplete=${list.isComplete}
        onMore=${() => setRowsMax(Math.min(5 * rows_max, ROWS_MAX))}
        rowKey=${(/** @type {any} */ row) => row.name}
        href=${(/** @type {any} */ row) => link("group", { name: row.name })}
        sort=${{ key: "behind", isDescending: true }}
        empty=${typed ? texts.table.noMatch : words.none}
        columns=${COLUMNS}
      />
      ${isMaking && html`<${Make} onClose=${() => setMaking(false)} onDone=${list.reload} />`}
    <//>
  `;
}

/** @param {any} row */
function stateOf(row) {
  if (row.members) return words.states.reading;
  return row.behind ? words.states.waiting : words.states.idle;
}

/** @param {{onClose: () => void, onDone: () => void}} props */
function Make({ onClose, onDone }) {
  const [name, setName] = useState("");
  const form = useForm(
    () => api.patch(at`/groups/${name}`, {}),
    () => {
      tell(words.made(name));
      onDone();
      onClose();
    },
  );

  return html`
    <${FormDialog} form=${form} title=${words.make} onClose=${onClose}>
      <${TextField} label=${words.name} value=${name} onChange=${setName} required maxlength="255" hint=${words.nameHint} />
    <//>
  `;
}
