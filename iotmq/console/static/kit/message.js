/** One message with all that is known of it, and the form that sends one. */

import { html, useState } from "../ui.js";
import { texts } from "../texts.js";
import { api, at } from "./api.js";
import { useAnswer } from "./asking.js";
import { Dialog } from "./dialog.js";
import { Check, Choice, FormDialog, LongField, TextField, useForm } from "./form.js";
import { number } from "./format.js";
import { Button, Facts, For, Name, Time, Trouble } from "./parts.js";
import { Payload, payloadLine } from "./payload.js";
import { tell } from "./telling.js";

const words = texts.message;
const WHOLE_BYTES_MAX = 1_048_576;

/**
 * A message over the page; its whole payload is asked for where the list has cut it.
 * @param {{message: any, onClose: () => void, actions?: (whole: any) => any, extra?: [any, any][]}} props
 * actions: for the message with its whole payload; null while there is none
 */
export function MessageDialog({ message, onClose, actions, extra = [] }) {
  const [isSending, setSending] = useState(false);
  const isCut = !message.problem && shownBytes(message) < message.payload_bytes;
  const whole = useAnswer(isCut ? at`/messages/${message.offset_message_id}` : null, {
    query: { payload_bytes_max: WHOLE_BYTES_MAX },
  });
  const shown = whole.answer ?? message;
  const isWhole = !message.problem && shownBytes(shown) >= shown.payload_bytes;
  if (isSending) return html`<${SendDialog} onClose=${onClose} copied=${shown} />`;
  const properties = Object.entries(shown.properties ?? {});
  return html`
    <${Dialog}
      title=${words.title}
      isWide
      onClose=${onClose}
      buttons=${html`
        ${actions?.(isWhole ? shown : null)}
        <${For} role="operator"><${Button} disabled=${!isWhole} onClick=${() => setSending(true)}>${words.again}<//><//>
        <${Button} kind="primary" onClick=${onClose}>${texts.actions.close}<//>
      `}
    >
      <div class="stack">
        <${Facts}
          items=${[
            ...extra,
            shown.mqtt_topic && [words.mqttTopic, html`<${Name} name=${shown.mqtt_topic} />`],
            [words.place, html`<${Name} name=${`${shown.topic} · ${shown.broker} · ${shown.queue} · ${shown.offset}`} />`],
            [words.stored, html`<${Time} ms=${shown.stored_ms} />`],
            [words.born, html`<${Time} ms=${shown.born_ms} />`],
            [words.id, html`<${Name} name=${shown.message_id} />`],
            shown.keys?.length && [words.keys, html`<${Name} name=${shown.keys.join(" ")} />`],
            shown.tags && [words.tags, html`<${Name} name=${shown.tags} />`],
          ].filter(Boolean)}
        />
        ${shown.problem
          ? html`<p class="note">${shown.problem}</p>`
          : html`<${Payload} ...${shown} name=${shown.mqtt_topic || shown.topic} />`}
        ${whole.problem && html`<${Trouble} problem=${whole.problem} />`}
        ${properties.length > 0 &&
        html`
          <details class="details">
            <summary>${words.properties(properties.length)}</summary>
            <${Facts} items=${properties.map(([name, value]) => [html`<${Name} name=${name} />`, html`<${Name} name=${value} />`])} />
          </details>
        `}
      </div>
    <//>
  `;
}

/** The time is a button that shows the message, for those without a mouse. @param {(row: any) => void} onShow */
export const storedColumn = (onShow) => ({
  key: "stored_ms",
  title: words.stored,
  width: "small",
  show: (/** @type {any} */ row) => html`<button type="button" class="link" onClick=${() => onShow(row)}><${Time} ms=${row.stored_ms} /></button>`,
});

export const PAYLOAD_COLUMNS = [
  { key: "payload", title: words.payload, width: "wide", isSorted: false, show: (/** @type {any} */ row) => html`<bdi class="name">${row.problem || payloadLine(row)}</bdi>` },
  { key: "payload_bytes", title: words.size, isNumber: true, hidden: "narrow", show: (/** @type {any} */ row) => number(row.payload_bytes) },
];

/** @param {any} message */
function shownBytes(message) {
  if (message.payload_base64) {
    const padding = message.payload_base64.endsWith("==") ? 2 : message.payload_base64.endsWith("=") ? 1 : 0;
    return (message.payload_base64.length / 4) * 3 - padding;
  }
  return new TextEncoder().encode(message.payload ?? "").length;
}

/**
 * Sends a message: to devices, or to a topic for services; with `copied` as that one was.
 * @param {{onClose: () => void, copied?: any, topic?: string, onSent?: () => void, title?: string, send?: (changed: any) => Promise<any>}} props
 * send: sends it in another way, to a topic
 */
export function SendDialog({ onClose, copied = {}, topic = "", onSent, title, send: sendChanged }) {
  const [to, setTo] = useState(sendChanged || (!copied.mqtt_topic && (copied.topic || topic)) ? "topic" : "devices");
  const [mqttTopic, setMqttTopic] = useState(copied.mqtt_topic ?? "");
  const [brokerTopic, setBrokerTopic] = useState(copied.topic ?? topic);
  const [text, setText] = useState(copied.payload ?? copied.payload_base64 ?? "");
  const [form, setForm] = useState(copied.payload_base64 ? "payload_base64" : "payload");
  const [key, setKey] = useState(copied.keys?.[0] ?? "");
  const [tags, setTags] = useState(copied.tags ?? "");
  const [qos, setQos] = useState("1");
  const [isRetained, setRetained] = useState(false);
  const isForDevices = to === "devices";
  const sent = useForm(
    () =>
      sendChanged
        ? sendChanged({ topic: brokerTopic, key, tags, [form]: text })
        : isForDevices
        ? api.post("/messages", { mqtt_topic: mqttTopic, qos: Number(qos), retain: isRetained, [form]: text })
        : api.post(at`/topics/${brokerTopic}/messages`, { key, tags, [form]: text }),
    (stored) => {
      tell(words.sent(stored.topic, stored.queue, stored.offset));
      onSent?.();
      onClose();
    },
  );

  return html`
    <${FormDialog} form=${sent} title=${title ?? words.send} action=${words.send} isWide onClose=${onClose}>
      <div class="row">
        ${!sendChanged &&
        html`<${Choice}
          label=${words.to}
          value=${to}
          onChange=${setTo}
          isNarrow
          options=${[
            ["devices", words.toDevices],
            ["topic", words.toTopic],
          ]}
        />`}
        ${isForDevices
          ? html`
              <${TextField} label=${words.mqttTopic} value=${mqttTopic} onChange=${setMqttTopic} required wrong=${sent.of("/mqtt_topic")} />
              <${Choice} label=${words.qos} value=${qos} onChange=${setQos} isNarrow options=${[["0", "0"], ["1", "1"], ["2", "2"]]} />
            `
          : html`
              <${TextField} label=${words.topic} value=${brokerTopic} onChange=${setBrokerTopic} required wrong=${sent.of("/topic")} />
              <${TextField} label=${words.key} value=${key} onChange=${setKey} wrong=${sent.of("/key")} />
              <${TextField} label=${words.tags} value=${tags} onChange=${setTags} isNarrow wrong=${sent.of("/tags")} />
            `}
      </div>
      <${LongField} label=${words.payload} value=${text} onChange=${setText} wrong=${sent.of(`/${form}`)} />
      <div class="row">
        <${Choice}
          label=${words.form}
          value=${form}
          onChange=${setForm}
          isNarrow
          options=${[
            ["payload", texts.payload.kinds.text],
            ["payload_base64", "Base64"],
          ]}
        />
        ${isForDevices && html`<${Check} label=${words.retain} value=${isRetained} onChange=${setRetained} hint=${words.retainHint} />`}
      </div>
      ${copied.message_id && html`<p class="hint">${words.againHint}</p>`}
    <//>
  `;
}
