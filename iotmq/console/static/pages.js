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
];

/** The page for those who are not signed in. */
export const SIGN_IN = {
  path: "sign-in",
  title: titles.signIn,
  role: "",
  load: () => import("./pages/sign-in.js"),
};
