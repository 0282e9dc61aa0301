// A client of MCP, one of whose calls waits for a person while others go on: `held.mjs URL`. Packages are taken from PACKAGES.
import { createRequire } from 'node:module';

const require = createRequire(`${process.env.PACKAGES}/`);
const { Client, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client');

const client = new Client({ name: 'lab', version: '1' }, { capabilities: {}, versionNegotiation: { mode: 'auto' } });
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
const call = async (name, values) => (await client.callTool({ name, arguments: values })).content[0].text;
const held = call('delete_repo', { name: 'x' });
for (const number of [1, 2, 3]) console.log(await call('get_issue', { number }));
console.log(await held);
await client.close();
