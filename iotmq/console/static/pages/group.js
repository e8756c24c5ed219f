/** One group: how far it is in each queue, who is in it, and moving it. */

import {
  Ago,
  api,
  at,
  attempt,
  Button,
  Card,
  Choice,
  confirm,
  Dialog,
  Figures,
  For,
  Form,
  go,
  html,
  inputTime,
  link,
  Name,
  number,
  Page,
  Problem,
  rate,
  Table,
  tell,
  TextField,
  texts,
  useAnswer,
  useAsking,
  useCallback,
  useForm,
  useState,
} from "../kit.js";
import { StatisticsChart } from "../kit/statistics.js";

const words = texts.group;

const QUEUE_COLUMNS = [
  {
    key: "topic",
    title: words.topic,
    width: "wide",
    show: (/** @type {any} */ row) => html`<${Name} name=${row.topic} to=${link("topic", { name: row.topic })} />`,
  },
  { key: "broker", title: words.broker, hidden: "narrow", show: (/** @type {any} */ row) => html`<${Name} name=${row.broker} />` },
  { key: "queue", title: words.queue, isNumber: true },
  { key: "behind", title: words.behind, isNumber: true, show: (/** @type {any} */ row) => number(row.behind) },
  { key: "reader", title: words.reader, hidden: "narrow", show: (/** @type {any} */ row) => (row.reader ? html`<${Name} name=${row.reader} />` : "–") },
  { key: "consumed", title: words.consumed, isNumber: true, hidden: "medium", show: (/** @type {any} */ row) => number(row.consumed) },
  { key: "end", title: words.end, isNumber: true, hidden: "medium", show: (/** @type {any} */ row) => number(row.end) },
  { key: "last_consumed_ms", title: words.last, hidden: "narrow", show: (/** @type {any} */ row) => html`<${Ago} ms=${row.last_consumed_ms} />` },
];

const CONSUMER_COLUMNS = [
  { key: "client_id", title: words.client, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.client_id} />` },
  { key: "address", title: words.address, show: (/** @type {any} */ row) => html`<${Name} name=${row.address} />` },
  { key: "queues", title: words.queues, isNumber: true, show: (/** @type {any} */ row) => number(row.queues) },
  { key: "language", title: words.language, hidden: "narrow" },
];

const queueKey = (/** @type {any} */ row) => `${row.topic} ${row.broker} ${row.queue}`;

/** @param {{name?: string}} props */
export default function Group({ name = "" }) {
  const asked = useAnswer(at`/groups/${name}`, { every_s: 5 });
  const [isMoving, setMoving] = useState(false);
  const detail = asked.answer;
  const readers = useReaders(name, detail?.consumers);
  const group = detail?.group;
  const queues = detail?.queues.map((/** @type {any} */ each) => ({ ...each, reader: readers.of.get(queueKey(each)) ?? null }));
  const consumers = detail?.consumers.map((/** @type {any} */ each) => ({ ...each, queues: readers.count.get(each.client_id) ?? null }));
  const topics = [...new Set(/** @type {string[]} */ (detail?.queues.map((/** @type {any} */ each) => each.topic) ?? []))];
  const lastConsumed = Math.max(0, ...(detail?.queues ?? []).map((/** @type {any} */ each) => each.last_consumed_ms));

  /** @param {boolean} isConsuming */
  async function pause(isConsuming) {
    const [title, says] = isConsuming ? [words.resume, words.willResume(name)] : [words.pause, words.willPause(name)];
    if (!(await confirm({ title, says, action: title, isDangerous: !isConsuming }))) return;
    await attempt(() => api.patch(at`/groups/${name}`, { is_consuming: isConsuming }), isConsuming ? words.resumed : words.paused);
    asked.reload();
  }

  async function remove() {
    const says = words.willDelete(number(group.behind), number(group.members));
    if (!(await confirm({ title: words.remove, says, action: words.remove, isDangerous: true, typed: name }))) return;
    if (await attempt(() => api.remove(at`/groups/${name}`), words.removed)) go("groups");
  }

  return html`
    <${Page}
      title=${html`<${Name} name=${name} />`}
      back=${["groups", texts.groups.title]}
      asked=${asked}
      actions=${
        group &&
        html`
          <a class="button" href=${link("dead-letters", { group: name })}>${texts.deadLetters.title}</a>
          <${For} role="operator">
            ${topics.length > 0 && html`<${Button} onClick=${() => setMoving(true)}>${words.move}<//>`}
            <${Button} icon="pause" onClick=${() => pause(false)}>${words.pause}<//>
            <${Button} icon="play" onClick=${() => pause(true)}>${words.resume}<//>
          <//>
          <${For} role="administrator"><${Button} kind="danger" onClick=${remove}>${words.remove}<//><//>
        `
      }
    >
      ${group &&
      html`
        <${Figures}
          items=${[
            { label: words.behind, value: number(group.behind), state: group.behind && !group.members ? "warn" : "" },
            { label: words.rate, value: rate(group.consumed_per_s) },
            { label: words.members, value: number(group.members), note: group.model },
            { label: words.last, value: html`<${Ago} ms=${lastConsumed} />` },
          ]}
        />
        <${StatisticsChart} kind="groups" name=${name} />
        <${Card} title=${words.queuesTitle} isFlush>
          <${Table}
            caption=${words.queuesTitle}
            rows=${queues}
            rowKey=${queueKey}
            columns=${QUEUE_COLUMNS}
            sort=${{ key: "behind", isDescending: true }}
            empty=${words.noQueues}
            isTall=${queues.length > 24}
          />
        <//>
        <${Card} title=${words.consumersTitle} isFlush>
          <${Table}
            caption=${words.consumersTitle}
            rows=${consumers}
            rowKey=${(/** @type {any} */ row) => row.client_id}
            columns=${CONSUMER_COLUMNS}
            empty=${words.noConsumers}
            isTall=${consumers.length > 24}
          />
        <//>
      `}
      ${isMoving && html`<${Move} name=${name} topics=${topics} onClose=${() => setMoving(false)} onDone=${asked.reload} />`}
    <//>
  `;
}

const MOVE_COLUMNS = [
  { key: "broker", title: words.broker, show: (/** @type {any} */ row) => html`<${Name} name=${row.broker} />` },
  { key: "queue", title: words.queue, isNumber: true },
  { key: "before", title: words.before, isNumber: true, show: (/** @type {any} */ row) => number(row.before) },
  { key: "after", title: words.after, isNumber: true, show: (/** @type {any} */ row) => number(row.after) },
];

/** Moves a group, after a look at what that does. @param {{name: string, topics: string[], onClose: () => void, onDone: () => void}} props */
function Move({ name, topics, onClose, onDone }) {
  const [topic, setTopic] = useState(topics[0]);
  const [to, setTo] = useState("end");
  const [at_time, setTime] = useState(inputTime(Date.now() - 3_600_000));
  const [preview, setPreview] = useState(/** @type {any} */ (null));
  const place = to === "end" ? { to_end: true } : { to_ms: new Date(at_time).getTime() };
  const form = useForm(
    (isPreview) => api.post(at`/groups/${name}/offsets`, { topic, ...place, is_preview: isPreview }),
    (moves, isPreview) => {
      if (isPreview) {
        setPreview(moves);
        return;
      }
      tell(words.moved(number(moves.skipped), number(moves.repeated)));
      onDone();
      onClose();
    },
  );

  /** @param {(value: any) => void} set */
  const changing = (set) => (/** @type {any} */ value) => {
    set(value);
    setPreview(null);
  };

  return html`
    <${Dialog}
      title=${words.moveNow}
      isWide
      onClose=${onClose}
      buttons=${html`
        <${Button} onClick=${onClose}>${texts.actions.cancel}<//>
        ${preview
          ? html`<${Button} kind="danger" disabled=${form.isBusy} onClick=${() => form.send(false)}>${words.moveNow}<//>`
          : html`<button type="submit" form=${form.id} class="button is-primary" disabled=${form.isBusy}>${words.preview}</button>`}
      `}
    >
      <${Form} form=${form} onSubmit=${() => form.send(true)}>
        <p class="hint">${words.moveHint}</p>
        <div class="row">
          <${Choice} label=${words.topic} value=${topic} onChange=${changing(setTopic)} options=${topics.map((each) => [each, each])} />
          <${Choice}
            label=${words.to}
            value=${to}
            onChange=${changing(setTo)}
            options=${[
              ["end", words.toEnd],
              ["time", words.toTime],
            ]}
          />
          ${to === "time" &&
          html`<${TextField} label=${words.time} type="datetime-local" step="1" value=${at_time} onChange=${changing(setTime)} required />`}
        </div>
      <//>
      ${preview &&
      html`
        <div class="stack" role="status">
          <p class="note">${words.willMove(number(preview.skipped), number(preview.repeated))}</p>
          <${Table} caption=${words.preview} rows=${preview.items} rowKey=${(/** @type {any} */ row) => `${row.broker} ${row.queue}`} columns=${MOVE_COLUMNS} isTall=${false} />
        </div>
      `}
    <//>
  `;
}

/**
 * Who reads which queue: each consumer is asked, through its broker.
 * @param {string} name @param {any[] | undefined} consumers
 * @returns {{of: Map<string, string>, count: Map<string, number>}}
 */
function useReaders(name, consumers) {
  const ids = JSON.stringify((consumers ?? []).map((each) => each.client_id).slice(0, READERS_MAX));
  const ask = useCallback(
    async (/** @type {AbortSignal} */ abort) => {
      const of = new Map();
      const count = new Map();
      for (const id of JSON.parse(ids)) {
        try {
          const answer = await api.get(at`/groups/${name}/consumers/${id}`, {}, abort);
          count.set(id, answer.queues.length);
          for (const each of answer.queues) of.set(queueKey(each), id);
        } catch (error) {
          // One that does not answer is shown without its queues.
          if (!(error instanceof Problem)) throw error;
        }
      }
      return { of, count };
    },
    [name, ids],
  );
  return useAsking(ask, 15, name).answer ?? { of: new Map(), count: new Map() };
}

const READERS_MAX = 32;
