/** All that pages are made of; README.md beside it shows how. Charts are in kit/chart.js, for those who have some. */

export { html, useCallback, useEffect, useMemo, useRef, useState } from "./ui.js";
export { texts } from "./texts.js";
export { address, api, at, Problem, request } from "./kit/api.js";
export { ROWS_MAX, useAnswer, useAsking, useList, useRested } from "./kit/asking.js";
export { confirm, Dialog } from "./kit/dialog.js";
export { Check, Choice, Form, FormDialog, LongField, TextField, useForm } from "./kit/form.js";
export { byteRate, bytes, duration, exactTime, inputTime, number, rate, short, time, visible } from "./kit/format.js";
export { Icon } from "./kit/icons.js";
export { Ago, Button, Card, Facts, Figures, Filters, For, Name, Page, Search, State, Tabs, Time, Trouble, Words } from "./kit/parts.js";
export { download, Payload, payloadLine } from "./kit/payload.js";
export { MessageDialog, PAYLOAD_COLUMNS, SendDialog, storedColumn } from "./kit/message.js";
export { ReplayCard, ReplayDialog } from "./kit/replay.js";
export { go, keep, link, place, useKept } from "./kit/router.js";
export { may, me } from "./kit/session.js";
export { buttonColumn, Table } from "./kit/table.js";
export { attempt, problemText, tell, tellProblem } from "./kit/telling.js";
