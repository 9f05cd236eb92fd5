// nsqjs, following a topic wherever nsqlookupds say that it is: see test_discovery.py.

const { Reader } = require('nsqjs')

const [topic, channel, ...lookupds] = process.argv.slice(2)
const reader = new Reader(topic, channel, {
  lookupdHTTPAddresses: lookupds,
  lookupdPollInterval: 1,
  maxInFlight: 50,
})
reader.on(Reader.MESSAGE, (message) => {
  console.log(message.body.toString())
  message.finish()
})
reader.on(Reader.ERROR, (error) => console.error(error))
reader.connect()
