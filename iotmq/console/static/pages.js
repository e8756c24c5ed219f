/**
 * All pages. One with a `group` stands in the navigation, in this order.
 * @typedef {object} PageEntry
 * @property {string} path the name in the address: #/path
 * @property {string} title
 * @property {string} role who may see it: viewer, operator or administrator
 * @property {() => Promise<{default: any}>} load the module whose default is the component
 * @property {string} [group]
 * @property {string} [icon]
 * @property {string} [under] the page whose entry is marked while this one is shown
 */

import { texts } from "./texts.js";

const { titles, groups } = texts.navigation;

/** @type {PageEntry[]} */
export const PAGES = [
  {
    path: "overview",
    title: titles.overview,
    role: "viewer",
    group: groups.top,
    icon: "overview",
    load: () => import("./pages/overview.js"),
  },
  {
    path: "connections",
    title: titles.clients,
    role: "viewer",
    group: groups.devices,
    icon: "connections",
    load: () => import("./pages/connections.js"),
  },
  {
    path: "client",
    title: titles.client,
    role: "viewer",
    under: "connections",
    load: () => import("./pages/client.js"),
  },
  {
    path: "subscriptions",
    title: titles.subscriptions,
    role: "viewer",
    group: groups.devices,
    icon: "shared",
    load: () => import("./pages/subscriptions.js"),
  },
  {
    path: "traces",
    title: titles.traces,
    role: "operator",
    group: groups.devices,
    icon: "traces",
    load: () => import("./pages/traces.js"),
  },
  { path: "trace", title: titles.trace, role: "operator", under: "traces", load: () => import("./pages/trace.js") },
  {
    path: "websocket",
    title: titles.websocket,
    role: "operator",
    group: groups.devices,
    icon: "websocket",
    load: () => import("./pages/websocket.js"),
  },
  {
    path: "bans",
    title: titles.bans,
    role: "viewer",
    group: groups.devices,
    icon: "bans",
    load: () => import("./pages/bans.js"),
  },
  {
    path: "topics",
    title: titles.topics,
    role: "viewer",
    group: groups.messages,
    icon: "topics",
    load: () => import("./pages/topics.js"),
  },
  { path: "topic", title: titles.topic, role: "viewer", under: "topics", load: () => import("./pages/topic.js") },
  {
    path: "groups",
    title: titles.groups,
    role: "viewer",
    group: groups.messages,
    icon: "groups",
    load: () => import("./pages/groups.js"),
  },
  { path: "group", title: titles.group, role: "viewer", under: "groups", load: () => import("./pages/group.js") },
  {
    path: "messages",
    title: titles.messages,
    role: "viewer",
    group: groups.messages,
    icon: "messages",
    load: () => import("./pages/messages.js"),
  },
  {
    path: "dead-letters",
    title: titles.deadLetters,
    role: "viewer",
    group: groups.messages,
    icon: "dead",
    load: () => import("./pages/dead-letters.js"),
  },
  {
    path: "retained",
    title: titles.retained,
    role: "viewer",
    group: groups.messages,
    icon: "retained",
    load: () => import("./pages/retained.js"),
  },
  {
    path: "delayed",
    title: titles.delayed,
    role: "viewer",
    group: groups.messages,
    icon: "delayed",
    load: () => import("./pages/delayed.js"),
  },
  {
    path: "brokers",
    title: titles.brokers,
    role: "viewer",
    group: groups.cluster,
    icon: "brokers",
    load: () => import("./pages/brokers.js"),
  },
  { path: "broker", title: titles.broker, role: "viewer", under: "brokers", load: () => import("./pages/broker.js") },
  {
    path: "front-ends",
    title: titles.frontEnds,
    role: "viewer",
    group: groups.cluster,
    icon: "front-ends",
    load: () => import("./pages/front-ends.js"),
  },
  {
    path: "alarms",
    title: titles.alarms,
    role: "viewer",
    group: groups.operations,
    icon: "alarms",
    load: () => import("./pages/alarms.js"),
  },
  {
    path: "permissions",
    title: titles.permissions,
    role: "operator",
    group: groups.security,
    icon: "exclusive",
    load: () => import("./pages/permissions.js"),
  },
  {
    path: "access",
    title: titles.access,
    role: "viewer",
    group: groups.security,
    icon: "identities",
    load: () => import("./pages/access.js"),
  },
  {
    path: "audit",
    title: titles.audit,
    role: "viewer",
    group: groups.operations,
    icon: "audit",
    load: () => import("./pages/audit.js"),
  },
  {
    path: "settings",
    title: titles.settings,
    role: "viewer",
    group: groups.operations,
    icon: "settings",
    load: () => import("./pages/settings.js"),
  },
];

/** The page for those who are not signed in. @type {PageEntry} */
export const SIGN_IN = {
  path: "sign-in",
  title: titles.signIn,
  role: "",
  load: () => import("./pages/sign-in.js"),
};
