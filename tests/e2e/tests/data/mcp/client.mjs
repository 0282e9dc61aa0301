// A client of MCP, which prints what it sees, as client.py: `client.mjs URL legacy|auto|REVISION`. Packages are taken from PACKAGES.
import { createRequire } from 'node:module';

const require = createRequire(`${process.env.PACKAGES}/`);
const { Client, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client');

const [url, how] = process.argv.slice(2);
const mode = ['legacy', 'auto'].includes(how) ? how : { pin: how };
const client = new Client({ name: 'lab', version: '1' }, { capabilities: { elicitation: {} }, versionNegotiation: { mode } });
client.setRequestHandler('elicitation/create', () => ({ action: 'accept', content: { name: 'agent' } }));

async function attempt(what, call) {
  try {
    console.log(what, '->', await call());
  } catch (error) {
    console.log(what, 'refused:', error.code, error.message);
  }
}

await client.connect(new StreamableHTTPClientTransport(new URL(url)));
console.log('revision:', client.getNegotiatedProtocolVersion());
const names = (what, list) => console.log(`${what}:`, ...list.sort());
names('tools', (await client.listTools()).tools.map(tool => tool.name));
const hasDocuments = Boolean(client.getServerCapabilities().resources);
if (hasDocuments) {
  names('resources', (await client.listResources()).resources.map(resource => resource.uri));
  names('prompts', (await client.listPrompts()).prompts.map(prompt => prompt.name));
}

const call = (name, values = {}, options = {}) => async () =>
  (await client.callTool({ name, arguments: values }, options)).content[0].text;
await attempt('get_issue', call('get_issue', { number: 7 }));
await attempt('delete_repo', call('delete_repo', { name: 'x' }));
const onprogress = ({ progress, total }) => console.log('progress', progress, 'of', total);
await attempt('search_code', call('search_code', { query: 'y' }, { onprogress }));
await attempt('ask_name', call('ask_name'));
async function documents() {
  const read = uri => async () => (await client.readResource({ uri })).contents[0].text;
  await attempt('docs', read('docs://one'));
  await attempt('secret', read('secret://two'));

  let listening;
  const updated = new Promise(told => {
    client.setNotificationHandler('notifications/resources/updated', ({ params }) => told(params.uri));
  });
  await attempt('subscription', async () => {
    const isModern = client.getNegotiatedProtocolVersion() >= '2026';
    if (isModern) listening = await client.listen({ resourceSubscriptions: ['docs://one'] });
    else await client.subscribeResource({ uri: 'docs://one' });
    await client.callTool({ name: 'search_anew', arguments: {} });
    return await updated;
  });
  await listening?.close();
}
if (hasDocuments) await documents();
await attempt('get_issue', call('get_issue', { number: 8 }));
await client.close();
console.log('end');
