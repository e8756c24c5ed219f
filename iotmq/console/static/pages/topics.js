/** All topics. */

import {
  api,
  at,
  Button,
  Check,
  Filters,
  For,
  FormDialog,
  go,
  html,
  keep,
  link,
  Name,
  number,
  Page,
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

const words = texts.topics;

const COLUMNS = [
  {
    key: "name",
    title: words.name,
    width: "wide",
    show: (/** @type {any} */ row) => html`<${Name} name=${row.name} to=${link("topic", { name: row.name })} />`,
  },
  { key: "queues", title: words.queues, isNumber: true, show: (/** @type {any} */ row) => number(row.queues) },
  {
    key: "brokers",
    title: words.brokers,
    hidden: "narrow",
    value: (/** @type {any} */ row) => row.brokers.join(", "),
    show: (/** @type {any} */ row) => row.brokers.join(", "),
  },
  { key: "state", title: words.state, value: stateOf, show: shownState },
];

/** @param {{match?: string, system?: string}} props */
export default function Topics({ match = "", system = "" }) {
  const [typed, setTyped] = useKept("match", match);
  const [isMaking, setMaking] = useState(false);
  const hasSystem = system === "yes";
  const list = useList("/topics", { query: { match: useRested(typed), has_system: hasSystem }, every_s: 10 });
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
          label=${words.system}
          value=${hasSystem}
          onChange=${(/** @type {boolean} */ yes) => keep({ system: yes ? "yes" : "" })}
        />
      <//>
      <${Table}
        caption=${words.title}
        rows=${list.rows}
        isComplete=${list.isComplete}
        rowKey=${(/** @type {any} */ row) => row.name}
        href=${(/** @type {any} */ row) => link("topic", { name: row.name })}
        empty=${typed ? texts.table.noMatch : words.none}
        columns=${COLUMNS}
      />
      ${isMaking && html`<${Make} onClose=${() => setMaking(false)} />`}
    <//>
  `;
}

/** @param {any} row */
function stateOf(row) {
  if (row.is_readable && row.is_writable) return words.states.open;
  if (row.is_readable) return words.states.readOnly;
  return row.is_writable ? words.states.writeOnly : words.states.closed;
}

/** @param {any} row */
function shownState(row) {
  return html`<${State} kind=${stateOf(row) === words.states.open ? "good" : "warn"}>${stateOf(row)}<//>`;
}

/** @param {{onClose: () => void}} props */
function Make({ onClose }) {
  const [name, setName] = useState("");
  const [queues, setQueues] = useState("4");
  const form = useForm(
    () => api.put(at`/topics/${name}`, { queues: Number(queues) }),
    () => {
      tell(words.made(name));
      go("topic", { name });
    },
  );

  return html`
    <${FormDialog} form=${form} title=${words.make} onClose=${onClose}>
      <${TextField} label=${words.name} value=${name} onChange=${setName} required maxlength="127" hint=${words.nameHint} />
      <${TextField} label=${words.queues} type="number" min="1" max="1024" value=${queues} onChange=${setQueues} required hint=${words.queuesHint} wrong=${form.of("/queues")} />
    <//>
  `;
}
