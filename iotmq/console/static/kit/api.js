/** Asks the HTTP API; what it refuses comes as a Problem. */

import { signal } from "../ui.js";

const BASE = new URL("../api/v1", document.baseURI).href;

/** A bearer token, in the memory of this page alone: for who signs in with a token instead of a cookie. */
export const token = signal("");

/** Counts the answers that said that nobody is signed in (any more). */
export const signedOutCount = signal(0);

/** An answer that is no success, or none at all (status 0). */
export class Problem extends Error {
  /**
   * @param {number} status
   * @param {{type?: string, title?: string, detail?: string, errors?: {detail: string, pointer?: string, parameter?: string}[]}} [document]
   */
  constructor(status, document = {}) {
    super(document.detail || document.title || `status ${status}`);
    this.status = status;
    this.word = (document.type ?? "").replace("urn:iotmq:problem:", "");
    this.title = document.title ?? "";
    this.errors = document.errors ?? [];
  }

  /**
   * What is wrong with a field of a form, by the JSON pointer of its value; empty when nothing is.
   * @param {string} pointer
   */
  of(pointer) {
    return this.errors.find((each) => (each.pointer ?? `/${each.parameter}`) === pointer)?.detail ?? "";
  }
}

/**
 * A path with its names percent-encoded: at`/topics/${name}/messages`.
 * @param {TemplateStringsArray} parts
 * @param {...(string|number)} names
 */
export function at(parts, ...names) {
  return parts.reduce((path, part, index) => path + encodeURIComponent(names[index - 1]) + part);
}

/**
 * @param {string} path below /api/v1, made with `at` where it has names
 * @param {Record<string, unknown>} [query] values that are "", null or undefined are left out; a list is there more than once
 */
export function address(path, query = {}) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== "" && each !== null && each !== undefined) words.append(name, String(each));
    }
  }
  const text = words.toString();
  return BASE + path + (text ? `?${text}` : "");
}

/**
 * Sends a request and returns the response, which is a success.
 * @param {string} method
 * @param {string} path
 * @param {{query?: Record<string, unknown>, body?: unknown, abort?: AbortSignal, accept?: string}} [more]
 * @returns {Promise<Response>}
 */
export async function request(method, path, { query, body, abort, accept } = {}) {
  /** @type {Record<string, string>} */
  const headers = { Accept: accept ?? "application/json" };
  if (token.peek()) headers.Authorization = `Bearer ${token.peek()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(address(path, query), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: abort,
      credentials: "same-origin",
      redirect: "error",
      cache: "no-store",
    });
  } catch (error) {
    if (abort?.aborted) throw error;
    throw new Problem(0, { type: "unreachable", title: "", detail: "" });
  }
  if (response.ok) return response;
  const isDocument = (response.headers.get("Content-Type") ?? "").includes("json");
  const document = isDocument ? await response.json().catch(() => ({})) : {};
  const problem = new Problem(response.status, document);
  if (response.status === 401) signedOutCount.value += 1;
  throw problem;
}

/** Reads the body of an answer. @param {Response} response */
async function bodyOf(response) {
  return response.status === 204 ? null : response.json();
}

export const api = {
  /** @param {string} path @param {Record<string, unknown>} [query] @param {AbortSignal} [abort] @returns {Promise<any>} */
  get: async (path, query, abort) => bodyOf(await request("GET", path, { query, abort })),
  /** @param {string} path @param {unknown} [body] @param {Record<string, unknown>} [query] @returns {Promise<any>} */
  post: async (path, body = {}, query) => bodyOf(await request("POST", path, { body, query })),
  /** @param {string} path @param {unknown} body @returns {Promise<any>} */
  put: async (path, body) => bodyOf(await request("PUT", path, { body })),
  /** @param {string} path @param {unknown} body @returns {Promise<any>} */
  patch: async (path, body) => bodyOf(await request("PATCH", path, { body })),
  /** @param {string} path @param {Record<string, unknown>} [query] @returns {Promise<any>} */
  remove: async (path, query) => bodyOf(await request("DELETE", path, { query })),
};
