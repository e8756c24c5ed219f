/** All texts of the console, by page. */

/** @param {number} count @param {string} one @param {string} [many] */
const some = (count, one, many = `${one}s`) => (count === 1 ? one : many);

export const texts = {
  product: "iotmq",

  navigation: {
    skip: "Skip to the content",
    label: "Pages",
    open: "Open the navigation",
    close: "Close the navigation",
    theme: { system: "Colours of the system", light: "Light colours", dark: "Dark colours" },
    signOut: "Sign out",
    signedOut: "You are signed out.",
    groups: {
      top: "",
      devices: "Devices",
      messages: "Messages",
      cluster: "Cluster",
      security: "Security",
      operations: "Operations",
    },
    titles: {
      overview: "Overview",
      topics: "Topics",
      topic: "Topic",
      groups: "Groups",
      group: "Group",
      messages: "Messages",
      deadLetters: "Dead letters",
      retained: "Retained",
      signIn: "Sign in",
    },
    notFound: "There is no such page.",
    notAllowed: (/** @type {string} */ role) => `This page takes the role ${role}.`,
    loading: "Loading…",
  },

  actions: {
    cancel: "Cancel",
    close: "Close",
    refresh: "Ask again",
    retry: "Try again",
    reload: "Load it anew",
    save: "Save",
    typeToConfirm: (/** @type {string} */ name) => `Type ${name} to go on`,
  },

  problems: {
    unreachable: "The gateway does not answer.",
    forbidden: "Your role does not allow this.",
    shownFrom: (/** @type {string} */ time) => `What is shown is from ${time}.`,
    updated: "The gateway has been updated, or does not answer.",
  },

  table: {
    empty: "There are none.",
    noMatch: "Nothing matches.",
    loading: "Loading…",
    rows: (/** @type {string} */ text, /** @type {number} */ count) => `${text} ${some(count, "row")}`,
    firstRows: (/** @type {string} */ text) => `The first ${text} rows; a filter finds the others.`,
    chosen: (/** @type {string} */ text) => ` · ${text} chosen`,
    choose: (/** @type {string} */ name) => `Choose ${name}`,
    chooseAll: "Choose all rows",
  },

  chart: {
    table: "Table",
    time: "Time",
    alternative: (/** @type {string} */ title, /** @type {string} */ newest) => `${title} over time. Now: ${newest}.`,
  },

  payload: {
    as: "Show the payload as",
    kinds: { json: "JSON", text: "Text", hex: "Hex" },
    body: "Payload",
    cut: (/** @type {string} */ size) => `the first ${size} are shown`,
    copy: "Copy",
    copied: "Copied.",
    download: "Save as a file",
    empty: "The payload is empty.",
  },

  signIn: {
    title: "Sign in",
    lead: "The console of this gateway.",
    user: "User",
    password: "Password",
    submit: "Sign in",
    provider: "Sign in with OpenID Connect",
    firstLink: "Nobody has a password yet. The log of the gateway has a link with which the first one signs in.",
    noUsers: "Nobody has a password yet: iotmq console user add NAME makes a user.",
    notSafe: "Passwords are taken by TLS or from this machine only.",
    or: "or",
    token: "Token",
    tokenHint: "One of http.tokens, or an API key. It stays in the memory of this page.",
    withToken: "Use a token",
    withPassword: "Use a user and a password",
    refused: "That is not right. Check it and try again.",
    linkUsed: "This link is no longer good: each works once, for a while. Make another one.",
    usingLink: "Signing in with the link…",
  },

  topics: {
    title: "Topics",
    lead: "What brokers keep messages in. MQTT topics are mapped to them.",
    search: "Names with…",
    system: "Those of the system, too",
    none: "No broker has a topic yet.",
    name: "Topic",
    queues: "Queues",
    brokers: "Brokers",
    state: "State",
    states: { open: "open", readOnly: "read only", writeOnly: "write only", closed: "closed" },
  },
};
