/** Settings of brokers, and those that may change while they run. */

import {
  api,
  at,
  buttonColumn,
  Choice,
  Filters,
  FormDialog,
  html,
  keep,
  may,
  Name,
  Page,
  Search,
  Table,
  tell,
  TextField,
  texts,
  useAnswer,
  useForm,
  useKept,
  useMemo,
  useState,
} from "../kit.js";

const words = texts.settings;

const COLUMNS = [
  { key: "name", title: words.name, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.name} />` },
  { key: "value", title: words.value, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.value} />` },
  { key: "broker", title: words.broker, hidden: "narrow", show: (/** @type {any} */ row) => html`<${Name} name=${row.broker} />` },
];

/** @param {{match?: string, broker?: string}} props */
export default function Settings({ match = "", broker = "" }) {
  const [typed, setTyped] = useKept("match", match);
  const [open, setOpen] = useState(/** @type {any} */ (null));
  const asked = useAnswer("/settings");
  const items = asked.answer?.items ?? null;
  const rows = useMemo(() => rowsOf(items, typed, broker), [items, typed, broker]);
  const columns = useMemo(() => (may("administrator") ? [...COLUMNS, buttonColumn(words.change, setOpen)] : COLUMNS), []);
  const names = (items ?? []).map((/** @type {any} */ each) => [each.broker, each.broker]);
  return html`
    <${Page} title=${words.title} lead=${words.lead} asked=${asked}>
      <${Filters}>
        <${Search} label=${words.search} value=${typed} onChange=${setTyped} />
        ${names.length > 1 &&
        html`
          <${Choice}
            label=${words.broker}
            isLabelHidden
            value=${broker}
            options=${[["", words.allBrokers], ...names]}
            onChange=${(/** @type {string} */ value) => keep({ broker: value })}
          />
        `}
      <//>
      <${Table}
        caption=${words.title}
        rows=${rows}
        rowKey=${(/** @type {any} */ row) => `${row.broker} ${row.name}`}
        sort=${{ key: "name", isDescending: false }}
        empty=${typed ? texts.table.noMatch : words.none}
        columns=${columns}
      />
      ${open && html`<${Change} row=${open} onClose=${() => setOpen(null)} onDone=${asked.reload} />`}
    <//>
  `;
}

/** @param {{row: any, onClose: () => void, onDone: () => void}} props */
function Change({ row, onClose, onDone }) {
  const [value, setValue] = useState(row.value);
  const form = useForm(
    () => api.patch(at`/brokers/${row.broker}/settings`, { settings: { [row.name]: value } }),
    () => {
      tell(words.changedNow);
      onDone();
      onClose();
    },
  );

  return html`
    <${FormDialog} form=${form} title=${words.changeTitle} action=${texts.actions.save} isUnchanged=${value === row.value} onClose=${onClose}>
      <p>${words.willChange(row.name, row.broker)}</p>
      <${TextField} label=${row.name} value=${value} onChange=${setValue} hint=${words.was(row.value)} />
    <//>
  `;
}

/** @param {any[] | null} items @param {string} typed @param {string} broker */
function rowsOf(items, typed, broker) {
  if (!items) return null;
  const match = typed.toLowerCase();
  return items
    .filter((each) => !broker || each.broker === broker)
    .flatMap((each) => Object.entries(each.settings).map(([name, value]) => ({ broker: each.broker, name, value })))
    .filter((row) => row.name.toLowerCase().includes(match));
}
