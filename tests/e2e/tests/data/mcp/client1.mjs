// A client of the first SDK in JavaScript, which speaks revisions to 2025-11-25: `client1.mjs URL CALLS [URI]` makes the calls, a JSON
// array of names and arguments, and prints what it sees; with the subscription of a resource. Packages are taken from PACKAGES.
import { createRequire } from 'node:module';

const require = createRequire(`${process.env.PACKAGES}/`);
const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
const types = require('@modelcontextprotocol/sdk/types.js');

const [url, calls, uri] = process.argv.slice(2);
const client = new Client({ name: 'lab', version: '1' }, { capabilities: { elicitation: {} } });
client.setRequestHandler(types.ElicitRequestSchema, () => ({ action: 'accept', content: { name: 'agent' } }));
const updated = new Promise(told => {
  client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, ({ params }) => told(params.uri));
});

await client.connect(new StreamableHTTPClientTransport(new URL(url)));
console.log('tools:', ...(await client.listTools()).tools.map(tool => tool.name).sort());
if (uri) await client.subscribeResource({ uri });
for (const [name, values] of JSON.parse(calls)) {
  const onprogress = ({ progress, total }) => console.log('progress', progress, 'of', total);
  try {
    const { content } = await client.callTool({ name, arguments: values }, undefined, { onprogress });
    console.log(name, '->', content[0].text);
  } catch (error) {
    console.log(name, 'refused:', error.message);
  }
}
if (uri) console.log('subscription ->', await updated);
await client.close();
console.log('end');
