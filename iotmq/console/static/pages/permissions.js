/** Who devices are and what they may do, with a trial of one decision. */

import {
  api,
  Card,
  Choice,
  Facts,
  Filters,
  Form,
  html,
  keep,
  Name,
  number,
  Page,
  Search,
  State,
  Table,
  Tabs,
  TextField,
  texts,
  useAnswer,
  useForm,
  useKept,
  useList,
  useRested,
  useState,
  Words,
} from "../kit.js";

const words = texts.permissions;

/** @param {Record<string, string>} props */
export default function Permissions({ view = "try", match = "" }) {
  const views = { try: Try, rules: Rules, users: Users };
  const View = views[/** @type {"try"} */ (view)] ?? Try;
  return html`<${View} match=${match}>
    <${Tabs}
      label=${words.view}
      value=${view}
      onChange=${(/** @type {string} */ each) => keep({ view: each === "try" ? "" : each })}
      tabs=${Object.keys(views).map((each) => [each, words.views[/** @type {"try"} */ (each)]])}
    />
  <//>`;
}

/** @param {any} props */
function Try({ children }) {
  const [draft, setDraft] = useState(/** @type {Record<string, string>} */ ({ client_id: "", user: "", action: "publish", topic: "", qos: "0", address: "", certificate: "" }));
  const [decision, setDecision] = useState(/** @type {any} */ (null));
  const { client_id, action, topic, qos, ...rest } = draft;
  const given = Object.fromEntries(Object.entries(rest).filter(([, value]) => value));
  const form = useForm(() => api.post("/access:test", { client_id, action, topic, qos: Number(qos), ...given }), setDecision);

  const set = (/** @type {string} */ name) => (/** @type {string} */ value) => {
    setDraft((known) => ({ ...known, [name]: value }));
    setDecision(null);
  };

  /** @param {string} name @param {Record<string, unknown>} [more] */
  const field = (name, more) => html`
    <${TextField}
      label=${words[/** @type {"topic"} */ (name)]}
      value=${draft[name]}
      onChange=${set(name)}
      wrong=${form.of(`/${name}`)}
      ...${more}
    />
  `;

  return html`
    <${Page} title=${words.title} lead=${words.lead}>
      <${Filters}>${children}<//>
      <${Card} title=${words.views.try} hint=${words.tryHint}>
        <${Form} form=${form} class="stack">
          <div class="row">
            ${field("client_id", { required: true })} ${field("user", { placeholder: words.userHint })}
            ${field("certificate")} ${field("address", { placeholder: "192.0.2.7" })}
          </div>
          <div class="row">
            <${Choice}
              label=${words.action}
              value=${draft.action}
              onChange=${set("action")}
              isNarrow
              options=${[
                ["publish", words.publish],
                ["subscribe", words.subscribe],
              ]}
            />
            ${field("topic", { required: true, placeholder: "plant/7/temperature" })}
            <${Choice} label=${words.qos} value=${draft.qos} onChange=${set("qos")} isNarrow options=${[["0", "0"], ["1", "1"], ["2", "2"]]} />
            <button type="submit" class="button is-primary">${words.decide}</button>
          </div>
        <//>
      <//>
      <div role="status">
        ${decision &&
        html`
          <${Card} title=${html`<${State} kind=${decision.is_allowed ? "good" : "bad"}>${decision.is_allowed ? words.allowed : words.refused}<//>`}>
            <${Facts}
              items=${[
                [words.rule, html`<${Name} name=${decision.rule} />`],
                decision.detail && [words.detail, html`<${Words} text=${decision.detail} />`],
                [words.decidedAbout, html`<${Name} name=${decision.topic} />`],
                [words.qosMax, number(decision.qos)],
              ].filter(Boolean)}
            />
          <//>
        `}
      </div>
    <//>
  `;
}

const said = (/** @type {any} */ table) =>
  Object.entries(table)
    .map(([name, value]) => `${name}: ${Array.isArray(value) ? value.join(", ") : JSON.stringify(value)}`)
    .join("; ");

const RULE_COLUMNS = [
  { key: "number", title: words.number, isNumber: true, width: "small" },
  { key: "name", title: words.rule, show: (/** @type {any} */ row) => html`<${Name} name=${row.name} />` },
  {
    key: "is_allow",
    title: words.says,
    value: (/** @type {any} */ row) => (row.is_allow ? words.allows : words.denies),
    show: (/** @type {any} */ row) => html`<${State} kind=${row.is_allow ? "good" : "bad"}>${row.is_allow ? words.allows : words.denies}<//>`,
  },
  { key: "action", title: words.action, hidden: "narrow" },
  { key: "topics", title: words.topics, width: "wide", isSorted: false, show: (/** @type {any} */ row) => html`<${Name} name=${row.topics.join(" ")} />` },
  { key: "who", title: words.who, hidden: "narrow", isSorted: false, show: (/** @type {any} */ row) => html`<${Name} name=${said(row.who) || words.everybody} />` },
  { key: "conditions", title: words.conditions, hidden: "medium", isSorted: false, show: (/** @type {any} */ row) => html`<${Name} name=${said(row.conditions) || "–"} />` },
];

/** @param {any} props */
function Rules({ children }) {
  const asked = useAnswer("/permissions", { every_s: 30 });
  const rows = asked.answer?.items.map((/** @type {any} */ each, /** @type {number} */ index) => ({ ...each, number: index + 1 })) ?? null;
  return html`
    <${Page} title=${words.title} lead=${words.rulesLead} asked=${asked}>
      <${Filters}>${children}<//>
      <${Table} caption=${words.views.rules} rows=${rows} rowKey=${(/** @type {any} */ row) => String(row.number)} columns=${RULE_COLUMNS} empty=${words.noRules} />
    <//>
  `;
}

const USER_COLUMNS = [
  { key: "name", title: words.user, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.name} />` },
  {
    key: "roles",
    title: words.roles,
    value: (/** @type {any} */ row) => row.roles.join(", "),
    show: (/** @type {any} */ row) => html`<${Name} name=${row.roles.join(", ") || "–"} />`,
  },
];

/** @param {any} props */
function Users({ match, children }) {
  const [typed, setTyped] = useKept("match", match);
  const list = useList("/device-users", { query: { match: useRested(typed) } });
  return html`
    <${Page} title=${words.title} lead=${words.usersLead} asked=${list}>
      <${Filters}>
        ${children}
        <${Search}
          label=${words.search}
          value=${typed}
          onChange=${setTyped}
        />
      <//>
      <${Table}
        caption=${words.views.users}
        rows=${list.rows}
        isComplete=${list.isComplete}
        rowKey=${(/** @type {any} */ row) => row.name}
        columns=${USER_COLUMNS}
        empty=${typed ? texts.table.noMatch : words.noUsers}
      />
    <//>
  `;
}
