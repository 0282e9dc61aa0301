// Makes a server over stdio one over streamable HTTP, for one session: `bridge.mjs ADDRESS PORT COMMAND [ARGUMENT ...]`. Packages are
// taken from PACKAGES.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';

const require = createRequire(`${process.env.PACKAGES}/`);
const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js');
const { StreamableHTTPServerTransport } = require('@modelcontextprotocol/sdk/server/streamableHttp.js');

const [address, port, command, ...args] = process.argv.slice(2);
const inner = new StdioClientTransport({ command, args });
const outer = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID });
inner.onmessage = message => outer.send(message);
outer.onmessage = message => inner.send(message);
await inner.start();
await outer.start();
createServer((request, response) => outer.handleRequest(request, response)).listen(Number(port), address, () => console.log('starts'));
