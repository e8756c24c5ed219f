/** Icons: lines on a square of 24, hidden from screen readers because words stand beside them. */

import { html } from "../ui.js";

const PATHS = {
  overview: "M4 13h6V4H4zm10 7h6V4h-6zM4 20h6v-4H4z",
  websocket: "M4 7h13l-3-3m6 13H7l3 3",
  connections: "M9 7V3m6 4V3M7 7h10v4a5 5 0 0 1-10 0zm5 9v5",
  shared: "M6 12a2 2 0 1 0 0-.1M18 6a2 2 0 1 0 0-.1M18 18a2 2 0 1 0 0-.1M8 11l8-4M8 13l8 4",
  exclusive: "M6 11h12v9H6zM8 11V8a4 4 0 0 1 8 0v3",
  topics: "M4 6h16M4 12h16M4 18h16",
  groups: "M9 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zm-6 8a6 6 0 0 1 12 0M16 5.5a3 3 0 0 1 0 5M18 14a6 6 0 0 1 3 5",
  messages: "M4 5h16v14H4zm0 1l8 7 8-7",
  dead: "M4 5h16v14H4zm5 4l6 6m0-6l-6 6",
  retained: "M6 4h12v16l-6-4-6 4z",
  delayed: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zm0-14v5l3 2",
  brokers: "M4 5h16v5H4zm0 9h16v5H4zM8 7.5h.01M8 16.5h.01",
  "front-ends": "M3 12h4l3-7 4 14 3-7h4",
  identities: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zm-7 8a7 7 0 0 1 14 0",
  bans: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM5.8 5.8l12.4 12.4",
  alarms: "M6 16V11a6 6 0 0 1 12 0v5l2 2H4zm4 5h4",
  traces: "M4 20l5-5m2-8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zm5 1h4m-4 4h4m-6 4h6",
  audit: "M6 3h9l4 4v14H6zm3 8h7m-7 4h7M9 7h3",
  settings: "M4 7h10m4 0h2M4 17h4m4 0h8M16 5v4M10 15v4",
  test: "M9 3v6l-5 9a2 2 0 0 0 2 3h12a2 2 0 0 0 2-3l-5-9V3M8 3h8M7 15h10",
  close: "M6 6l12 12M18 6L6 18",
  done: "M5 12l5 5 9-10",
  warning: "M12 4l9 16H3zm0 6v4m0 3h.01",
  menu: "M4 7h16M4 12h16M4 17h16",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zm0-13v2m0 14v2M3 12h2m14 0h2M5.6 5.6L7 7m10 10l1.4 1.4M18.4 5.6L17 7M7 17l-1.4 1.4",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  screen: "M3 5h18v11H3zm6 15h6m-3-4v4",
  up: "M12 19V5m-6 6l6-6 6 6",
  down: "M12 5v14m6-6l-6 6-6-6",
  back: "M19 12H5m6 6l-6-6 6-6",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zm5-2l5 5",
  refresh: "M20 11A8 8 0 1 0 18 17M20 5v6h-6",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  download: "M12 4v11m-5-4l5 5 5-5M5 20h14",
  add: "M12 5v14M5 12h14",
  out: "M10 4H5v16h5m5-4l4-4-4-4m4 4H9",
  pause: "M8 5v14m8-14v14",
  play: "M7 5l12 7-12 7z",
};

/** @param {{name: keyof typeof PATHS | string}} props */
export function Icon({ name }) {
  return html`
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d=${PATHS[/** @type {keyof typeof PATHS} */ (name)] ?? ""} />
    </svg>
  `;
}

/** The mark of the product. */
export function Mark() {
  return html`
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <rect width="32" height="32" rx="8" />
      <path d="M6 17h5l3-8 4 14 3-6h5" />
    </svg>
  `;
}
