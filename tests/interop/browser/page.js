'use strict';
// MQTT 3.1.1 over the browser's own WebSocket, as little of it as a page needs. The query says where MQTT is
// (?mqtt=ws://HOST:PORT/mqtt). What happened becomes the table of the page and a report to the page's server.

const place = new URLSearchParams(location.search).get('mqtt');
const CONNACK = 2, PUBLISH = 3, PUBACK = 4, SUBACK = 9;
const seen = {};

function note(what, value) {
  seen[what] = value;
  const row = document.getElementById('seen').insertRow();
  row.insertCell().textContent = what;
  row.insertCell().textContent = typeof value === 'string' ? value : JSON.stringify(value);
}

const text = words => new TextEncoder().encode(words);
const short = number => [number >> 8, number & 255];
const field = words => [...short(text(words).length), ...text(words)];

function packet(first, ...parts) {
  const body = parts.flat();
  const length = [];
  let left = body.length;
  do {
    length.push(left % 128 | (left >= 128 ? 128 : 0));
    left = left >> 7;
  } while (left);
  return new Uint8Array([first, ...length, ...body]);
}

// The packets that come, whatever frames they come in.
class Connection {
  constructor(socket) {
    this.socket = socket;
    this.held = new Uint8Array(0);
    this.packets = [];
    this.waiting = [];
    socket.onmessage = event => this.take(new Uint8Array(event.data));
  }

  take(data) {
    const all = new Uint8Array(this.held.length + data.length);
    all.set(this.held);
    all.set(data, this.held.length);
    let at = 0;
    for (;;) {
      let size = 0, shift = 0, next = at + 1;
      while (next < all.length && all[next] & 128) { size |= (all[next++] & 127) << shift; shift += 7; }
      if (next >= all.length) break;
      size |= all[next++] << shift;
      if (next + size > all.length) break;
      this.packets.push({ kind: all[at] >> 4, first: all[at], body: all.slice(next, next + size) });
      at = next + size;
    }
    this.held = all.slice(at);
    this.waiting = this.waiting.filter(({ kind, resolve }) => !this.hand(kind, resolve));
  }

  send(first, ...parts) { this.socket.send(packet(first, ...parts)); }

  hand(kind, resolve) {
    const at = this.packets.findIndex(each => each.kind === kind);
    if (at >= 0) resolve(this.packets.splice(at, 1)[0]);
    return at >= 0;
  }

  // The next packet of a kind; messages may come before an acknowledgement.
  packet(kind) {
    return new Promise(resolve => {
      if (!this.hand(kind, resolve)) this.waiting.push({ kind, resolve });
    });
  }
}

function opened(subprotocols) {
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(place, subprotocols);
    socket.binaryType = 'arraybuffer';
    socket.onopen = () => resolve(socket);
    socket.onerror = () => reject(new Error('refused'));
  });
}

const closed = socket => new Promise(resolve => {
  socket.onclose = event => resolve([event.code, event.wasClean]);
});

async function converse() {
  const socket = await opened(['mqtt']);
  note('subprotocol', socket.protocol);
  note('extensions', socket.extensions);
  const mqtt = new Connection(socket);
  mqtt.send(0x10, field('MQTT'), 4, 2, short(60), field('browser'));
  note('CONNACK', [...(await mqtt.packet(CONNACK)).body]);
  mqtt.send(0x82, short(1), field('page/in'), 1);
  note('SUBACK', [...(await mqtt.packet(SUBACK)).body]);
  // Larger than any frame with a short length, and an answer to each.
  for (const [number, size] of [[1, 2], [2, 200], [3, 70000]]) {
    mqtt.send(0x32, field('page/out'), short(number), [...new Uint8Array(size).fill(48 + number)]);
    note(`PUBACK ${number}`, [...(await mqtt.packet(PUBACK)).body]);
  }
  const messages = [];
  while (messages.length < 3) {
    const { first, body } = await mqtt.packet(PUBLISH);
    const end = 2 + (body[0] << 8 | body[1]);
    messages.push([first, new TextDecoder().decode(body.slice(2, end)), body.length - end - 2, body[body.length - 1]]);
    mqtt.send(0x40, [...body.slice(end, end + 2)]);
  }
  note('messages', messages);
  const end = closed(socket);
  mqtt.send(0xe0);
  note('closed after DISCONNECT', await end);
}

async function misbehave() {
  const socket = await opened(['mqtt']);
  const end = closed(socket);
  socket.send('text');
  note('closed after a text frame', await end);
  note('another subprotocol', await opened(['chat']).then(() => 'let in', error => error.message));
}

converse().then(misbehave).catch(error => note('error', `${error}`)).finally(() => {
  fetch('report', { method: 'POST', body: JSON.stringify(seen) });
});
