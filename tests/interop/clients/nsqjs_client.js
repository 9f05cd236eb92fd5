// nsqjs, doing what the interop tests ask of every client: see test_clients.py.

const { once } = require('events')
const { readFileSync } = require('fs')
const { setTimeout: sleep } = require('timers/promises')
const { promisify } = require('util')
const { Reader, Writer } = require('nsqjs')

// What to negotiate, in nsqjs's words.
function features() {
  const asked = JSON.parse(process.env.NSQ_FEATURES || '{}')
  const { auth_secret: authSecret, ...options } = asked
  for (const name of ['ca', 'cert', 'key']) {
    if (name in options) options[name] = readFileSync(options[name])
  }
  return authSecret ? { ...options, authSecret } : options
}

async function connected(address) {
  const [host, port] = address.split(':')
  const writer = new Writer(host, Number(port), features())
  writer.on(Writer.ERROR, fail)
  writer.connect()
  await once(writer, Writer.READY)
  return writer
}

function fail(error) {
  console.error(error)
  process.exit(1)
}

async function publish(address, topic) {
  const writer = await connected(address)
  await promisify(writer.publish.bind(writer))(topic, 'single')
  await promisify(writer.publish.bind(writer))(topic, ['multi-1', 'multi-2'])
  await promisify(writer.deferPublish.bind(writer))(topic, ['deferred'], 500)
  writer.close()
}

async function consume(address, topic, policy, count) {
  for await (const message of received(address, topic, count, { messageTimeout: 4000 })) {
    report(message)
    await answer(message, policy)
  }
}

async function relay(address, source, destination, count) {
  const writer = await connected(address)
  for await (const message of received(address, source, count)) {
    await promisify(writer.publish.bind(writer))(destination, message.body)
    message.finish()
  }
  writer.close()
}

async function* received(address, topic, count, options = {}) {
  const reader = new Reader(topic, 'channel', {
    nsqdTCPAddresses: [address],
    maxInFlight: 10,
    ...options,
    ...features(),
  })
  const messages = []
  let wake = () => {}
  reader.on(Reader.MESSAGE, (message) => {
    messages.push(message)
    wake()
  })
  reader.on(Reader.ERROR, fail)
  reader.connect()
  for (let number = 0; number < count; number++) {
    while (messages.length === 0) {
      await new Promise((resolve) => { wake = resolve })
    }
    yield messages.shift()
  }
  await sent(reader)
  reader.close()
}

// An answer is written in the next turn of the loop, compressed in another thread, and forgotten if
// the reader is closed before that.
async function sent(reader) {
  await sleep(0)
  for (const { conn } of reader.readerRdy.connections) {
    await new Promise((resolve) => { conn.outWriter.write('NOP\n', resolve) })
    await sleep(0)
    await new Promise((resolve) => { conn.conn.write('', resolve) })
  }
}

async function answer(message, policy) {
  const first = message.attempts === 1
  if (policy === 'requeue' && first) {
    message.requeue(0, false)
  } else if (policy === 'defer' && first) {
    message.requeue(500, false)
  } else if (policy === 'touch') {
    for (let touches = 0; touches < 6; touches++) {
      await sleep(800)
      message.touch()
    }
    message.finish()
  } else if (policy === 'finish' || !first) {
    message.finish()
  }
}

function report(message) {
  const { body, attempts } = message
  console.log(JSON.stringify({ body: body.toString(), attempts, at: Date.now() / 1000 }))
}

async function main([address, verb, topic, how, count]) {
  if (verb === 'publish') {
    await publish(address, topic)
  } else if (verb === 'relay') {
    await relay(address, topic, how, Number(count))
  } else {
    await consume(address, topic, how, Number(count))
  }
  process.exit(0)
}

main(process.argv.slice(2))
