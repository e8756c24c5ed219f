// MQTT.js (npm mqtt) as a device that proves who it is by SCRAM-SHA-256, twice, with messages in between.
// node mqtt_js_scram_client.js PORT USER PASSWORD; writes a JSON object a line.
'use strict'

const crypto = require('crypto')
const mqtt = require('mqtt')

const METHOD = 'SCRAM-SHA-256'
const [port, user, password] = process.argv.slice(2)

const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`)
const hmac = (key, text) => crypto.createHmac('sha256', key).update(text).digest()

class Exchange {
  constructor () {
    this.bare = `n=${user},r=${crypto.randomBytes(18).toString('base64')}`
  }

  get first () {
    return Buffer.from(`n,,${this.bare}`)
  }

  final (serverFirst) {
    const fields = Object.fromEntries(serverFirst.split(',').map((part) => [part[0], part.slice(2)]))
    const salted = crypto.pbkdf2Sync(password, Buffer.from(fields.s, 'base64'), Number(fields.i), 32, 'sha256')
    const clientKey = hmac(salted, 'Client Key')
    const withoutProof = `c=biws,r=${fields.r}`
    const signed = `${this.bare},${serverFirst},${withoutProof}`
    const signature = hmac(crypto.createHash('sha256').update(clientKey).digest(), signed)
    const proof = Buffer.from(clientKey.map((byte, at) => byte ^ signature[at])).toString('base64')
    this.expected = `v=${hmac(hmac(salted, 'Server Key'), signed).toString('base64')}`
    return Buffer.from(`${withoutProof},p=${proof}`)
  }
}

let exchange = new Exchange()
const client = mqtt.connect(`mqtt://127.0.0.1:${port}`, {
  protocolVersion: 5,
  reconnectPeriod: 0,
  properties: { authenticationMethod: METHOD, authenticationData: exchange.first }
})

client.handleAuth = (packet, callback) => {
  const data = packet.properties.authenticationData.toString()
  if (packet.reasonCode === 0) {
    say({ event: 'again', isServer: data === exchange.expected })
    client.end()
    return callback()
  }
  callback(undefined, {
    cmd: 'auth',
    reasonCode: 24,
    properties: { authenticationMethod: METHOD, authenticationData: exchange.final(data) }
  })
}

client.on('connect', (packet) => {
  const data = packet.properties.authenticationData.toString()
  say({ event: 'connect', method: packet.properties.authenticationMethod, isServer: data === exchange.expected })
  client.subscribe('scram/#', { qos: 1 }, () => client.publish('scram/x', 'hello', { qos: 1 }))
})
client.on('message', (topic, payload) => {
  say({ event: 'message', topic, payload: payload.toString() })
  exchange = new Exchange()
  client._writePacket({
    cmd: 'auth',
    reasonCode: 25,
    properties: { authenticationMethod: METHOD, authenticationData: exchange.first }
  })
})
client.on('error', (error) => {
  say({ event: 'error', code: error.code })
  client.end(true)
})
