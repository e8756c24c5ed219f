'use strict';
// ali-ons behind a pipe: commands as JSON lines on stdin, results and received messages on stdout
// (tests/oracles/piped_client.py). argv: host:port of the registry, and `defaults` for the package's own times.
// The package is found by NODE_PATH.

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const registry = process.argv[2];
const producers = new Map();
const consumers = new Map();

function say(line) {
  process.stdout.write(`\n@@${JSON.stringify(line)}\n`);
}

const quiet = { debug() {}, info() {}, warn() {}, error(...words) { console.error(...words); } };

// The package insists on an HTTP client, for a lookup that `nameSrv` makes unnecessary.
const httpclient = { request() { throw new Error('nobody asks over HTTP'); } };

const times = process.argv[3] === 'defaults' ? {} : { rebalanceInterval: 500, pollNameServerInteval: 500 };

function options(extra) {
  return Object.assign({ nameSrv: registry, httpclient, logger: quiet }, times, extra);
}

function watched(part) {
  part.on('error', error => say({ kind: 'error', error: `${error.name}: ${error.message}` }));
  return part;
}

const commands = {
  async producer({ group, keys }) {
    const producer = watched(new Producer(options(Object.assign({ producerGroup: group }, keys))));
    await producer.ready();
    producers.set(group, producer);
  },

  async send({ group, messages }) {
    const results = [];
    for (const each of messages) {
      const message = new Message(each.topic, each.tags, each.body);
      if (each.keys) message.keys = each.keys;
      if (each.sharding_key) message.shardingKey = each.sharding_key;
      if (each.delay_level) message.delayTimeLevel = each.delay_level;
      for (const name of Object.keys(each.properties || {})) message.properties[name] = each.properties[name];
      const result = await producers.get(group).send(message);
      results.push({
        status: result.sendStatus,
        id: result.msgId,
        queue_id: result.messageQueue.queueId,
        offset: Number(result.queueOffset),
      });
    }
    return results;
  },

  // The first `fail_first` tries of each message fail.
  async push({ group, topic, expression, fail_first, broadcast, keys }) {
    const tries = new Map();
    const consumer = watched(new Consumer(options(Object.assign({
      consumerGroup: group,
      isBroadcast: Boolean(broadcast),
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    }, keys))));
    consumers.set(group, consumer);
    consumer.subscribe(topic, expression || '*', async message => {
      const body = message.body.toString();
      tries.set(body, (tries.get(body) || 0) + 1);
      const isFailing = tries.get(body) <= (fail_first || 0);
      say({
        kind: 'message',
        consumer: group,
        is_failing: isFailing,
        topic: message.topic,
        body,
        tags: message.tags,
        keys: message.keys,
        id: message.msgId,
        queue_id: message.queueId,
        queue_offset: Number(message.queueOffset),
        reconsume_times: message.reconsumeTimes,
        properties: message.properties,
      });
      return isFailing ? Consumer.ACTION_RETRY : undefined;
    });
    await consumer.ready();
  },

  async close({ group }) {
    await (consumers.get(group) || producers.get(group)).close();
  },
};

process.on('unhandledRejection', error => say({ kind: 'error', error: `unhandled ${error.stack}` }));

// One command at a time, in the order they came.
let last = Promise.resolve();
readline.createInterface({ input: process.stdin }).on('line', line => {
  last = last.then(async () => {
    try {
      const words = JSON.parse(line);
      say({ kind: 'done', value: await commands[words.do](words) });
    } catch (error) {
      say({ kind: 'failed', error: `${error.name}: ${error.message}` });
    }
  });
}).on('close', () => last.then(() => process.exit(0)));

say({ kind: 'ready' });
