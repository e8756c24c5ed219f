/** A replay of the dead letters of a group: the form that begins one, and how far it is. */

import { html, useState } from "../ui.js";
import { texts } from "../texts.js";
import { api, at } from "./api.js";
import { Check, FormDialog, TextField, useForm } from "./form.js";
import { number } from "./format.js";
import { Button, Card, Facts, For, Name, State, Time, Words } from "./parts.js";

const words = texts.deadLetters.replay;

/**
 * Asks for the rate, and begins.
 * @param {{group: string, chosen: {from_ms: number, to_ms?: number, original_topic?: string, key?: string}, onClose: () => void, onBegun: () => void}} props
 */
export function ReplayDialog({ group, chosen, onClose, onBegun }) {
  const [perSecond, setPerSecond] = useState("10");
  const [isAgain, setAgain] = useState(false);
  const begun = useForm(
    () =>
      api.post(at`/groups/${group}/dead-letters/replay`, {
        ...chosen,
        per_second: perSecond === "" ? null : Number(perSecond),
        is_again: isAgain,
      }),
    () => {
      onBegun();
      onClose();
    },
  );

  return html`
    <${FormDialog} form=${begun} title=${words.title} action=${words.begin} onClose=${onClose}>
      <p><${Words} text=${words.says(group, chosen.original_topic ?? "", chosen.key ?? "")} /></p>
      <${TextField}
        label=${words.perSecond}
        type="number"
        min="0.01"
        max="100000"
        step="any"
        value=${perSecond}
        onChange=${setPerSecond}
        hint=${words.perSecondHint}
        wrong=${begun.of("/per_second")}
        isNarrow
      />
      <${Check} label=${words.again} value=${isAgain} onChange=${setAgain} hint=${words.againHint} />
    <//>
  `;
}

const KINDS = { running: "good", waiting: "warn", done: "quiet", stopped: "quiet", failed: "bad" };

/**
 * How far a replay is.
 * @param {{replay: any, onStop: () => void}} props
 */
export function ReplayCard({ replay, onStop }) {
  const isOver = replay.ended_ms !== null;
  const state = /** @type {keyof typeof KINDS} */ (replay.state);
  return html`
    <${Card}
      title=${words.heading}
      actions=${!isOver && html`<${For} role="operator"><${Button} onClick=${onStop}>${words.stop}<//><//>`}
    >
      <div class="stack">
        <div class="bar-cell">
          <${State} kind=${KINDS[state]}>${words.states[state]}<//>
          <progress max=${Math.max(replay.total, 1)} value=${replay.total ? replay.seen : 1} aria-label=${words.heading}></progress>
          <span>${words.seen(number(replay.seen), number(replay.total))}</span>
        </div>
        ${replay.problem && html`<p class="note"><${Words} text=${replay.problem} /></p>`}
        <${Facts}
          items=${[
            [words.sent, number(replay.sent)],
            [words.left, number(replay.left)],
            [words.perSecond, replay.per_second === null ? words.unpaced : number(replay.per_second)],
            [words.by, html`<${Name} name=${replay.by} />`],
            [words.began, html`<${Time} ms=${replay.started_ms} />`],
            isOver && [words.ended, html`<${Time} ms=${replay.ended_ms} />`],
          ].filter(Boolean)}
        />
      </div>
    <//>
  `;
}
