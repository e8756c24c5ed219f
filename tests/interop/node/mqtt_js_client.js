'use strict';
// MQTT.js behind a pipe (tests/oracles/foreign_mqtt.py): MQTT 3.1.1 and 5. The package is found by NODE_PATH.
// With the word "websocket" MQTT is in WebSockets.

const readline = require('readline');
const mqtt = require('mqtt');

const clients = new Map();
const place = port => process.argv[2] === 'websocket' ? `ws://127.0.0.1:${port}/mqtt` : `mqtt://127.0.0.1:${port}`;

function say(line) {
  process.stdout.write(`\n@@${JSON.stringify(line)}\n`);
}

const commands = {
  async connect({ name, port, version, client_id, clean, will }) {
    const options = {
      clientId: client_id, clean, protocolVersion: version, reconnectPeriod: 0, connectTimeout: 20000, will: will || undefined,
    };
    if (version === 5 && !clean) options.properties = { sessionExpiryInterval: 600 };
    const client = mqtt.connect(place(port), options);
    clients.set(name, client);
    client.on('message', (topic, payload, packet) => say({
      kind: 'message', client: name, topic, payload: payload.toString(), qos: packet.qos, retain: packet.retain,
    }));
    return new Promise((resolve, reject) => {
      client.once('connect', connack => {
        client.on('error', () => {});
        resolve(connack.sessionPresent);
      });
      client.once('error', reject);
    });
  },

  async subscribe({ name, topic_filter, qos }) {
    return (await clients.get(name).subscribeAsync(topic_filter, { qos }))[0].qos;
  },

  async unsubscribe({ name, topic_filter }) {
    await clients.get(name).unsubscribeAsync(topic_filter);
  },

  async publish({ name, topic, payload, qos, retain }) {
    await clients.get(name).publishAsync(topic, payload, { qos, retain });
  },

  async drop({ name }) {
    clients.get(name).stream.destroy();
    clients.delete(name);
  },

  async disconnect({ name }) {
    await clients.get(name).endAsync();
    clients.delete(name);
  },
};

process.on('unhandledRejection', error => say({ kind: 'error', error: `unhandled ${error.stack}` }));

// One command at a time, in the order they came.
let last = Promise.resolve();
readline.createInterface({ input: process.stdin }).on('line', line => {
  last = last.then(async () => {
    try {
      const words = JSON.parse(line);
      const value = await commands[words.do](words);
      say({ kind: 'done', value: value === undefined ? null : value });
    } catch (error) {
      say({ kind: 'failed', error: `${error.name}: ${error.message}` });
    }
  });
}).on('close', () => last.then(() => process.exit(0)));

say({ kind: 'ready' });
