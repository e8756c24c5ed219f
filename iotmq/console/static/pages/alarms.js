/** What is wrong now, what was, who is told, and what nobody is told of for a while. */

import {
  Ago,
  api,
  at,
  attempt,
  Button,
  confirm,
  Dialog,
  Facts,
  Filters,
  For,
  Form,
  FormDialog,
  html,
  inputTime,
  keep,
  may,
  Name,
  number,
  Page,
  Problem,
  Search,
  State,
  Table,
  Tabs,
  tell,
  tellProblem,
  TextField,
  texts,
  Time,
  useAnswer,
  useForm,
  useKept,
  useList,
  useMemo,
  useRested,
  useState,
  visible,
  Words,
} from "../kit.js";

const words = texts.alarms;
const LEVELS = /** @type {Record<string, "bad" | "warn" | "quiet">} */ ({ critical: "bad", warning: "warn", info: "quiet" });
const HOUR_MS = 3_600_000;

const label = (/** @type {any} */ row) => Object.entries(row.labels).map(([name, value]) => `${name}=${value}`).join(" ");

/** @param {Record<string, string>} props */
export default function Alarms({ view = "now", match = "" }) {
  const [open, setOpen] = useState(/** @type {any} */ (null));
  const views = { now: Now, past: Past, silences: Silences, receivers: Receivers, conditions: Conditions };
  const View = views[/** @type {"now"} */ (view)] ?? Now;
  return html`<${View} match=${match} open=${open} setOpen=${setOpen}>
    <${Tabs}
      label=${words.view}
      value=${view}
      onChange=${(/** @type {string} */ each) => keep({ view: each === "now" ? "" : each })}
      tabs=${Object.keys(views).map((each) => [each, words.views[/** @type {"now"} */ (each)]])}
    />
  <//>`;
}

/** @param {any} props */
function Now({ match, open, setOpen, children }) {
  const [typed, setTyped] = useKept("match", match);
  const list = useList("/alarms", { query: { match: useRested(typed) }, every_s: 5 });
  const columns = useMemo(() => alarmColumns(setOpen, "since_ms"), []);
  return html`
    <${Page} title=${words.title} lead=${words.lead} asked=${list}>
      <${Filters}>
        ${children}
        <${Search}
          label=${words.search}
          value=${typed}
          onChange=${setTyped}
        />
      <//>
      <${Table}
        caption=${words.title}
        rows=${list.rows}
        isComplete=${list.isComplete}
        rowKey=${(/** @type {any} */ row) => row.id}
        columns=${columns}
        onOpen=${setOpen}
        empty=${typed ? texts.table.noMatch : words.none}
      />
      ${open && html`<${Alarm} alarm=${list.rows?.find((each) => each.id === open.id) ?? open} onClose=${() => setOpen(null)} onDone=${list.reload} />`}
    <//>
  `;
}

/** @param {any} props */
function Past({ open, setOpen, children }) {
  const asked = useAnswer("/alarms/history", { query: { limit: 1000 }, every_s: 30 });
  const columns = useMemo(() => alarmColumns(setOpen, "ended_ms"), []);
  return html`
    <${Page} title=${words.title} lead=${words.lead} asked=${asked}>
      <${Filters}>${children}<//>
      <${Table}
        caption=${words.views.past}
        rows=${asked.answer?.items ?? null}
        rowKey=${(/** @type {any} */ row) => `${row.id} ${row.ended_ms}`}
        columns=${columns}
        onOpen=${setOpen}
        empty=${words.nonePast}
      />
      ${open && html`<${Alarm} alarm=${open} onClose=${() => setOpen(null)} />`}
    <//>
  `;
}

/** @param {(row: any) => void} onOpen @param {"since_ms" | "ended_ms"} time */
const alarmColumns = (onOpen, time) => [
  {
    key: "level",
    title: words.level,
    width: "small",
    value: (/** @type {any} */ row) => ["critical", "warning", "info"].indexOf(row.level),
    show: (/** @type {any} */ row) => html`<${State} kind=${LEVELS[row.level] ?? "quiet"}>${row.level}<//>`,
  },
  {
    key: "name",
    title: words.name,
    show: (/** @type {any} */ row) => html`<button type="button" class="link" onClick=${() => onOpen(row)}><${Name} name=${row.name} /></button>`,
  },
  { key: "says", title: words.says, width: "wide", isSorted: false, show: (/** @type {any} */ row) => html`<${Words} text=${row.says} />` },
  { key: "labels", title: words.labels, hidden: "medium", value: label, show: (/** @type {any} */ row) => html`<${Name} name=${label(row)} />` },
  { key: "state", title: words.state, value: stateOf, show: stateOf },
  { key: time, title: words[time], hidden: "narrow", show: (/** @type {any} */ row) => html`<${Ago} ms=${row[time]} />` },
];

/** @param {any} row */
function stateOf(row) {
  if (row.state === "ended") return row.ended_by ? words.endedBy(visible(row.ended_by)) : words.states.ended;
  if (row.is_silenced) return words.states.silenced;
  if (row.acknowledged) return words.acknowledgedBy(visible(row.acknowledged.by));
  return row.is_flapping ? words.states.flapping : words.states[/** @type {"firing"} */ (row.state)];
}

/** @param {{alarm: any, onClose: () => void, onDone?: () => void}} props */
function Alarm({ alarm, onClose, onDone }) {
  const [note, setNote] = useState("");
  const [isSilencing, setSilencing] = useState(false);
  const isOn = alarm.state !== "ended";
  if (isSilencing) return html`<${NewSilence} alarm=${alarm} onClose=${onClose} onDone=${onDone} />`;

  /** @param {() => Promise<any>} change @param {string} done */
  async function act(change, done) {
    if (!(await attempt(change, done))) return;
    onDone?.();
    onClose();
  }
  async function end() {
    if (!(await confirm({ title: words.end, says: words.willEnd(alarm.name), action: words.end, isDangerous: true }))) return;
    await act(() => api.remove(at`/alarms/${alarm.id}`), words.ended);
  }

  return html`
    <${Dialog}
      title=${alarm.name}
      isWide
      onClose=${onClose}
      buttons=${html`
        ${isOn &&
        may("operator") &&
        html`
          <${Button} onClick=${end}>${words.end}<//>
          <${Button} onClick=${() => setSilencing(true)}>${words.silence}<//>
          ${!alarm.acknowledged && html`<button type="submit" form="acknowledge" class="button is-primary">${words.acknowledge}</button>`}
        `}
        <${Button} onClick=${onClose}>${texts.actions.close}<//>
      `}
    >
      <div class="prose">
        <p><${Words} text=${alarm.says} /></p>
        <p><strong>${words.whatToDo}</strong> ${alarm.what_to_do}</p>
      </div>
      <${Facts}
        items=${[
          [words.level, html`<${State} kind=${LEVELS[alarm.level] ?? "quiet"}>${alarm.level}<//>`],
          [words.state, stateOf(alarm)],
          [words.labels, html`<${Name} name=${label(alarm) || "–"} />`],
          [words.value, String(Number(alarm.value.toPrecision(4)))],
          [words.owner, alarm.owner || "–"],
          [words.since_ms, html`<${Time} ms=${alarm.since_ms} />`],
          alarm.ended_ms && [words.ended_ms, html`<${Time} ms=${alarm.ended_ms} />`],
          alarm.acknowledged?.note && [words.note, html`<${Words} text=${alarm.acknowledged.note} />`],
        ].filter(Boolean)}
      />
      ${isOn &&
      may("operator") &&
      !alarm.acknowledged &&
      html`
        <${Form} id="acknowledge" onSubmit=${() => act(() => api.post(at`/alarms/${alarm.id}/acknowledge`, { note }), words.acknowledged)}>
          <${TextField} label=${words.note} value=${note} onChange=${setNote} hint=${words.acknowledgeHint} maxlength="512" />
        <//>
      `}
    <//>
  `;
}

/** @param {{alarm: any, onClose: () => void, onDone?: () => void}} props */
function NewSilence({ alarm, onClose, onDone }) {
  const [draft, setDraft] = useState({
    name: alarm?.name ? `${alarm.name}-${alarm.id.slice(0, 8)}` : "",
    alarm: alarm?.name ?? "*",
    until: inputTime(Date.now() + 4 * HOUR_MS),
    reason: "",
  });
  const set = (/** @type {string} */ name) => (/** @type {string} */ value) => setDraft((known) => ({ ...known, [name]: value }));
  const form = useForm(
    () =>
      api.put(at`/silences/${draft.name}`, {
        alarm: draft.alarm,
        labels: alarm?.labels ?? {},
        until_ms: new Date(draft.until).getTime(),
        reason: draft.reason,
      }),
    () => {
      tell(words.silenced);
      onDone?.();
      onClose();
    },
  );

  return html`
    <${FormDialog} form=${form} title=${words.silence} onClose=${onClose}>
      <p class="hint">${alarm?.labels && label(alarm) ? words.silenceOf(label(alarm)) : words.silenceHint}</p>
      <${TextField} label=${words.silenceName} value=${draft.name} onChange=${set("name")} required pattern="[a-zA-Z0-9][a-zA-Z0-9._\\-]*" wrong=${form.of("/name")} />
      <${TextField} label=${words.silenceAlarm} value=${draft.alarm} onChange=${set("alarm")} required hint=${words.silenceAlarmHint} wrong=${form.of("/alarm")} />
      <${TextField} label=${words.until} type="datetime-local" step="1" value=${draft.until} onChange=${set("until")} required wrong=${form.of("/until_ms")} />
      <${TextField} label=${words.reason} value=${draft.reason} onChange=${set("reason")} required wrong=${form.of("/reason")} />
    <//>
  `;
}

/** @param {any} props */
function Silences({ open, setOpen, children }) {
  const asked = useAnswer("/silences", { every_s: 15 });
  async function end(/** @type {any} */ row) {
    if (!(await confirm({ title: words.endSilence, says: words.willEndSilence(row.name), action: words.endSilence }))) return;
    if (await attempt(() => api.remove(at`/silences/${row.name}`), words.silenceEnded)) asked.reload();
  }
  const columns = useMemo(
    () => [
      { key: "name", title: words.silenceName, show: (/** @type {any} */ row) => html`<${Name} name=${row.name} />` },
      { key: "alarm", title: words.silenceAlarm, show: (/** @type {any} */ row) => html`<${Name} name=${`${row.alarm} ${label(row)}`} />` },
      { key: "reason", title: words.reason, width: "wide", show: (/** @type {any} */ row) => html`<${Words} text=${row.reason} />` },
      { key: "by", title: words.by, hidden: "narrow", show: (/** @type {any} */ row) => html`<${Name} name=${row.by} />` },
      { key: "until_ms", title: words.until, show: (/** @type {any} */ row) => html`<${Time} ms=${row.until_ms} />` },
      ...(may("operator")
        ? [{ key: "end", title: texts.table.actions, isSorted: false, show: (/** @type {any} */ row) => html`<${Button} onClick=${() => end(row)}>${words.endSilence}<//>` }]
        : []),
    ],
    [],
  );
  return html`
    <${Page}
      title=${words.title}
      lead=${words.silencesLead}
      asked=${asked}
      actions=${html`<${For} role="operator"><${Button} icon="add" onClick=${() => setOpen("silence")}>${words.silence}<//><//>`}
    >
      <${Filters}>${children}<//>
      <${Table} caption=${words.views.silences} rows=${asked.answer?.items ?? null} rowKey=${(/** @type {any} */ row) => row.name} columns=${columns} empty=${words.noSilences} />
      ${open === "silence" && html`<${NewSilence} alarm=${null} onClose=${() => setOpen(null)} onDone=${asked.reload} />`}
    <//>
  `;
}

/** @param {any} props */
function Receivers({ children }) {
  const asked = useAnswer("/alarms/receivers", { every_s: 15 });
  async function test(/** @type {any} */ row) {
    try {
      const outcome = await api.post("/alarms:test", { receiver: row.name });
      if (outcome.is_delivered) tell(words.delivered(row.name));
      else tellProblem(new Problem(502, { title: words.notDelivered(row.name), detail: outcome.reason }));
    } catch (error) {
      tellProblem(error);
    }
    asked.reload();
  }
  const columns = useMemo(
    () => [
      { key: "name", title: words.receiver, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.name} />` },
      { key: "kind", title: words.kind },
      { key: "level", title: words.level, hidden: "narrow" },
      { key: "delivered", title: words.taken, isNumber: true, hidden: "narrow", show: (/** @type {any} */ row) => number(row.delivered) },
      { key: "delivered_ms", title: words.lastTaken, hidden: "medium", show: (/** @type {any} */ row) => html`<${Ago} ms=${row.delivered_ms} />` },
      {
        key: "failing_s",
        title: words.state,
        show: (/** @type {any} */ row) => html`<${State} kind=${row.failing_s ? "bad" : "good"}><${Words} text=${row.failing_s ? row.failed_reason : words.works} /><//>`,
      },
      ...(may("operator")
        ? [{ key: "test", title: texts.table.actions, isSorted: false, show: (/** @type {any} */ row) => html`<${Button} onClick=${() => test(row)}>${words.test}<//>` }]
        : []),
    ],
    [],
  );
  return html`
    <${Page} title=${words.title} lead=${words.receiversLead} asked=${asked}>
      <${Filters}>${children}<//>
      ${asked.answer && !asked.answer.tells_cluster && html`<p class="note">${words.anotherTells}</p>`}
      <${Table} caption=${words.views.receivers} rows=${asked.answer?.items ?? null} rowKey=${(/** @type {any} */ row) => row.name} columns=${columns} empty=${words.noReceivers} />
    <//>
  `;
}

const CONDITION_COLUMNS = [
  { key: "name", title: words.name, show: (/** @type {any} */ row) => html`<${Name} name=${row.name} />` },
  { key: "level", title: words.level, show: (/** @type {any} */ row) => html`<${State} kind=${LEVELS[row.level] ?? "quiet"}>${row.level}<//>` },
  { key: "says", title: words.says, width: "wide", isSorted: false, show: (/** @type {any} */ row) => html`<${Words} text=${row.says} />` },
  { key: "fires_at", title: words.firesAt, isNumber: true, hidden: "narrow" },
  { key: "clears_at", title: words.clearsAt, isNumber: true, hidden: "medium" },
  { key: "for_s", title: words.for, isNumber: true, hidden: "medium", show: (/** @type {any} */ row) => `${row.for_s} s` },
  { key: "owner", title: words.owner, hidden: "medium" },
];

/** @param {any} props */
function Conditions({ children }) {
  const asked = useAnswer("/alarms/conditions");
  return html`
    <${Page} title=${words.title} lead=${words.conditionsLead} asked=${asked}>
      <${Filters}>${children}<//>
      <${Table} caption=${words.views.conditions} rows=${asked.answer?.items ?? null} rowKey=${(/** @type {any} */ row) => row.name} columns=${CONDITION_COLUMNS} sort=${{ key: "name", isDescending: false }} />
    <//>
  `;
}
