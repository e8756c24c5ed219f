/** Numbers, sizes, times and names as text. */

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const TENTHS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const DAY_MS = 86_400_000;

/** 12,345. @param {number | null | undefined} value */
export const number = (value) => (value === null || value === undefined ? "–" : WHOLE.format(value));

/** 12.3K. @param {number | null | undefined} value */
export function short(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 10_000 ? (Math.abs(value) < 100 ? TENTHS : WHOLE).format(value) : SHORT.format(value);
}

/** 12.3K/s. @param {number | null | undefined} value */
export const rate = (value) => (value === null || value === undefined ? "–" : `${short(value)}/s`);

/** 1.2 MB/s: by thousands, so that the lines of a chart stand at round numbers. @param {number | null | undefined} value */
export function byteRate(value) {
  if (value === null || value === undefined) return "–";
  const unit = value >= 999_950_000 ? "GB" : value >= 999_950 ? "MB" : value >= 1000 ? "kB" : "B";
  const left = value / { GB: 1e9, MB: 1e6, kB: 1e3, B: 1 }[unit];
  return `${short(left)} ${unit}/s`;
}

/** 1.2 MiB. @param {number | null | undefined} value */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let left = value;
  let unit = "B";
  for (const next of ["KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(left) < 1024) break;
    left /= 1024;
    unit = next;
  }
  return `${unit === "B" || left >= 100 ? Math.round(left) : left.toFixed(1)} ${unit}`;
}

/** 3 d 4 h. @param {number | null | undefined} value_s */
export function duration(value_s) {
  if (value_s === null || value_s === undefined) return "–";
  if (value_s < 1) return value_s <= 0 ? "0 s" : `${Math.round(value_s * 1000)} ms`;
  const s = Math.round(value_s);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60 ? `${s % 60} s` : ""}`.trim();
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

/** @param {number | string} value @param {number} [width] */
const two = (value, width = 2) => String(value).padStart(width, "0");

/** 14:03:09 of today, else with its day; in this browser's time zone. @param {number | null | undefined} value_ms */
export function time(value_ms) {
  if (!value_ms) return "–";
  const date = new Date(value_ms);
  if (Number.isNaN(date.getTime())) return String(value_ms);
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const isToday = new Date().toDateString() === date.toDateString();
  return isToday ? clock : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock}`;
}

/** With milliseconds and zone, for titles. @param {number | null | undefined} value_ms */
export function exactTime(value_ms) {
  if (!value_ms) return "";
  const date = new Date(value_ms);
  return Number.isNaN(date.getTime()) ? "" : date.toISOString();
}

/** 5 s ago. @param {number | null | undefined} value_ms @param {number} [now_ms] */
export function ago(value_ms, now_ms = Date.now()) {
  if (!value_ms) return "–";
  const passed_ms = now_ms - value_ms;
  if (passed_ms < 1000) return "now";
  return passed_ms < 2 * DAY_MS ? `${duration(Math.floor(passed_ms / 1000))} ago` : time(value_ms);
}

/** The value of <input type="datetime-local">. @param {number} value_ms */
export function inputTime(value_ms) {
  const date = new Date(value_ms);
  const day = `${two(date.getFullYear(), 4)}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day}T${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

// What cannot be seen, or turns the text around it: controls, and the marks of writing direction.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/gu;

/**
 * A name of a peer's as it can be read: what is unseen in it stands as its code point.
 * @param {unknown} name
 */
export function visible(name) {
  return String(name ?? "").replace(UNSEEN, (each) => `⟨${two(each.codePointAt(0)?.toString(16) ?? "", 4)}⟩`);
}
