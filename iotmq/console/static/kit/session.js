/** Who is signed in, and what that role may do. */

import { effect, signal } from "../ui.js";
import { api, Problem, signedOutCount, token } from "./api.js";
import { go, link, place } from "./router.js";

const ROLES = ["viewer", "operator", "administrator"];

/**
 * @typedef {{name: string, role: string, way?: string, expires_ms?: number | null}} Me
 * @type {import("../vendor/signals-core-1.14.5/signals-core.mjs").Signal<Me | null | undefined>}
 * undefined until it is known, null when nobody is
 */
export const me = signal(undefined);

/** The place to come back to after signing in. */
let back = "";

/** The place to come back to after signing in, from its # on; empty: none. */
export function placeToComeBack() {
  return back.startsWith("#/") ? back : "";
}

/** Asks who is signed in. Throws what is no answer to that. */
export async function refresh() {
  try {
    me.value = await api.get("/me");
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 401) throw error;
    me.value = null;
  }
}

/** @param {Record<string, string>} body user and password, or link */
export async function signIn(body) {
  await api.post("/sign-in", body);
  await welcome();
}

/** Signs in with a token of the settings; it is forgotten with this page. @param {string} text */
export async function useToken(text) {
  token.value = text;
  try {
    await welcome();
  } catch (error) {
    token.value = "";
    throw error;
  }
}

async function welcome() {
  me.value = await api.get("/me");
  location.hash = back || link("overview");
  back = "";
}

export async function signOut() {
  if (!token.peek()) await api.remove("/sign-in");
  token.value = "";
  me.value = null;
  // Who comes next begins at the beginning.
  back = "";
}

/**
 * Whether the one who is signed in has a role, or more than it.
 * @param {string} role
 */
export function may(role) {
  return ROLES.indexOf(me.value?.role ?? "") >= ROLES.indexOf(role);
}

effect(() => {
  if (signedOutCount.value && me.peek()) {
    token.value = "";
    me.value = null;
  }
});

effect(() => {
  if (me.value === null && place.value.name !== "sign-in") {
    back = location.hash;
    go("sign-in");
  }
});
