/** One topic: its queues, what they hold, who reads them, and changes of it. */

import {
  api,
  at,
  attempt,
  Button,
  Card,
  Check,
  confirm,
  Figures,
  For,
  FormDialog,
  go,
  html,
  link,
  may,
  Name,
  number,
  Page,
  SendDialog,
  State,
  Table,
  TextField,
  texts,
  Time,
  useAnswer,
  useAsking,
  useCallback,
  useForm,
  useState,
} from "../kit.js";
import { StatisticsChart } from "../kit/statistics.js";

const words = texts.topic;
/** Queues whose oldest message is asked for: a request each. */
const OLDEST_QUEUES_MAX = 32;
const STATES = /** @type {Record<string, "good" | "warn" | "quiet">} */ ({ open: "good", frozen: "warn", closed: "quiet" });

const queueKey = (/** @type {any} */ row) => `${row.broker} ${row.queue}`;

const QUEUE_COLUMNS = [
  { key: "broker", title: words.broker, show: (/** @type {any} */ row) => html`<${Name} name=${row.broker} />` },
  { key: "queue", title: words.queue, isNumber: true },
  {
    key: "state",
    title: words.state,
    show: (/** @type {any} */ row) => html`<${State} kind=${STATES[row.state] ?? "quiet"}>${row.state}<//>`,
  },
  { key: "held", title: words.held, isNumber: true, show: (/** @type {any} */ row) => number(row.held) },
  { key: "oldest_ms", title: words.oldest, hidden: "narrow", show: (/** @type {any} */ row) => html`<${Time} ms=${row.oldest_ms} />` },
  { key: "last_stored_ms", title: words.newest, hidden: "narrow", show: (/** @type {any} */ row) => html`<${Time} ms=${row.last_stored_ms} />` },
  { key: "end", title: words.end, isNumber: true, hidden: "medium", show: (/** @type {any} */ row) => number(row.end) },
  { key: "most_behind", title: words.mostBehind, isNumber: true, show: (/** @type {any} */ row) => number(row.most_behind) },
];

const GROUP_COLUMNS = [
  {
    key: "name",
    title: words.group,
    width: "wide",
    show: (/** @type {any} */ row) => html`<${Name} name=${row.name} to=${link("group", { name: row.name })} />`,
  },
  { key: "queues", title: words.queues, isNumber: true, show: (/** @type {any} */ row) => number(row.queues) },
  { key: "behind", title: words.behind, isNumber: true, show: (/** @type {any} */ row) => number(row.behind) },
];

/** @param {{name?: string}} props */
export default function Topic({ name = "" }) {
  const asked = useAnswer(at`/topics/${name}`, { every_s: 5 });
  const [chosen, setChosen] = useState(new Set());
  const [open, setOpen] = useState("");
  const oldest = useOldest(name, asked.answer?.queues);
  const detail = asked.answer;
  const topic = detail?.topic;
  const queues = detail?.queues.map((/** @type {any} */ each) => ({
    ...each,
    held: each.end - each.begin,
    oldest_ms: each.end > each.begin ? (oldest.get(queueKey(each)) ?? null) : null,
    most_behind: Math.max(0, ...Object.values(each.behind).map(Number)),
  }));
  const picked = queues?.filter((/** @type {any} */ each) => chosen.has(queueKey(each))) ?? [];

  /** @param {boolean} isFrozen */
  async function freeze(isFrozen) {
    const names = picked.map((/** @type {any} */ each) => words.queueOf(each.queue, each.broker)).join(", ");
    const question = isFrozen
      ? { title: words.freeze, says: words.willFreeze(names), action: words.freeze, isDangerous: true }
      : { title: words.thaw, says: words.willThaw(names), action: words.thaw };
    if (!(await confirm(question))) return;
    const brokers = [...new Set(picked.map((/** @type {any} */ each) => each.broker))];
    const done = await attempt(async () => {
      for (const broker of brokers) {
        const numbers = picked.filter((/** @type {any} */ each) => each.broker === broker).map((/** @type {any} */ each) => each.queue);
        await api.put(at`/topics/${name}/frozen`, { queues: numbers, is_frozen: isFrozen, brokers: [broker] });
      }
    }, isFrozen ? words.frozen : words.thawed);
    if (done) setChosen(new Set());
    asked.reload();
  }

  async function remove() {
    const held = queues.reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + each.held, 0);
    const says = words.willDelete(number(held), number(groupsOf(queues).length), topic.brokers.join(", "));
    if (!(await confirm({ title: words.remove, says, action: words.remove, isDangerous: true, typed: name }))) return;
    if (await attempt(() => api.remove(at`/topics/${name}`), words.removed)) go("topics");
  }

  return html`
    <${Page}
      title=${html`<${Name} name=${name} />`}
      back=${["topics", texts.topics.title]}
      asked=${asked}
      actions=${
        topic &&
        html`
          <a class="button" href=${link("messages", { topic: name })}>${words.browse}</a>
          <${For} role="operator">
            ${!topic.is_system && html`<${Button} onClick=${() => setOpen("send")}>${words.send}<//>`}
            <${Button} onClick=${() => setOpen("change")}>${words.change}<//>
          <//>
          <${For} role="administrator"><${Button} kind="danger" onClick=${remove}>${words.remove}<//><//>
        `
      }
    >
      ${topic &&
      html`
        <${Figures}
          items=${[
            { label: words.held, value: number(sum(queues, "held")) },
            { label: words.queues, value: number(topic.queues), note: topic.brokers.join(", ") },
            { label: words.stored, value: number(sum(queues, "end")), note: words.storedNote },
            { label: words.groups, value: number(groupsOf(queues).length) },
          ]}
        />
        <${StatisticsChart} kind="topics" name=${name} />
        <${Card}
          title=${words.queuesTitle}
          isFlush
          actions=${
            may("operator") &&
            html`
              <${Button} disabled=${!picked.some((/** @type {any} */ each) => each.state === "open")} onClick=${() => freeze(true)}>${words.freeze}<//>
              <${Button} disabled=${!picked.some((/** @type {any} */ each) => each.state === "frozen")} onClick=${() => freeze(false)}>${words.thaw}<//>
            `
          }
        >
          <${Table}
            caption=${words.queuesTitle}
            rows=${queues}
            rowKey=${queueKey}
            columns=${QUEUE_COLUMNS}
            chosen=${may("operator") ? chosen : undefined}
            onChoose=${setChosen}
            isTall=${queues.length > 24}
          />
        <//>
        <${Card} title=${words.groupsTitle} isFlush>
          <${Table}
            caption=${words.groupsTitle}
            rows=${groupsOf(queues)}
            rowKey=${(/** @type {any} */ row) => row.name}
            href=${(/** @type {any} */ row) => link("group", { name: row.name })}
            columns=${GROUP_COLUMNS}
            sort=${{ key: "behind", isDescending: true }}
            empty=${words.noGroups}
            isTall=${false}
          />
        <//>
      `}
      ${open === "send" && html`<${SendDialog} topic=${name} onClose=${() => setOpen("")} onSent=${asked.reload} />`}
      ${open === "change" && html`<${Scale} topic=${topic} onClose=${() => setOpen("")} onDone=${asked.reload} />`}
    <//>
  `;
}

/** @param {{topic: any, onClose: () => void, onDone: () => void}} props */
function Scale({ topic, onClose, onDone }) {
  const each = Math.ceil(topic.queues / topic.brokers.length);
  const [count, setCount] = useState(String(each));
  const [isForced, setForced] = useState(false);
  const isFewer = Number(count) < each;
  const form = useForm(
    () => api.put(at`/topics/${topic.name}/queues`, { queues: Number(count), is_forced: isFewer && isForced }),
    () => {
      onDone();
      onClose();
    },
  );

  return html`
    <${FormDialog}
      form=${form}
      title=${words.change}
      action=${isFewer ? words.fewer(each - Number(count)) : words.more(Number(count) - each)}
      isDangerous=${isFewer}
      onClose=${onClose}
    >
      <${TextField}
        label=${words.queuesOfEach}
        type="number"
        min="1"
        max="1024"
        required
        value=${count}
        onChange=${setCount}
        hint=${isFewer ? words.fewerHint : words.moreHint}
        wrong=${form.of("/queues")}
      />
      ${isFewer && html`<${Check} label=${words.forced} hint=${words.forcedHint} value=${isForced} onChange=${setForced} />`}
    <//>
  `;
}

/**
 * When the oldest message of each queue was stored: the first message of each is asked for.
 * @param {string} name @param {any[] | undefined} queues @returns {Map<string, number>}
 */
function useOldest(name, queues) {
  const wanted = (queues ?? []).filter((each) => each.end > each.begin).slice(0, OLDEST_QUEUES_MAX);
  const words = JSON.stringify(wanted.map((each) => [each.broker, each.queue, each.begin]));
  const ask = useCallback(
    async (/** @type {AbortSignal} */ abort) => {
      const found = new Map();
      for (const [broker, queue, offset] of JSON.parse(words)) {
        const query = { broker, queue, offset, limit: 1, payload_bytes_max: 0 };
        const answer = await api.get(at`/topics/${name}/messages`, query, abort);
        if (answer.items.length) found.set(queueKey({ broker, queue }), answer.items[0].stored_ms);
      }
      return found;
    },
    [name, words],
  );
  return useAsking(ask, 0, name).answer ?? new Map();
}

/** @param {any[]} rows @param {string} key */
const sum = (rows, key) => rows.reduce((total, row) => total + row[key], 0);

/** The groups of a topic out of its queues. @param {any[]} queues */
function groupsOf(queues) {
  /** @type {Map<string, {name: string, queues: number, behind: number}>} */
  const found = new Map();
  for (const queue of queues) {
    for (const [name, behind] of Object.entries(queue.behind)) {
      const group = found.get(name) ?? { name, queues: 0, behind: 0 };
      group.queues += 1;
      group.behind += Number(behind);
      found.set(name, group);
    }
  }
  return [...found.values()];
}
