// A server of MCP with tools, a resource and a prompt, as server.py: `server.mjs ADDRESS PORT [json]`. Packages are taken from PACKAGES; the
// names of called tools are appended to RECORD.
import { randomUUID, webcrypto } from 'node:crypto';
import { appendFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';

// Node 18 has it under this name alone.
globalThis.crypto ??= webcrypto;
const require = createRequire(`${process.env.PACKAGES}/`);
const { McpServer, acceptedContent, createMcpHandler, inputRequired, isLegacyRequest } = require('@modelcontextprotocol/server');
const { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } = require('@modelcontextprotocol/node');
const z = require('zod');

const [address, port, json] = process.argv.slice(2);
const said = text => ({ content: [{ type: 'text', text }] });
const name = z.object({ name: z.string() });
// In its revisions the head repeats it.
const repeated = z.string().meta({ 'x-mcp-header': 'Query' });

function lab() {
  const server = new McpServer({ name: 'lab', version: '1' }, { capabilities: { resources: { subscribe: true } } });
  server.registerTool('get_issue', { inputSchema: z.object({ number: z.number() }) }, ({ number }) => said(`issue ${number}`));
  server.registerTool('search_code', { inputSchema: z.object({ query: repeated }) }, async ({ query }, context) => {
    const { progressToken } = context.mcpReq._meta ?? {};
    for (const progress of progressToken === undefined ? [] : [1, 2]) {
      await context.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress, total: 2 } });
    }
    return said(`found ${query}`);
  });
  server.registerTool('ask_name', {}, context => {
    const answer = acceptedContent(context.mcpReq.inputResponses, 'name', name);
    if (answer) return said(`hello ${answer.name}`);
    return inputRequired({ inputRequests: { name: inputRequired.elicit({ message: 'Who?', requestedSchema: name }) } });
  });
  server.registerTool('search_anew', {}, async () => {
    const uri = 'docs://one';
    await server.server.sendResourceUpdated({ uri }).catch(() => {});
    modern.notify.resourceUpdated(uri);
    return said('changed');
  });
  server.registerTool('delete_repo', { inputSchema: z.object({ name: z.string() }) }, () => said('deleted'));
  const document = text => uri => ({ contents: [{ uri: uri.href, text }] });
  server.registerResource('one', 'docs://one', {}, document('the first'));
  server.registerResource('two', 'secret://two', {}, document('the second'));
  for (const prompt of ['review', 'destroy']) {
    server.registerPrompt(prompt, { argsSchema: z.object({ text: z.string() }) }, ({ text }) => ({
      messages: [{ role: 'user', content: { type: 'text', text: `${prompt} ${text}` } }],
    }));
  }
  server.server.setRequestHandler('resources/subscribe', () => ({}));
  server.server.setRequestHandler('resources/unsubscribe', () => ({}));
  return server;
}

const modern = createMcpHandler(lab, { legacy: 'reject', responseMode: json ? 'json' : 'auto' });
const handler = toNodeHandler(modern);
const sessions = new Map();

async function session(request, response, body) {
  let transport = sessions.get(request.headers['mcp-session-id']);
  if (!transport) {
    transport = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      enableJsonResponse: Boolean(json),
      onsessioninitialized: id => sessions.set(id, transport),
    });
    await lab().connect(transport);
  }
  await transport.handleRequest(request, response, body);
}

createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  const body = parts.length ? JSON.parse(Buffer.concat(parts)) : undefined;
  if (body?.method === 'tools/call') appendFileSync(process.env.RECORD, `${body.params.name}\n`);
  const isLegacy = await isLegacyRequest(await toWebRequest(request, body), body);
  await (isLegacy ? session(request, response, body) : handler(request, response, body));
}).listen(Number(port), address, () => console.log('starts'));
