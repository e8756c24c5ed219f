/** A client of MQTT over a WebSocket of the browser. */

import * as packets from "./packets.js";
import { MqttError, PacketReader } from "./packets.js";

const KEEP_ALIVE_S = 60;
const PING_MS = 20_000;
const CONNECT_MS = 15_000;
const MALFORMED = 0x81;
const PACKET_IDS = 65_535;
/** From this code on something was refused, in both versions. */
const REFUSED = 0x80;

/**
 * @typedef {object} Events
 * @property {(connected: {isPresent: boolean, clientId: string}) => void} onOpen
 * @property {(message: packets.Packet) => void} onMessage
 * @property {(why: {kind: "left" | "unreachable" | "refused" | "ended" | "malformed" | "lost" | "silent", code?: number, text?: string}) => void} onClose
 * once, also when it was never open
 */

/** @typedef {{level: number, clientId: string, user: string, password: string, isClean: boolean}} Identity */

/** One connection; `close()` ends it. */
export class MqttConnection {
  /** @param {string} url @param {Identity} identity @param {Events} events MqttError for what cannot be sent */
  constructor(url, identity, events) {
    this.level = identity.level;
    this.clientId = identity.clientId;
    this.events = events;
    const hello = packets.connect({ ...identity, keepAlive_s: KEEP_ALIVE_S });
    this.reader = new PacketReader(identity.level);
    /** Since the gateway has answered CONNECT with yes. */
    this.isOpen = false;
    this.isOver = false;
    this.isReached = false;
    /** What waits for an answer: by packet id, the one who is told its code. @type {Map<number, (code: number | null) => void>} */
    this.waiting = new Map();
    /** Packet ids of QoS 2 that came and are not released. @type {Set<number>} */
    this.received = new Set();
    this.lastId = 0;
    this.isPingDue = false;
    // A port that takes no packets at all keeps browsers waiting for minutes.
    this.timer = window.setTimeout(() => this.end({ kind: this.isReached ? "silent" : "unreachable" }), CONNECT_MS);
    this.socket = new WebSocket(url, "mqtt");
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => {
      this.isReached = true;
      this.socket.send(hello);
    };
    this.socket.onmessage = ({ data }) => this.take(data);
    this.socket.onclose = ({ code }) => this.end({ kind: this.isReached ? "lost" : "unreachable", code });
  }

  /** Leaves. */
  close() {
    if (this.isOpen && !this.isOver) this.send(packets.disconnect(this.level));
    this.end({ kind: "left" });
  }

  /** The server's code for a filter; null when the connection ends before. @param {string} filter @param {number} qos */
  subscribe(filter, qos) {
    return this.ask((id) => packets.subscribe({ level: this.level, filter, qos, id }));
  }

  /** @param {string} filter */
  unsubscribe(filter) {
    return this.ask((id) => packets.unsubscribe({ level: this.level, filter, id }));
  }

  /**
   * The server's code for a message; of QoS 0 at once. @param {{topic: string, payload: Uint8Array, qos: number, isRetained: boolean}} message
   * @returns {Promise<number | null>}
   */
  async publish(message) {
    if (message.qos) return this.ask((id) => packets.publish({ ...message, level: this.level, id }));
    this.send(packets.publish({ ...message, level: this.level, id: 0 }));
    return 0;
  }

  /** @param {(id: number) => Uint8Array<ArrayBuffer>} make @returns {Promise<number | null>} */
  async ask(make) {
    if (this.waiting.size >= PACKET_IDS) throw new MqttError("too much waits for an answer");
    do this.lastId = (this.lastId % PACKET_IDS) + 1;
    while (this.waiting.has(this.lastId));
    const id = this.lastId;
    this.send(make(id));
    return new Promise((resolve) => this.waiting.set(id, resolve));
  }

  /** @param {Uint8Array<ArrayBuffer>} data */
  send(data) {
    if (this.isOver || this.socket.readyState !== WebSocket.OPEN) throw new MqttError("it is not connected");
    this.socket.send(data);
  }

  /** @param {ArrayBuffer | string} data */
  take(data) {
    if (this.isOver) return;
    this.isPingDue = false;
    try {
      if (typeof data === "string") throw new MqttError("a WebSocket of MQTT carries bytes, no text");
      for (const each of this.reader.push(new Uint8Array(data))) {
        if (!this.isOver) this.handle(each);
      }
    } catch (error) {
      if (!(error instanceof MqttError)) throw error;
      if (this.socket.readyState === WebSocket.OPEN) this.socket.send(packets.disconnect(this.level, MALFORMED));
      this.end({ kind: "malformed", text: error.message });
    }
  }

  /** @param {packets.Packet} packet */
  handle(packet) {
    const { type, id, code, properties } = packet;
    if (!this.isOpen) {
      if (type !== packets.CONNACK) throw new MqttError("the first packet is no CONNACK");
      if (code) this.end({ kind: "refused", code, text: properties.reason });
      else this.open(packet);
    } else if (type === packets.PUBLISH) {
      const isNew = packet.qos < 2 || !this.received.has(id);
      if (packet.qos === 1) this.send(packets.acknowledge(packets.PUBACK, id));
      if (packet.qos === 2) {
        this.received.add(id);
        this.send(packets.acknowledge(packets.PUBREC, id));
      }
      if (isNew) this.events.onMessage(packet);
    } else if (type === packets.PUBREL) {
      this.received.delete(id);
      this.send(packets.acknowledge(packets.PUBCOMP, id));
    } else if (type === packets.PUBREC && code < REFUSED) {
      this.send(packets.acknowledge(packets.PUBREL, id));
    } else if (type === packets.DISCONNECT) {
      this.end({ kind: "ended", code, text: properties.reason });
    } else if (type !== packets.PINGRESP) {
      // An UNSUBACK of 3.1.1 has no codes.
      this.answered(id, packet.codes[0] ?? code);
    }
  }

  /** @param {packets.Packet} packet */
  open({ isPresent, properties }) {
    this.isOpen = true;
    clearTimeout(this.timer);
    this.timer = window.setInterval(() => this.ping(), Math.min(PING_MS, (properties.server_keep_alive_s || KEEP_ALIVE_S) * 333));
    this.events.onOpen({ isPresent, clientId: properties.assigned_client_id ?? this.clientId });
  }

  ping() {
    if (this.isPingDue) {
      this.end({ kind: "silent" });
      return;
    }
    this.isPingDue = true;
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(packets.ping());
  }

  /** @param {number} id @param {number | null} code */
  answered(id, code) {
    this.waiting.get(id)?.(code);
    this.waiting.delete(id);
  }

  /** @param {Parameters<Events["onClose"]>[0]} why */
  end(why) {
    if (this.isOver) return;
    this.isOver = true;
    clearInterval(this.timer);
    this.socket.close();
    for (const id of [...this.waiting.keys()]) this.answered(id, null);
    this.events.onClose(why);
  }
}
