/** Who may not connect. */

import {
  api,
  attempt,
  Button,
  buttonColumn,
  Choice,
  confirm,
  Filters,
  For,
  FormDialog,
  html,
  may,
  Name,
  Page,
  Search,
  Table,
  tell,
  TextField,
  texts,
  Time,
  useAnswer,
  useForm,
  useMemo,
  useState,
} from "../kit.js";

const words = texts.bans;

/** The value stands at the end of the path, slashes of a network included. @param {string} kind @param {string} value */
const pathOf = (kind, value) => `/bans/${kind}/${value.split("/").map(encodeURIComponent).join("/")}`;

/** @param {{kind?: string, value?: string}} props a ban that is to be made */
export default function Bans({ kind = "", value = "" }) {
  const [typed, setTyped] = useState("");
  const [isOpen, setOpen] = useState(Boolean(value) && may("operator"));
  const asked = useAnswer("/bans", { every_s: 10 });
  const match = typed.toLowerCase();
  const rows = asked.answer?.items.filter((/** @type {any} */ row) => row.value.toLowerCase().includes(match)) ?? null;

  /** @param {any} row */
  async function lift(row) {
    const says = words.willLift(words.what(kindText(row.kind), row.value));
    if (!(await confirm({ title: words.liftTitle, says, action: words.lift }))) return;
    if (await attempt(() => api.remove(pathOf(row.kind, row.value)), words.lifted)) asked.reload();
  }

  const columns = useMemo(() => (may("operator") ? [...COLUMNS, buttonColumn(words.lift, lift)] : COLUMNS), [asked.reload]);
  return html`
    <${Page}
      title=${words.title}
      lead=${words.lead}
      asked=${asked}
      actions=${html`<${For} role="operator"><${Button} kind="primary" icon="add" onClick=${() => setOpen(true)}>${words.add}<//><//>`}
    >
      <${Filters}><${Search} label=${words.search} value=${typed} onChange=${setTyped} /><//>
      <${Table}
        caption=${words.title}
        rows=${rows}
        rowKey=${(/** @type {any} */ row) => `${row.kind} ${row.value}`}
        empty=${typed ? texts.table.noMatch : words.none}
        columns=${columns}
      />
      ${isOpen && html`<${NewBan} kind=${kind || "client"} value=${value} onClose=${() => setOpen(false)} onDone=${asked.reload} />`}
    <//>
  `;
}

const COLUMNS = [
  { key: "kind", title: words.kind, value: (/** @type {any} */ row) => kindText(row.kind), show: (/** @type {any} */ row) => kindText(row.kind) },
  { key: "value", title: words.value, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.value} />` },
  { key: "reason", title: words.reason, width: "wide", hidden: "narrow", show: (/** @type {any} */ row) => html`<${Name} name=${row.reason} />` },
  { key: "by", title: words.by, hidden: "medium", show: (/** @type {any} */ row) => html`<${Name} name=${row.by} />` },
  { key: "made_ms", title: words.made, hidden: "medium", show: (/** @type {any} */ row) => html`<${Time} ms=${row.made_ms} />` },
  { key: "until_ms", title: words.until, value: (/** @type {any} */ row) => row.until_ms || null, show: untilOf },
];

/** @param {{kind: string, value: string, onClose: () => void, onDone: () => void}} props */
function NewBan({ onClose, onDone, ...given }) {
  const [kind, setKind] = useState(given.kind);
  const [value, setValue] = useState(given.value);
  const [reason, setReason] = useState("");
  const [lasts, setLasts] = useState("3600");
  const form = useForm(
    () => api.put(pathOf(kind, value), { reason, until_ms: lasts === "0" ? 0 : Date.now() + Number(lasts) * 1000 }),
    () => {
      tell(words.isPut);
      onDone();
      onClose();
    },
  );

  return html`
    <${FormDialog} form=${form} title=${words.add} action=${words.put} isDangerous onClose=${onClose}>
      <${Choice} label=${words.kind} value=${kind} options=${Object.entries(words.kinds)} onChange=${setKind} />
      <${TextField}
        label=${words.value}
        required
        value=${value}
        onChange=${setValue}
        hint=${words.valueHint[/** @type {"client"} */ (kind)]}
        wrong=${form.of("/value")}
      />
      <${Choice} label=${words.lasts} value=${lasts} options=${Object.entries(words.durations)} onChange=${setLasts} />
      <${TextField} label=${words.reason} maxlength="256" value=${reason} onChange=${setReason} hint=${words.reasonHint} wrong=${form.of("/reason")} />
      ${value && html`<p>${words.willPut(words.what(kindText(kind), value))}</p>`}
    <//>
  `;
}

/** @param {string} kind */
function kindText(kind) {
  return words.kinds[/** @type {"client"} */ (kind)] ?? kind;
}

/** @param {any} row */
function untilOf(row) {
  return row.until_ms ? html`<${Time} ms=${row.until_ms} />` : words.never;
}
