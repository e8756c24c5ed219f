/** A payload as JSON, text or hexadecimal; always as text of the page, never as markup. */

import { html, useMemo, useState } from "../ui.js";
import { texts } from "../texts.js";
import { bytes as sizeText, visible } from "./format.js";
import { Icon } from "./icons.js";
import { tell } from "./telling.js";

const HEX_BYTES_MAX = 65_536;
const COLOURED_CHARACTERS_MAX = 200_000;
const LINE_BYTES = 16;

/**
 * @param {{payload?: string | null, payload_base64?: string | null, payload_bytes: number, name?: string}} props
 */
export function Payload({ payload, payload_base64, payload_bytes, name = "payload" }) {
  const data = useMemo(() => payloadBytes({ payload, payload_base64 }), [payload, payload_base64]);
  const text = useMemo(() => payload ?? decoded(data), [payload, data]);
  const json = useMemo(() => prettyJson(text), [text]);
  const kinds = [json !== null && "json", text !== null && "text", "hex"].filter(Boolean);
  const [wished, setKind] = useState("");
  const kind = kinds.includes(wished) ? wished : kinds[0];
  const isCut = data.length < payload_bytes;

  return html`
    <div class="payload">
      <div class="payload-head">
        <div class="tabs" role="group" aria-label=${texts.payload.as}>
          ${kinds.map(
            (each) => html`
              <button type="button" class="tab" aria-pressed=${each === kind} onClick=${() => setKind(String(each))}>
                ${texts.payload.kinds[/** @type {"json"} */ (each)]}
              </button>
            `,
          )}
        </div>
        <span class="hint">
          ${sizeText(payload_bytes)}${isCut && ` · ${texts.payload.cut(sizeText(data.length))}`}
        </span>
        <button
          type="button"
          class="icon-button"
          aria-label=${texts.payload.copy}
          title=${texts.payload.copy}
          onClick=${async () => {
            await navigator.clipboard.writeText(text ?? hex(data));
            tell(texts.payload.copied);
          }}
        >
          <${Icon} name="copy" />
        </button>
        <button
          type="button"
          class="icon-button"
          aria-label=${texts.payload.download}
          title=${texts.payload.download}
          onClick=${() => download(data, name)}
        >
          <${Icon} name="download" />
        </button>
      </div>
      <pre class="payload-body" tabindex="0" aria-label=${texts.payload.body}>${
        payload_bytes === 0 ? html`<span class="hint">${texts.payload.empty}</span>` : shown(String(kind), { text, json, data })
      }</pre>
    </div>
  `;
}

/** @param {string} kind @param {{text: string | null, json: string | null, data: Uint8Array}} forms */
function shown(kind, { text, json, data }) {
  if (kind === "json" && json !== null) return json.length > COLOURED_CHARACTERS_MAX ? json : coloured(json);
  if (kind === "text" && text !== null) return shownText(text);
  return hexDump(data);
}

/** The bytes of a message of the API. @param {{payload?: string | null, payload_base64?: string | null}} message */
export function payloadBytes({ payload, payload_base64 }) {
  if (payload_base64) return Uint8Array.from(atob(payload_base64), (each) => each.charCodeAt(0));
  return new TextEncoder().encode(payload ?? "");
}

/** The first line of a payload, for cells. @param {{payload?: string | null, payload_base64?: string | null}} message */
export function payloadLine(message) {
  const data = payloadBytes(message).subarray(0, 400);
  const text = message.payload?.slice(0, 200) ?? decoded(data);
  return text === null ? hex(data.subarray(0, 24)) : visible(text.slice(0, 200));
}

/** Saves bytes as a file. @param {Uint8Array | string | Blob} data @param {string} name @param {string} [type] */
export function download(data, name, type = "application/octet-stream") {
  const url = URL.createObjectURL(new Blob([/** @type {any} */ (data)], { type }));
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = name.replace(/[^\w.-]+/g, "_").slice(-100);
  anchor.click();
  URL.revokeObjectURL(url);
}

/** @param {Uint8Array} data */
function decoded(data) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    return null;
  }
}

/** @param {string | null} text */
function prettyJson(text) {
  if (text === null || !/^\s*[[{"]/.test(text)) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

/** Line ends stay, the rest of what cannot be seen is named. @param {string} text */
function shownText(text) {
  return text.split(/\r?\n/).map(visible).join("\n");
}

const JSON_WORDS = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** @param {string} json */
function coloured(json) {
  const parts = [];
  let end = 0;
  for (const found of json.matchAll(JSON_WORDS)) {
    parts.push(json.slice(end, found.index));
    const kind = found[2] ? "name" : found[1] ? "string" : /[a-z]/.test(found[0][0]) ? "word" : "number";
    parts.push(html`<span class=${`json-${kind}`}>${visible(found[1] ?? found[0])}</span>`, found[2] ?? "");
    end = (found.index ?? 0) + found[0].length;
  }
  parts.push(json.slice(end));
  return parts;
}

/** @param {Uint8Array} data */
function hex(data) {
  return Array.from(data, (each) => each.toString(16).padStart(2, "0")).join(" ");
}

/** @param {Uint8Array} data */
function hexDump(data) {
  const lines = [];
  for (let start = 0; start < Math.min(data.length, HEX_BYTES_MAX); start += LINE_BYTES) {
    const line = data.subarray(start, start + LINE_BYTES);
    const letters = Array.from(line, (each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : "·")).join("");
    lines.push(`${start.toString(16).padStart(6, "0")}  ${hex(line).padEnd(LINE_BYTES * 3)} ${letters}`);
  }
  return lines.join("\n");
}
