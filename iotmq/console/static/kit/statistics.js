/** What was counted for a topic or a group, minute by minute, hour by hour, day by day; kept over restarts. */

import { html, useState } from "../ui.js";
import { texts } from "../texts.js";
import { useAnswer } from "./asking.js";
import { Chart } from "./chart.js";
import { rate } from "./format.js";
import { Tabs } from "./parts.js";

const words = texts.statistics;
const STEPS = /** @type {const} */ (["minute", "hour", "day"]);
/** @param {{kind: "topics" | "groups" | "clients", name: string}} props */
export function StatisticsChart({ kind, name }) {
  const [step, setStep] = useState("minute");
  const asked = useAnswer(`/statistics/${kind}`, { query: { step, name: [name] }, every_s: step === "minute" ? 20 : 120 });
  // Brokers of an older version keep none.
  if (asked.problem && !asked.answer) return null;
  const answer = asked.answer;
  const counts = answer?.steps[0]?.counts ?? {};
  const step_s = (answer?.step_ms ?? 60_000) / 1000;
  const times_s = Array.from({ length: answer?.count ?? 0 }, (_, index) => answer.from_ms / 1000 + index * step_s);
  const series = Object.entries(words.counts[kind]).map(([each, label]) => ({
    label,
    values: (counts[each] ?? times_s.map(() => null)).map((/** @type {number | null} */ count) => (count === null ? null : count / step_s)),
  }));
  return html`
    <${Chart}
      title=${words.title}
      times_s=${times_s}
      series=${series}
      format=${rate}
      actions=${html`<${Tabs} label=${words.step} value=${step} onChange=${setStep} tabs=${STEPS.map((each) => [each, words.steps[each]])} />`}
    />
  `;
}
