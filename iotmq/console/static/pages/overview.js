/** The gateway at a glance: what is connected, what passes, what is behind. */

import {
  api,
  byteRate,
  Card,
  Figures,
  html,
  keep,
  link,
  Name,
  number,
  Page,
  rate,
  short,
  State,
  Table,
  Tabs,
  texts,
  useAnswer,
  useAsking,
  useCallback,
  useList,
  useMemo,
} from "../kit.js";
import { Chart } from "../kit/chart.js";

const words = texts.overview;
/** Spans of the charts: seconds, the step of the history, how often it is asked for. */
const SPANS = /** @type {Record<string, [number, number, number]>} */ ({
  hour: [3600, 10, 10],
  day: [86_400, 60, 60],
  week: [604_800, 1200, 300],
});
/** Processes whose numbers are summed up. */
const PROCESSES_MAX = 16;
const GROUPS_SHOWN = 8;

/** Metric -> which processes have it. */
const METRICS = {
  front_ends: [
    "iotmq_mqtt_connections",
    "iotmq_mqtt_published_total",
    "iotmq_mqtt_delivered_total",
    "iotmq_mqtt_durable_delivered_total",
    "iotmq_mqtt_share_delivered_total",
    "iotmq_mqtt_received_bytes_total",
    "iotmq_mqtt_sent_bytes_total",
    "iotmq_mqtt_dropped_total",
  ],
  brokers: ["iotmq_broker_records_total", "iotmq_broker_pulled_records_total", "iotmq_broker_sessions"],
};

const GROUP_COLUMNS = [
  {
    key: "name",
    title: texts.groups.name,
    width: "wide",
    show: (/** @type {any} */ row) => html`<${Name} name=${row.name} to=${link("group", { name: row.name })} />`,
  },
  { key: "behind", title: texts.groups.behind, isNumber: true, show: (/** @type {any} */ row) => number(row.behind) },
  { key: "members", title: texts.groups.members, isNumber: true, show: (/** @type {any} */ row) => number(row.members) },
];

const PLACE_COLUMNS = [
  { key: "name", title: words.name, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.name} />` },
  { key: "kind", title: words.kind },
  { key: "state", title: words.state, show: (/** @type {any} */ row) => html`<${State} kind=${row.good ? "good" : "warn"}>${row.state}<//>` },
];

/** @param {{span?: string}} props */
export default function Overview({ span = "hour" }) {
  const brokers = useAnswer("/brokers", { every_s: 15 });
  const frontEnds = useAnswer("/front-ends", { every_s: 15 });
  const topics = useList("/topics", { every_s: 60 });
  const groups = useList("/groups", { every_s: 15, page_rows: 100, rows_max: 100 });
  const alarms = useList("/alarms", { every_s: 15, page_rows: 100, rows_max: 100 });
  const firing = alarms.rows?.filter((each) => each.state === "firing");
  const masters = (brokers.answer?.items ?? []).filter((/** @type {any} */ each) => each.broker_id === 0);
  const history = useHistory(
    span,
    (frontEnds.answer?.items ?? []).map((/** @type {any} */ each) => each.name),
    masters.map((/** @type {any} */ each) => each.name),
  );
  const draw = history.answer;
  const now = (/** @type {string[]} */ ...names) => draw && newest(summed(draw, names));
  const behind = (groups.rows ?? []).reduce((sum, each) => sum + each.behind, 0);
  const late = useMemo(
    () => [...(groups.rows ?? [])].filter((each) => each.behind).sort((a, b) => b.behind - a.behind).slice(0, GROUPS_SHOWN),
    [groups.rows],
  );
  const places = [
    ...(brokers.answer?.items ?? []).map((/** @type {any} */ each) => ({
      name: each.broker_id ? `${each.name} · ${each.broker_id}` : each.name,
      kind: each.broker_id ? words.replica : words.broker,
      state: words.registered,
      good: true,
    })),
    ...(frontEnds.answer?.items ?? []).map((/** @type {any} */ each) => ({
      name: each.name,
      kind: words.frontEnd,
      state: each.is_draining ? words.draining : words.serving,
      good: !each.is_draining,
    })),
  ];
  const charts = [
    [words.messages, rate, [[words.published, "iotmq_mqtt_published_total"], [words.delivered, ...DELIVERED]]],
    [words.connections, short, [[words.connected, "iotmq_mqtt_connections"], [words.sessions, "iotmq_broker_sessions"]]],
    [words.bytes, byteRate, [[words.received, "iotmq_mqtt_received_bytes_total"], [words.sent, "iotmq_mqtt_sent_bytes_total"]]],
    [words.records, rate, [[words.stored, "iotmq_broker_records_total"], [words.pulled, "iotmq_broker_pulled_records_total"], [words.dropped, "iotmq_mqtt_dropped_total"]]],
  ];

  return html`
    <${Page}
      title=${words.title}
      asked=${brokers}
      actions=${html`
        <${Tabs}
          label=${words.span}
          value=${span}
          onChange=${(/** @type {string} */ each) => keep({ span: each === "hour" ? "" : each })}
          tabs=${Object.keys(SPANS).map((each) => [each, words.spans[/** @type {"hour"} */ (each)]])}
        />
      `}
    >
      <${Figures}
        items=${[
          { label: words.connected, value: short(now("iotmq_mqtt_connections")) },
          { label: words.published, value: rate(now("iotmq_mqtt_published_total")) },
          { label: words.delivered, value: rate(now(...DELIVERED)) },
          firing && { label: texts.alarms.title, value: number(firing.length), href: link("alarms"), state: alarmState(firing) },
          { label: texts.topics.title, value: number(topics.rows?.length), href: link("topics") },
          { label: words.behind, value: short(behind), note: groups.isComplete ? "" : words.firstGroups, state: late.some((each) => !each.members) ? "warn" : "", href: link("groups") },
        ].filter(Boolean)}
      />
      <div class="charts">
        ${charts.map(
          ([title, format, lines]) => html`
            <${Chart}
              key=${title}
              title=${title}
              format=${format}
              times_s=${draw?.times_s ?? []}
              series=${/** @type {any} */ (lines).map((/** @type {string[]} */ [label, ...names]) => ({ label, values: draw ? summed(draw, names) : [] }))}
            />
          `,
        )}
      </div>
      <div class="columns">
        <${Card} title=${words.late} isFlush>
          <${Table}
            caption=${words.late}
            rows=${groups.rows && late}
            rowKey=${(/** @type {any} */ row) => row.name}
            href=${(/** @type {any} */ row) => link("group", { name: row.name })}
            columns=${GROUP_COLUMNS}
            empty=${words.noneLate}
            isTall=${false}
          />
        <//>
        <${Card} title=${words.processes} isFlush>
          <${Table}
            caption=${words.processes}
            rows=${brokers.answer && frontEnds.answer && places}
            rowKey=${(/** @type {any} */ row) => `${row.kind} ${row.name}`}
            columns=${PLACE_COLUMNS}
            isTall=${places.length > 8}
          />
        <//>
      </div>
    <//>
  `;
}

/** The colour of what is worst. @param {any[]} rows */
function alarmState(rows) {
  const levels = rows.map((each) => each.level);
  return levels.includes("critical") ? "bad" : levels.includes("warning") ? "warn" : "";
}

const DELIVERED = ["iotmq_mqtt_delivered_total", "iotmq_mqtt_durable_delivered_total", "iotmq_mqtt_share_delivered_total"];

/**
 * @typedef {{times_s: number[], of: Map<string, (number | null)[]>}} Drawn
 * @param {string} span @param {string[]} frontEnds @param {string[]} brokers
 */
function useHistory(span, frontEnds, brokers) {
  const [length_s, step_s, every_s] = SPANS[span] ?? SPANS.hour;
  const wanted = JSON.stringify([
    ...frontEnds.slice(0, PROCESSES_MAX).map((process) => ({ process, series: METRICS.front_ends })),
    ...brokers.slice(0, PROCESSES_MAX).map((process) => ({ process, series: METRICS.brokers })),
  ]);
  const ask = useCallback(
    async (/** @type {AbortSignal} */ abort) => {
      const end_s = Math.floor(Date.now() / 1000 / step_s) * step_s;
      const times_s = Array.from({ length: length_s / step_s }, (_, index) => end_s - length_s + index * step_s);
      /** @type {Map<string, (number | null)[]>} */
      const of = new Map();
      const query = { from_ms: (end_s - length_s) * 1000, to_ms: 0, step_s };
      await Promise.all(
        JSON.parse(wanted).map(async (/** @type {any} */ each) => {
          const answer = await api.get("/history", { ...query, ...each }, abort);
          const first = Math.round(answer.from_ms / 1000 / step_s) - times_s[0] / step_s;
          for (const series of answer.items) {
            const metric = series.name.replace(/\{.*/s, "");
            const values = of.get(metric) ?? times_s.map(() => null);
            series.values.forEach((/** @type {number | null} */ value, /** @type {number} */ index) => {
              const place = first + index;
              if (value !== null && place >= 0 && place < values.length) values[place] = (values[place] ?? 0) + value;
            });
            of.set(metric, values);
          }
        }),
      );
      return { times_s, of };
    },
    [wanted, length_s, step_s],
  );
  return useAsking(ask, every_s);
}

/** @param {Drawn} drawn @param {string[]} names @returns {(number | null)[]} */
function summed(drawn, names) {
  const found = names.map((each) => drawn.of.get(each)).filter((each) => each !== undefined);
  return drawn.times_s.map((_, index) => {
    const values = found.map((each) => each[index]).filter((each) => each !== null);
    return values.length ? values.reduce((sum, each) => /** @type {number} */ (sum) + /** @type {number} */ (each), 0) : null;
  });
}

/** @param {(number | null)[]} values */
const newest = (values) => values.findLast((each) => each !== null) ?? null;
