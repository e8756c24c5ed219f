/** Who may use the console and the API: people with passwords, browsers that are signed in, API keys. */

import {
  Ago,
  api,
  at,
  attempt,
  Button,
  Choice,
  confirm,
  Dialog,
  Filters,
  FormDialog,
  html,
  keep,
  may,
  me,
  Name,
  number,
  Page,
  State,
  Table,
  Tabs,
  tell,
  TextField,
  texts,
  Time,
  useAnswer,
  useForm,
  useList,
  useMemo,
  useState,
} from "../kit.js";

const words = texts.access;
const ROLES = ["viewer", "operator", "administrator"];

/** @param {Record<string, string>} props */
export default function Access({ view = "sessions" }) {
  const [open, setOpen] = useState(/** @type {any} */ (null));
  const views = may("administrator") ? { sessions: Sessions, users: Users, keys: Keys } : { sessions: Sessions };
  const View = views[/** @type {"sessions"} */ (view)] ?? Sessions;
  return html`<${View} open=${open} setOpen=${setOpen}>
    <${Tabs}
      label=${words.view}
      value=${view}
      onChange=${(/** @type {string} */ each) => keep({ view: each })}
      tabs=${Object.keys(views).map((each) => [each, words.views[/** @type {"users"} */ (each)]])}
    />
  <//>`;
}

/** @param {any} props */
function Sessions({ open, setOpen, children }) {
  const asked = useAnswer("/console-sessions", { every_s: 15 });
  async function end(/** @type {any} */ row) {
    const says = row.is_own ? words.willEndOwn : words.willEnd(row.name, row.address);
    if (!(await confirm({ title: words.end, says, action: words.end, isDangerous: true }))) return;
    if (await attempt(() => api.remove(at`/console-sessions/${row.id}`), words.ended)) asked.reload();
  }
  const columns = useMemo(
    () => [
      { key: "name", title: words.name, show: (/** @type {any} */ row) => html`<${Name} name=${row.name} />` },
      { key: "role", title: words.role, hidden: "narrow" },
      { key: "way", title: words.way, hidden: "medium" },
      { key: "address", title: words.address, show: (/** @type {any} */ row) => html`<${Name} name=${row.address} />` },
      { key: "agent", title: words.agent, hidden: "narrow", width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.agent} />` },
      { key: "signed_in_ms", title: words.since, hidden: "medium", show: (/** @type {any} */ row) => html`<${Time} ms=${row.signed_in_ms} />` },
      {
        key: "used_ms",
        title: words.used,
        show: (/** @type {any} */ row) => (row.is_own ? html`<${State} kind="good">${words.own}<//>` : html`<${Ago} ms=${row.used_ms} />`),
      },
      { key: "end", title: texts.table.actions, isSorted: false, show: (/** @type {any} */ row) => html`<${Button} onClick=${() => end(row)}>${words.end}<//>` },
    ],
    [],
  );
  return html`
    <${Page}
      title=${words.title}
      lead=${words.sessionsLead}
      asked=${asked}
      actions=${me.peek()?.way === "password" && html`<${Button} onClick=${() => setOpen("password")}>${words.changeOwn}<//>`}
    >
      <${Filters}>${children}<//>
      <${Table} caption=${words.views.sessions} rows=${asked.answer?.items ?? null} rowKey=${(/** @type {any} */ row) => row.id} columns=${columns} empty=${words.noSessions} />
      ${open === "password" && html`<${OwnPassword} onClose=${() => setOpen(null)} />`}
    <//>
  `;
}

/** @param {any} props */
function Users({ open, setOpen, children }) {
  const list = useList("/console-users", { every_s: 30 });
  async function remove(/** @type {any} */ row) {
    const says = words.willRemove(row.name, row.sessions);
    if (!(await confirm({ title: words.remove, says, action: words.remove, isDangerous: true }))) return;
    if (await attempt(() => api.remove(at`/console-users/${row.name}`), words.removed)) list.reload();
  }
  const columns = useMemo(
    () => [
      { key: "name", title: words.name, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.name} />` },
      { key: "role", title: words.role },
      { key: "sessions", title: words.signedIn, isNumber: true, show: (/** @type {any} */ row) => number(row.sessions) },
      {
        key: "change",
        title: texts.table.actions,
        isSorted: false,
        show: (/** @type {any} */ row) => html`
          <${Button} onClick=${() => setOpen(row)}>${words.change}<//> <${Button} kind="danger" onClick=${() => remove(row)}>${words.remove}<//>
        `,
      },
    ],
    [],
  );
  return html`
    <${Page}
      title=${words.title}
      lead=${words.usersLead}
      asked=${list}
      actions=${html`<${Button} icon="add" onClick=${() => setOpen({ role: list.rows?.length === 0 ? "administrator" : "viewer" })}>${words.add}<//>`}
    >
      <${Filters}>${children}<//>
      <${Table} caption=${words.views.users} rows=${list.rows} isComplete=${list.isComplete} rowKey=${(/** @type {any} */ row) => row.name} columns=${columns} empty=${words.noUsers} />
      ${open && html`<${User} user=${open} onClose=${() => setOpen(null)} onDone=${list.reload} />`}
    <//>
  `;
}

/** @param {{user: any, onClose: () => void, onDone: () => void}} props */
function User({ user, onClose, onDone }) {
  const [name, setName] = useState(user.name ?? "");
  const [role, setRole] = useState(user.role ?? "viewer");
  const [password, setPassword] = useState("");
  const form = useForm(
    () => api.put(at`/console-users/${name}`, { role, ...(password && { password }) }),
    () => {
      tell(words.saved);
      onDone();
      onClose();
    },
  );
  return html`
    <${FormDialog} form=${form} title=${user.name ? words.change : words.add} action=${texts.actions.save} onClose=${onClose}>
      ${!user.name && html`<${TextField} label=${words.name} value=${name} onChange=${setName} required maxlength="64" wrong=${form.of("/name")} />`}
      <${Choice} label=${words.role} value=${role} onChange=${setRole} options=${ROLES.map((each) => [each, words.roles[/** @type {"viewer"} */ (each)]])} />
      <${TextField}
        label=${words.password}
        type="password"
        autocomplete="new-password"
        minlength="10"
        value=${password}
        onChange=${setPassword}
        required=${!user.name}
        hint=${user.name ? words.passwordHint : words.newPasswordHint}
        wrong=${form.of("/password")}
      />
    <//>
  `;
}

/** @param {{onClose: () => void}} props */
function OwnPassword({ onClose }) {
  const [former, setFormer] = useState("");
  const [password, setPassword] = useState("");
  const form = useForm(
    () => api.put("/me/password", { former, password }),
    () => {
      tell(words.changedOwn);
      location.reload();
    },
  );
  return html`
    <${FormDialog} form=${form} title=${words.changeOwn} action=${texts.actions.save} onClose=${onClose}>
      <${TextField} label=${words.former} type="password" autocomplete="current-password" value=${former} onChange=${setFormer} required wrong=${form.of("/former")} />
      <${TextField} label=${words.password} type="password" autocomplete="new-password" minlength="10" value=${password} onChange=${setPassword} required hint=${words.newPasswordHint} wrong=${form.of("/password")} />
    <//>
  `;
}

/** @param {any} props */
function Keys({ open, setOpen, children }) {
  const list = useList("/api-keys", { every_s: 30 });
  async function remove(/** @type {any} */ row) {
    if (!(await confirm({ title: words.remove, says: words.willRemoveKey(row.name), action: words.remove, isDangerous: true }))) return;
    if (await attempt(() => api.remove(at`/api-keys/${row.name}`), words.keyRemoved)) list.reload();
  }
  const columns = useMemo(
    () => [
      { key: "name", title: words.name, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.name} />` },
      { key: "role", title: words.role },
      { key: "areas", title: words.areas, hidden: "narrow", value: areasOf, show: areasOf },
      { key: "used_ms", title: words.used, hidden: "narrow", show: (/** @type {any} */ row) => html`<${Ago} ms=${row.used_ms} />` },
      {
        key: "expires_ms",
        title: words.expires,
        show: (/** @type {any} */ row) => html`<${State} kind=${row.expires_ms > Date.now() ? "good" : "bad"}><${Time} ms=${row.expires_ms} /><//>`,
      },
      { key: "remove", title: texts.table.actions, isSorted: false, show: (/** @type {any} */ row) => html`<${Button} kind="danger" onClick=${() => remove(row)}>${words.remove}<//>` },
    ],
    [],
  );
  return html`
    <${Page}
      title=${words.title}
      lead=${words.keysLead}
      asked=${list}
      actions=${html`<${Button} icon="add" onClick=${() => setOpen("key")}>${words.makeKey}<//>`}
    >
      <${Filters}>${children}<//>
      <${Table} caption=${words.views.keys} rows=${list.rows} isComplete=${list.isComplete} rowKey=${(/** @type {any} */ row) => row.name} columns=${columns} empty=${words.noKeys} />
      ${open === "key" && html`<${NewKey} onClose=${() => setOpen(null)} onDone=${list.reload} />`}
    <//>
  `;
}

/** @param {any} row */
function areasOf(row) {
  return row.areas.length ? row.areas.join(", ") : words.allAreas;
}

/** @param {{onClose: () => void, onDone: () => void}} props */
function NewKey({ onClose, onDone }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState("viewer");
  const [areas, setAreas] = useState("");
  const [days, setDays] = useState("90");
  const [made, setMade] = useState(/** @type {any} */ (null));
  const form = useForm(
    () => api.post("/api-keys", { name, role, areas: areas.split(",").map((each) => each.trim()).filter(Boolean), expires_days: Number(days) }),
    (answer) => {
      onDone();
      setMade(answer);
    },
  );
  if (made) {
    return html`
      <${Dialog} title=${words.keyMade} onClose=${onClose} buttons=${html`<${Button} kind="primary" onClick=${onClose}>${texts.actions.close}<//>`}>
        <p>${words.keyOnce}</p>
        <${TextField} label=${words.key} value=${made.key} onChange=${() => {}} readonly class="input mono" />
      <//>
    `;
  }
  return html`
    <${FormDialog} form=${form} title=${words.makeKey} action=${texts.actions.save} onClose=${onClose}>
      <${TextField} label=${words.name} value=${name} onChange=${setName} required maxlength="64" wrong=${form.of("/name")} />
      <${Choice} label=${words.role} value=${role} onChange=${setRole} options=${ROLES.map((each) => [each, words.roles[/** @type {"viewer"} */ (each)]])} />
      <${TextField} label=${words.areas} value=${areas} onChange=${setAreas} hint=${words.areasHint} wrong=${form.of("/areas")} />
      <${TextField} label=${words.days} type="number" min="1" max="3650" value=${days} onChange=${setDays} required wrong=${form.of("/expires_days")} />
    <//>
  `;
}
