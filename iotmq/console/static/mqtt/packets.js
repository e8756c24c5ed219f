/** Packets of MQTT 3.1.1 (level 4) and 5, as a client makes and reads them. */

/** A packet of the server is no longer: what comes is kept in memory until it is whole. */
export const PACKET_BYTES_MAX = 4_194_304;
const TEXT_BYTES_MAX = 65_535;

export const CONNECT = 1;
export const CONNACK = 2;
export const PUBLISH = 3;
export const PUBACK = 4;
export const PUBREC = 5;
export const PUBREL = 6;
export const PUBCOMP = 7;
export const SUBSCRIBE = 8;
export const SUBACK = 9;
export const UNSUBSCRIBE = 10;
export const UNSUBACK = 11;
export const PINGREQ = 12;
export const PINGRESP = 13;
export const DISCONNECT = 14;

const RECEIVE_MAX = 100;
const KEPT_S = 3600;
/** Types with flags 0010. */
const FLAGGED = new Set([PUBREL, SUBSCRIBE, UNSUBSCRIBE]);

/** What cannot be sent, or bytes of the server that are no packet. */
export class MqttError extends Error {}

/** How a property is read, and its name where somebody looks at it. @type {Record<number, ["byte" | "u16" | "u32" | "number" | "text" | "binary" | "pair", string?]>} */
const PROPERTIES = {
  0x01: ["byte", "payload_format"],
  0x02: ["u32", "expiry_s"],
  0x03: ["text", "content_type"],
  0x08: ["text", "response_topic"],
  0x09: ["binary"],
  0x0b: ["number", "subscription_identifier"],
  0x11: ["u32"],
  0x12: ["text", "assigned_client_id"],
  0x13: ["u16", "server_keep_alive_s"],
  0x15: ["text"],
  0x16: ["binary"],
  0x1a: ["text"],
  0x1c: ["text"],
  0x1f: ["text", "reason"],
  0x21: ["u16"],
  0x22: ["u16"],
  0x23: ["u16"],
  0x24: ["byte"],
  0x25: ["byte"],
  0x26: ["pair", "user_properties"],
  0x27: ["u32"],
  0x28: ["byte"],
  0x29: ["byte"],
  0x2a: ["byte"],
};

// Made ------------------------------------------------------------------------------------------------

/** @param {number} value */
const u16 = (value) => [value >> 8, value & 255];
/** @param {number} value */
const u32 = (value) => [...u16(value >>> 16), ...u16(value & 0xffff)];

/** @param {number} value */
function length(value) {
  const bytes = [];
  do {
    bytes.push((value & 127) | (value > 127 ? 128 : 0));
    value >>>= 7;
  } while (value);
  return bytes;
}

/** @param {string} value */
function text(value) {
  const data = new TextEncoder().encode(value);
  if (data.length > TEXT_BYTES_MAX) throw new MqttError(`${data.length} bytes are too many for a name: ${TEXT_BYTES_MAX} at most`);
  return [...u16(data.length), ...data];
}

/** @param {number} first @param {...ArrayLike<number>} parts */
function packet(first, ...parts) {
  const size = parts.reduce((sum, part) => sum + part.length, 0);
  const head = [first, ...length(size)];
  const bytes = new Uint8Array(head.length + size);
  let at = 0;
  for (const part of [head, ...parts]) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

/** @param {number} level @param {number[]} [properties] */
const own = (level, properties = []) => (level === 5 ? [...length(properties.length), ...properties] : []);

/** @param {{level: number, clientId: string, user: string, password: string, isClean: boolean, keepAlive_s: number}} given */
export function connect({ level, clientId, user, password, isClean, keepAlive_s }) {
  const flags = (isClean ? 2 : 0) | (user ? 128 : 0) | (password ? 64 : 0);
  if (password && !user && level < 5) throw new MqttError("MQTT 3.1.1 has no password without a user");
  const properties = [0x21, ...u16(RECEIVE_MAX), 0x27, ...u32(PACKET_BYTES_MAX), ...(isClean ? [] : [0x11, ...u32(KEPT_S)])];
  return packet(
    CONNECT << 4,
    text("MQTT"),
    [level, flags, ...u16(keepAlive_s)],
    own(level, properties),
    text(clientId),
    user ? text(user) : [],
    password ? text(password) : [],
  );
}

/**
 * @param {{level: number, topic: string, payload: Uint8Array, qos: number, isRetained: boolean, id: number}} given
 */
export function publish({ level, topic, payload, qos, isRetained, id }) {
  if (payload.length > PACKET_BYTES_MAX) throw new MqttError(`the payload has ${payload.length} bytes: ${PACKET_BYTES_MAX} at most`);
  return packet((PUBLISH << 4) | (qos << 1) | (isRetained ? 1 : 0), text(topic), qos ? u16(id) : [], own(level), payload);
}

/** @param {{level: number, filter: string, qos: number, id: number}} given */
export function subscribe({ level, filter, qos, id }) {
  return packet((SUBSCRIBE << 4) | 2, u16(id), own(level), text(filter), [qos]);
}

/** @param {{level: number, filter: string, id: number}} given */
export function unsubscribe({ level, filter, id }) {
  return packet((UNSUBSCRIBE << 4) | 2, u16(id), own(level), text(filter));
}

/** PUBACK, PUBREC, PUBREL or PUBCOMP. @param {number} type @param {number} id */
export function acknowledge(type, id) {
  return packet((type << 4) | (FLAGGED.has(type) ? 2 : 0), u16(id));
}

export const ping = () => packet(PINGREQ << 4);

/** @param {number} level @param {number} [code] */
export const disconnect = (level, code = 0) => packet(DISCONNECT << 4, level === 5 && code ? [code] : []);

// Read ------------------------------------------------------------------------------------------------

/** The fields of one packet. */
class Fields {
  /** @param {Uint8Array} data */
  constructor(data) {
    this.data = data;
    this.at = 0;
  }

  get isEmpty() {
    return this.at >= this.data.length;
  }

  /** @param {number} size */
  bytes(size) {
    if (this.at + size > this.data.length) throw new MqttError("a packet ends too early");
    this.at += size;
    return this.data.subarray(this.at - size, this.at);
  }

  byte() {
    return this.bytes(1)[0];
  }

  u16() {
    const [high, low] = this.bytes(2);
    return high * 256 + low;
  }

  u32() {
    return this.u16() * 65_536 + this.u16();
  }

  number() {
    let value = 0;
    for (let shift = 0; shift < 28; shift += 7) {
      const byte = this.byte();
      value += (byte & 127) * 2 ** shift;
      if (byte < 128) return value;
    }
    throw new MqttError("a number has more than four bytes");
  }

  binary() {
    return this.bytes(this.u16());
  }

  text() {
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(this.binary());
    } catch (error) {
      if (error instanceof MqttError) throw error;
      throw new MqttError("a text is not UTF-8");
    }
  }

  rest() {
    return this.bytes(this.data.length - this.at);
  }

  /** @returns {Record<string, any>} */
  properties() {
    const fields = new Fields(this.bytes(this.number()));
    /** @type {Record<string, any>} */
    const found = {};
    while (!fields.isEmpty) {
      const known = PROPERTIES[fields.number()];
      if (!known) throw new MqttError("a property is unknown");
      const [kind, name = kind] = known;
      if (kind === "pair") (found[name] ??= []).push([fields.text(), fields.text()]);
      else found[name] = fields[kind]();
    }
    return found;
  }
}

/**
 * @typedef {{type: number, id: number, code: number, codes: number[], properties: Record<string, any>,
 *   topic: string, payload: Uint8Array, qos: number, isRetained: boolean, isPresent: boolean}} Packet
 */

/** @param {number} level @param {number} first @param {Uint8Array} data @returns {Packet} */
function read(level, first, data) {
  const fields = new Fields(data);
  const type = first >> 4;
  /** @type {Packet} */
  const found = {
    type,
    id: 0,
    code: 0,
    codes: [],
    properties: {},
    topic: "",
    payload: new Uint8Array(),
    qos: 0,
    isRetained: false,
    isPresent: false,
  };
  const properties = () => (level === 5 && !fields.isEmpty ? fields.properties() : {});
  if (type === CONNACK) {
    found.isPresent = fields.byte() === 1;
    found.code = fields.byte();
    found.properties = properties();
  } else if (type === PUBLISH) {
    found.qos = (first >> 1) & 3;
    if (found.qos === 3) throw new MqttError("QoS 3");
    found.isRetained = (first & 1) === 1;
    found.topic = fields.text();
    if (found.qos) found.id = fields.u16();
    if (level === 5) found.properties = fields.properties();
    found.payload = fields.rest().slice();
  } else if (type === SUBACK || type === UNSUBACK) {
    found.id = fields.u16();
    found.properties = properties();
    found.codes = [...fields.rest()];
  } else if (type >= PUBACK && type <= PUBCOMP) {
    found.id = fields.u16();
    if (!fields.isEmpty) found.code = fields.byte();
    found.properties = properties();
  } else if (type === DISCONNECT && level === 5) {
    if (!fields.isEmpty) found.code = fields.byte();
    found.properties = properties();
  } else if (type !== PINGRESP) {
    throw new MqttError(`a server sends no packet of type ${type}`);
  }
  return found;
}

/** Makes packets of bytes as they come, however they are cut. */
export class PacketReader {
  /** @param {number} level */
  constructor(level) {
    this.level = level;
    /** @type {Uint8Array[]} */
    this.parts = [];
    this.size = 0;
  }

  /** The packets that are whole now. Throws MqttError. @param {Uint8Array} data @returns {Packet[]} */
  push(data) {
    this.parts.push(data);
    this.size += data.length;
    const found = [];
    for (let needed = this.needed(); needed && this.size >= needed.head + needed.body; needed = this.needed()) {
      const whole = this.joined();
      const end = needed.head + needed.body;
      this.parts = [whole.subarray(end)];
      this.size = whole.length - end;
      found.push(read(this.level, whole[0], whole.subarray(needed.head, end)));
    }
    return found;
  }

  /** The sizes of the packet that has begun; null before they are known. */
  needed() {
    // The head has five bytes at most.
    if (this.size < 2) return null;
    if (this.parts[0].length < Math.min(5, this.size)) this.parts = [this.joined()];
    const [first] = this.parts;
    let body = 0;
    for (let at = 1; at < Math.min(5, first.length); at += 1) {
      body += (first[at] & 127) * 128 ** (at - 1);
      if (first[at] < 128) {
        if (body > PACKET_BYTES_MAX) throw new MqttError(`a packet has ${body} bytes: ${PACKET_BYTES_MAX} at most`);
        return { head: at + 1, body };
      }
    }
    if (first.length >= 5) throw new MqttError("the length of a packet has more than four bytes");
    return null;
  }

  joined() {
    if (this.parts.length === 1) return this.parts[0];
    const whole = new Uint8Array(this.size);
    let at = 0;
    for (const part of this.parts) {
      whole.set(part, at);
      at += part.length;
    }
    return whole;
  }
}
