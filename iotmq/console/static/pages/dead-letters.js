/** Messages that groups have given up: look, send again as they are or changed, keep as a file. */

import {
  api,
  at,
  attempt,
  Button,
  Choice,
  confirm,
  download,
  Filters,
  html,
  inputTime,
  keep,
  link,
  may,
  MessageDialog,
  Name,
  number,
  Page,
  payloadLine,
  Problem,
  ReplayCard,
  ReplayDialog,
  request,
  SendDialog,
  Table,
  tell,
  tellProblem,
  TextField,
  texts,
  Time,
  useAnswer,
  useAsking,
  useCallback,
  useMemo,
  useRested,
  useState,
} from "../kit.js";

const words = texts.deadLetters;
const PREFIX = "%DLQ%";
const LIMIT_MAX = 500;
const DAY_MS = 86_400_000;
const REPLAY_S = 2;
const EXPORT_TYPE = "application/jsonl";

const rowKey = (/** @type {any} */ row) => row.message.offset_message_id;

/** @param {{group?: string, from?: string, until?: string, topic?: string, keyed?: string}} props */
export default function DeadLetters({ group = "", from = "", until = "", topic = "", keyed = "" }) {
  const topics = useAnswer("/topics", { query: { match: PREFIX, has_system: true, limit: 1000 }, every_s: 30 });
  const groups = (topics.answer?.items ?? [])
    .map((/** @type {any} */ each) => each.name)
    .filter((/** @type {string} */ name) => name.startsWith(PREFIX))
    .map((/** @type {string} */ name) => name.slice(PREFIX.length));
  const weekAgo = useMemo(() => inputTime(Date.now() - 7 * DAY_MS), []);
  const begin = from || weekAgo;
  const filters = {
    from_ms: new Date(begin).getTime() || 0,
    to_ms: new Date(until).getTime() || undefined,
    original_topic: useRested(topic) || undefined,
    key: useRested(keyed) || undefined,
  };
  const asked = useAnswer(group ? at`/groups/${group}/dead-letters` : null, {
    query: { ...filters, limit: LIMIT_MAX },
    every_s: 15,
  });
  const replaying = useReplay(group);
  const replay = replaying.answer;
  const [isReplaying, setReplaying] = useState(false);
  const [chosen, setChosen] = useState(new Set());
  const [shown, setShown] = useState(/** @type {any} */ (null));
  const [edited, setEdited] = useState(/** @type {any} */ (null));
  const rows = group ? (asked.answer?.items ?? null) : [];
  const picked = (rows ?? []).filter((/** @type {any} */ row) => chosen.has(rowKey(row)));
  const columns = useMemo(() => columnsFor(setShown), []);
  const options = groups.includes(group) || !group ? groups : [group, ...groups];

  /** @param {any[]} letters */
  async function resend(letters) {
    const goals = [...new Set(letters.map((each) => each.original_topic || words.unknown))].join(", ");
    const says = words.willResend(number(letters.length), letters.length, goals);
    if (!(await confirm({ title: words.resend, says, action: words.resend }))) return;
    const ids = letters.map(rowKey);
    const done = await attempt(
      () => api.post(at`/groups/${group}/dead-letters/resend`, { message_ids: ids }),
      (answer) => words.resent(number(answer.sent), number(answer.left_message_ids.length), answer.left_message_ids.length),
    );
    if (done) setChosen(new Set());
  }

  async function stop() {
    if (!(await confirm({ title: words.replay.stop, says: words.replay.willStop, action: words.replay.stop }))) return;
    if (await attempt(() => api.remove(at`/groups/${group}/dead-letters/replay`), words.replay.stopped)) replaying.reload();
  }

  /** What the list has cut is asked for. @param {any[]} letters */
  async function saveChosen(letters) {
    try {
      const lines = [];
      for (const each of letters) {
        const message = await api.get(at`/messages/${rowKey(each)}`);
        lines.push(`${JSON.stringify({ ...each, message })}\n`);
      }
      download(lines.join(""), `dead-letters-${group}.jsonl`, EXPORT_TYPE);
    } catch (error) {
      tellProblem(error);
    }
  }

  async function saveAll() {
    try {
      const response = await request("GET", at`/groups/${group}/dead-letters/export`, { query: filters, accept: EXPORT_TYPE });
      download(await response.blob(), `dead-letters-${group}.jsonl`, EXPORT_TYPE);
    } catch (error) {
      tellProblem(error);
    }
  }

  return html`
    <${Page} title=${words.title} lead=${words.lead} asked=${group ? asked : topics}>
      <${Filters}>
        <div class="row">
          <${Choice}
            label=${words.group}
            value=${group}
            onChange=${(/** @type {string} */ each) => {
              keep({ group: each });
              setChosen(new Set());
            }}
            options=${[["", words.choose], ...options.map((/** @type {string} */ each) => [each, each])]}
          />
          <${TextField} label=${words.from} type="datetime-local" step="1" value=${begin} onChange=${(/** @type {string} */ each) => keep({ from: each })} />
          <${TextField} label=${words.until} type="datetime-local" step="1" value=${until} onChange=${(/** @type {string} */ each) => keep({ until: each })} />
          <${TextField} label=${words.original} value=${topic} onChange=${(/** @type {string} */ each) => keep({ topic: each })} />
          <${TextField} label=${words.key} isNarrow value=${keyed} onChange=${(/** @type {string} */ each) => keep({ keyed: each })} />
          ${group &&
          html`
            ${
              may("operator") &&
              html`
                <${Button} kind="primary" disabled=${!picked.length} onClick=${() => resend(picked)}>${words.resend}<//>
                <${Button} disabled=${!rows?.length || replay?.ended_ms === null} onClick=${() => setReplaying(true)}>${words.replay.open}<//>
              `
            }
            <${Button} icon="download" disabled=${!rows?.length} onClick=${() => (picked.length ? saveChosen(picked) : saveAll())}>
              ${picked.length ? words.exportChosen : words.exportAll}
            <//>
            <a class="button" href=${link("group", { name: group })}>${words.toGroup}</a>
          `}
        </div>
      <//>
      ${replay && html`<${ReplayCard} replay=${replay} onStop=${stop} />`}
      ${isReplaying &&
      html`
        <${ReplayDialog}
          group=${group}
          chosen=${filters}
          onClose=${() => setReplaying(false)}
          onBegun=${() => {
            tell(words.replay.begun);
            replaying.reload();
          }}
        />
      `}
      ${group
        ? html`
            <${Table}
              caption=${words.title}
              rows=${rows}
              rowKey=${rowKey}
              columns=${columns}
              chosen=${chosen}
              onChoose=${setChosen}
              onOpen=${setShown}
              empty=${words.none}
              isComplete=${!asked.answer?.has_more}
            />
          `
        : html`<div class="empty">${topics.answer && !groups.length ? words.noGroups : words.begin}</div>`}
      ${shown &&
      html`
        <${MessageDialog}
          message=${shown.message}
          onClose=${() => setShown(null)}
          extra=${[
            [words.original, html`<${Name} name=${shown.original_topic || words.unknown} />`],
            [words.tries, number(triesOf(shown))],
          ]}
          actions=${(/** @type {any} */ whole) =>
            may("operator") &&
            html`
              <${Button} disabled=${!whole} onClick=${() => {
                setShown(null);
                setEdited({ ...shown, message: whole });
              }}>${words.edit}<//>
              <${Button} onClick=${() => {
                setShown(null);
                resend([shown]);
              }}>${words.resend}<//>
            `}
        />
      `}
      ${edited &&
      html`
        <${SendDialog}
          title=${words.edit}
          copied=${{ ...edited.message, mqtt_topic: undefined, topic: edited.original_topic, message_id: undefined }}
          send=${(/** @type {any} */ changed) =>
            api.post(at`/groups/${group}/dead-letters/${rowKey(edited)}/resend`, changed)}
          onClose=${() => setEdited(null)}
        />
      `}
    <//>
  `;
}

/** The replay of a group, or its last one; none is no problem. @param {string} group */
function useReplay(group) {
  return useAsking(
    useCallback(
      async (/** @type {AbortSignal} */ abort) => {
        if (!group) return null;
        try {
          return await api.get(at`/groups/${group}/dead-letters/replay`, {}, abort);
        } catch (error) {
          if (error instanceof Problem && error.status === 404) return null;
          throw error;
        }
      },
      [group],
    ),
    REPLAY_S,
    group,
  );
}

/** @param {any} row */
function triesOf(row) {
  const tries = row.message.properties?.RECONSUME_TIME;
  return tries === undefined ? null : Number(tries);
}

/** @param {(row: any) => void} onShow */
const columnsFor = (onShow) => [
  {
    key: "stored_ms",
    title: words.given,
    width: "small",
    value: (/** @type {any} */ row) => row.message.stored_ms,
    show: (/** @type {any} */ row) => html`
      <button type="button" class="link" onClick=${() => onShow(row)}><${Time} ms=${row.message.stored_ms} /></button>
    `,
  },
  { key: "original_topic", title: words.original, show: (/** @type {any} */ row) => html`<${Name} name=${row.original_topic || words.unknown} />` },
  { key: "tries", title: words.tries, isNumber: true, hidden: "narrow", value: triesOf, show: (/** @type {any} */ row) => number(triesOf(row)) },
  {
    key: "keys",
    title: words.keys,
    hidden: "narrow",
    value: (/** @type {any} */ row) => row.message.keys?.join(" ") ?? "",
    show: (/** @type {any} */ row) => html`<${Name} name=${row.message.keys?.join(" ") ?? ""} />`,
  },
  {
    key: "payload",
    title: words.payload,
    width: "wide",
    isSorted: false,
    show: (/** @type {any} */ row) => html`<bdi class="name">${row.message.problem || payloadLine(row.message)}</bdi>`,
  },
  {
    key: "payload_bytes",
    title: words.size,
    isNumber: true,
    hidden: "medium",
    value: (/** @type {any} */ row) => row.message.payload_bytes,
    show: (/** @type {any} */ row) => number(row.message.payload_bytes),
  },
];
