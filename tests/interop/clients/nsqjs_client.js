// nsqjs, doing what the interop tests ask of every client: see test_clients.py.

const { once } = require('events')
const { setTimeout: sleep } = require('timers/promises')
const { promisify } = require('util')
const { Reader, Writer } = require('nsqjs')

async function publish(address, topic) {
  const [host, port] = address.split(':')
  const writer = new Writer(host, Number(port))
  writer.connect()
  await once(writer, Writer.READY)
  await promisify(writer.publish.bind(writer))(topic, 'single')
  await promisify(writer.publish.bind(writer))(topic, ['multi-1', 'multi-2'])
  await promisify(writer.deferPublish.bind(writer))(topic, ['deferred'], 500)
  writer.close()
}

async function consume(address, topic, policy, count) {
  const reader = new Reader(topic, 'channel', {
    nsqdTCPAddresses: [address],
    maxInFlight: 10,
    messageTimeout: 1000,
  })
  const received = []
  let wake = () => {}
  reader.on(Reader.MESSAGE, (message) => {
    received.push(message)
    wake()
  })
  reader.connect()
  for (let number = 0; number < count; number++) {
    while (received.length === 0) {
      await new Promise((resolve) => { wake = resolve })
    }
    const message = received.shift()
    report(message)
    await answer(message, policy)
  }
  // An answer is written in the next turn of the loop.
  await sleep(50)
  reader.close()
}

async function answer(message, policy) {
  const first = message.attempts === 1
  if (policy === 'requeue' && first) {
    message.requeue(0, false)
  } else if (policy === 'defer' && first) {
    message.requeue(500, false)
  } else if (policy === 'touch') {
    for (let touches = 0; touches < 2; touches++) {
      await sleep(700)
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

async function main([address, verb, topic, policy, count]) {
  if (verb === 'publish') {
    await publish(address, topic)
  } else {
    await consume(address, topic, policy, Number(count))
  }
  process.exit(0)
}

main(process.argv.slice(2))
