/** A client of MQTT in this browser: it connects to a listener, subscribes, publishes, and shows what comes. */

import {
  Button,
  Card,
  Check,
  Choice,
  Dialog,
  Facts,
  Form,
  html,
  LongField,
  Name,
  number,
  Page,
  Payload,
  PAYLOAD_COLUMNS,
  Problem,
  State,
  Table,
  TextField,
  texts,
  Time,
  time,
  useAnswer,
  useEffect,
  useForm,
  useMemo,
  useRef,
  useState,
  visible,
} from "../kit.js";
import { useNewest } from "../kit/newest.js";
import { MqttConnection } from "../mqtt/client.js";
import { MqttError } from "../mqtt/packets.js";
import { words } from "../texts/websocket.js";

const REFUSED = 0x80;
/** All messages that are shown, each with what it costs beside its payload. */
const SHOWN_BYTES_MAX = 16 * 1024 * 1024;
const ROW_BYTES = 32 * 1024;
const QOS = ["0", "1", "2"].map((each) => [each, each]);

const sizeOf = (/** @type {any} */ row) => row.payload_bytes + ROW_BYTES;
const rowKey = (/** @type {any} */ row) => row.key;

export default function WebSocketClient() {
  const asked = useAnswer("/websocket-listeners");
  const listeners = asked.answer?.items;
  return html`
    <${Page} title=${words.title} lead=${words.lead} asked=${asked}>
      ${listeners?.length === 0 && html`<div class="empty"><p>${words.noListener}</p><p class="hint">${words.noListenerHint}</p></div>`}
      ${listeners?.length > 0 && html`<${Client} listeners=${listeners} />`}
    <//>
  `;
}

/** @param {{listeners: any[]}} props */
function Client({ listeners }) {
  const [given, setGiven] = useState({
    listener: (listeners.find((each) => each.is_allowed && isReachable(each)) ?? listeners[0]).name,
    clientId: `console-${crypto.getRandomValues(new Uint32Array(1))[0].toString(16).padStart(8, "0")}`,
    user: "",
    password: "",
    version: "5",
    isClean: true,
  });
  const set = (/** @type {string} */ name) => (/** @type {any} */ value) => setGiven((known) => ({ ...known, [name]: value }));
  const listener = listeners.find((each) => each.name === given.listener) ?? listeners[0];
  const connection = useRef(/** @type {MqttConnection | null} */ (null));
  const [open, setOpen] = useState(/** @type {{clientId: string, isPresent: boolean} | null} */ (null));
  const [ended, setEnded] = useState("");
  const messages = useNewest(SHOWN_BYTES_MAX, sizeOf);
  const count = useRef(0);
  useEffect(() => () => connection.current?.close(), []);

  const form = useForm(() => {
    setEnded("");
    return new Promise((resolve, reject) => {
      let isOpen = false;
      const events = {
        onOpen: (/** @type {any} */ state) => {
          isOpen = true;
          setOpen(state);
          resolve(state);
        },
        onMessage: (/** @type {any} */ packet) => messages.add(rowOf(packet, ++count.current)),
        onClose: (/** @type {any} */ why) => {
          setOpen(null);
          const text = whyText(why);
          if (isOpen) setEnded(text);
          else reject(new Problem(400, { detail: text }));
        },
      };
      const { clientId, user, password, isClean } = given;
      const identity = { clientId, user, password, isClean, level: given.version === "5" ? 5 : 4 };
      connection.current = attempted(() => new MqttConnection(urlOf(listener), identity, events));
    });
  }, () => {});

  return html`
    <${Card} title=${words.connection}>
      <${Form} form=${form} class="stack">
        <div class="row">
          <${Choice}
            label=${words.listener}
            value=${given.listener}
            onChange=${set("listener")}
            disabled=${Boolean(open)}
            options=${listeners.map((each) => [each.name, `${each.name}: ${urlOf(each)}`])}
            wrong=${wrongOf(listener)}
          />
          <${TextField} label=${words.clientId} value=${given.clientId} onChange=${set("clientId")} disabled=${Boolean(open)} />
          <${TextField} label=${words.user} value=${given.user} onChange=${set("user")} disabled=${Boolean(open)} />
          <${TextField} label=${words.password} type="password" autocomplete="off" value=${given.password} onChange=${set("password")} disabled=${Boolean(open)} />
          <${Choice} label=${words.version} value=${given.version} onChange=${set("version")} isNarrow disabled=${Boolean(open)} options=${[["5", "5"], ["3.1.1", "3.1.1"]]} />
        </div>
        <${Check} label=${words.isClean} hint=${words.isCleanHint} value=${given.isClean} onChange=${set("isClean")} />
        <div class="form-foot">
          ${open
            ? html`<${Button} onClick=${() => connection.current?.close()}>${words.disconnect}<//>`
            : html`<button type="submit" class="button is-primary" disabled=${form.isBusy}>${words.connect}</button>`}
          <p role="status">
            <${State} kind=${open ? "good" : form.isBusy ? "warn" : "quiet"}>
              ${open ? words.states.open(visible(open.clientId), open.isPresent) : form.isBusy ? words.states.opening : words.states.off}
            <//>
            ${ended && html` <span>${visible(ended)}</span>`}
          </p>
        </div>
      <//>
    <//>
    ${open && connection.current && html`<${Session} key=${open} connection=${connection.current} />`}
    <${Messages} messages=${messages} />
  `;
}

/** What is subscribed and published while it is connected. @param {{connection: MqttConnection}} props */
function Session({ connection }) {
  const [rows, setRows] = useState(/** @type {any[]} */ ([]));
  const [filter, setFilter] = useState("");
  const [filterQos, setFilterQos] = useState("1");
  const [topic, setTopic] = useState("");
  const [qos, setQos] = useState("1");
  const [isRetained, setRetained] = useState(false);
  const [text, setText] = useState("");
  const [published, setPublished] = useState("");
  const others = (/** @type {string} */ name) => (/** @type {any[]} */ known) => known.filter((each) => each.filter !== name);

  const subscribing = useForm(
    () => answered(() => connection.subscribe(filter, Number(filterQos))),
    (code) => setRows((known) => [...others(filter)(known), { filter, qos: code }]),
  );
  const publishing = useForm(
    () => answered(() => connection.publish({ topic, payload: new TextEncoder().encode(text), qos: Number(qos), isRetained })),
    (code) => setPublished(words.published(time(Date.now()), code ? words.reason(code, "") : "")),
  );
  const columns = useMemo(() => {
    async function end(/** @type {string} */ name) {
      const code = await connection.unsubscribe(name);
      if (code !== null && code < REFUSED) setRows(others(name));
    }
    return [
      { key: "filter", title: words.filter, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.filter} />` },
      { key: "qos", title: words.granted, isNumber: true, hidden: "narrow" },
      {
        key: "end",
        title: html`<span class="unseen">${words.unsubscribe}</span>`,
        isSorted: false,
        width: "small",
        show: (/** @type {any} */ row) => html`
          <button type="button" class="button is-small" aria-label=${words.unsubscribeOne(visible(row.filter))} onClick=${() => end(row.filter)}>
            ${words.unsubscribe}
          </button>
        `,
      },
    ];
  }, [connection]);

  return html`
    <div class="columns">
      <${Card} title=${words.subscriptions} isFlush>
        <div class="card-filters">
          <${Form} form=${subscribing} class="row">
            <${TextField} label=${words.filter} value=${filter} onChange=${setFilter} required placeholder="plant/+/temperature" />
            <${Choice} label=${words.qos} value=${filterQos} onChange=${setFilterQos} isNarrow options=${QOS} />
            <button type="submit" class="button is-primary" disabled=${subscribing.isBusy}>${words.subscribe}</button>
          <//>
        </div>
        <${Table} caption=${words.subscriptions} rows=${rows} rowKey=${(/** @type {any} */ row) => row.filter} empty=${words.noSubscriptions} columns=${columns} isTall=${rows.length > 24} />
      <//>
      <${Card} title=${words.publish}>
        <${Form} form=${publishing} class="stack">
          <div class="row">
            <${TextField} label=${words.topic} value=${topic} onChange=${setTopic} required placeholder="plant/7/temperature" />
            <${Choice} label=${words.qos} value=${qos} onChange=${setQos} isNarrow options=${QOS} />
          </div>
          <${LongField} label=${words.payload} value=${text} onChange=${setText} rows="3" />
          <${Check} label=${words.retain} value=${isRetained} onChange=${setRetained} />
          <div class="form-foot">
            <button type="submit" class="button is-primary" disabled=${publishing.isBusy}>${words.publish}</button>
            <p class="hint" role="status">${published}</p>
          </div>
        <//>
      <//>
    </div>
  `;
}

/** @param {{messages: ReturnType<typeof useNewest>}} props */
function Messages({ messages }) {
  const [shown, setShown] = useState(/** @type {any} */ (null));
  const columns = useMemo(
    () => [
      {
        key: "time_ms",
        title: words.time,
        width: "small",
        show: (/** @type {any} */ row) => html`<button type="button" class="link" onClick=${() => setShown(row)}><${Time} ms=${row.time_ms} /></button>`,
      },
      { key: "topic", title: words.topic, width: "wide", show: (/** @type {any} */ row) => html`<${Name} name=${row.topic} />` },
      { key: "qos", title: words.qos, isNumber: true, hidden: "narrow" },
      { key: "isRetained", title: words.kind, hidden: "narrow", show: kindOf },
      ...PAYLOAD_COLUMNS,
    ],
    [],
  );
  return html`
    <${Card}
      title=${words.messages}
      isFlush
      hint=${words.count(number(messages.rows.length), number(messages.count))}
      actions=${html`
        <${Button} icon=${messages.isPaused ? "play" : "pause"} onClick=${messages.pause}>${messages.isPaused ? words.goOn : words.pause}<//>
        <${Button} onClick=${messages.clear}>${words.clear}<//>
      `}
    >
      <${Table} caption=${words.messages} rows=${messages.rows} rowKey=${rowKey} columns=${columns} onOpen=${setShown} empty=${words.none} />
    <//>
    ${shown && html`<${MessageShown} row=${shown} onClose=${() => setShown(null)} />`}
  `;
}

/** @param {{row: any, onClose: () => void}} props */
function MessageShown({ row, onClose }) {
  const { properties } = row;
  const told = Object.entries(words.properties).filter(([name]) => properties[name] !== undefined);
  const own = properties.user_properties ?? [];
  return html`
    <${Dialog} title=${words.message} isWide onClose=${onClose} buttons=${html`<${Button} kind="primary" onClick=${onClose}>${texts.actions.close}<//>`}>
      <div class="stack">
        <${Facts}
          items=${[
            [words.topic, html`<${Name} name=${row.topic} />`],
            [words.time, html`<${Time} ms=${row.time_ms} />`],
            [words.qos, row.qos],
            [words.kind, kindOf(row)],
            ...told.map(([name, title]) => [title, html`<${Name} name=${properties[name]} />`]),
          ]}
        />
        <${Payload} ...${row} name=${row.topic} />
        ${own.length > 0 &&
        html`
          <details class="details" open>
            <summary>${texts.message.properties(own.length)}</summary>
            <${Facts} items=${own.map((/** @type {[string, string]} */ [name, value]) => [html`<${Name} name=${name} />`, html`<${Name} name=${value} />`])} />
          </details>
        `}
      </div>
    <//>
  `;
}

/** @param {any} row */
function kindOf(row) {
  return row.isRetained ? words.retained : words.live;
}

/** A message as the parts of the kit show one. @param {import("../mqtt/packets.js").Packet} packet @param {number} key */
function rowOf({ topic, payload, qos, isRetained, properties }, key) {
  const row = { key, time_ms: Date.now(), topic, qos, isRetained, properties, payload_bytes: payload.length };
  try {
    return { ...row, payload: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(payload) };
  } catch {
    return { ...row, payload_base64: base64(payload) };
  }
}

/** @param {Uint8Array} data */
function base64(data) {
  let letters = "";
  for (let at = 0; at < data.length; at += 8192) letters += String.fromCharCode(...data.subarray(at, at + 8192));
  return btoa(letters);
}

/** @param {any} listener */
function urlOf({ scheme, port, path }) {
  return `${scheme}://${location.hostname}:${port}${path}`;
}

/** Whether the browser lets this page connect to it at all. @param {any} listener */
function isReachable({ scheme }) {
  return scheme === "wss" || location.protocol === "http:";
}

/** @param {any} listener */
function wrongOf(listener) {
  if (location.hostname.startsWith("[")) return words.noHost;
  if (!isReachable(listener)) return words.notEncrypted;
  return listener.is_allowed ? "" : words.notAllowed(listener.name, location.origin);
}

/** @param {{kind: string, code?: number, text?: string}} why */
function whyText({ kind, code = 0, text = "" }) {
  const says = words.closed[/** @type {"lost"} */ (kind)];
  if (typeof says === "string") return says;
  return /** @type {(why: string) => string} */ (says)(kind === "malformed" ? text : words.reason(code, text));
}

/** What cannot be sent is a Problem, as what the API refuses. @template T @param {() => T} act @returns {T} */
function attempted(act) {
  try {
    return act();
  } catch (error) {
    // A browser throws a SyntaxError or a SecurityError for an address that it does not connect to.
    if (!(error instanceof MqttError || error instanceof DOMException)) throw error;
    throw new Problem(400, { detail: error.message });
  }
}

/** The code of an answer; a Problem when that is a refusal. @param {() => Promise<number | null>} ask */
async function answered(ask) {
  const code = await ask().catch((error) => attempted(() => { throw error; }));
  if (code === null) throw new Problem(400, { detail: words.noAnswer });
  if (code >= REFUSED) throw new Problem(400, { detail: words.refused(words.reason(code, "")) });
  return code;
}
