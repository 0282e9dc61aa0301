// Asks a YAML language server, as an editor does, about the policies that name our schemas.
//
//   node tests/editor.mjs TOOLS ROOT
import { spawn } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import path from 'node:path';

const [tools, root] = process.argv.slice(2).map((folder) => path.resolve(folder));
const server = spawn(process.execPath, [path.join(tools, 'node_modules/yaml-language-server/bin/yaml-language-server'), '--stdio'], {
  stdio: ['pipe', 'pipe', 'inherit'],
});
const answers = new Map();
const problems = new Map();
let last = 0;

function send(message) {
  const body = JSON.stringify({ jsonrpc: '2.0', ...message });
  server.stdin.write(`Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
}

function ask(method, params) {
  last += 1;
  const id = last;
  send({ id, method, params });
  return new Promise((resolve) => answers.set(id, resolve));
}

let received = Buffer.alloc(0);
server.stdout.on('data', (bytes) => {
  received = Buffer.concat([received, bytes]);
  for (;;) {
    const end = received.indexOf('\r\n\r\n');
    if (end < 0) return;
    const length = Number(/Content-Length: (\d+)/i.exec(received.subarray(0, end).toString())[1]);
    if (received.length < end + 4 + length) return;
    const message = JSON.parse(received.subarray(end + 4, end + 4 + length));
    received = received.subarray(end + 4 + length);
    if (message.method === 'workspace/configuration') {
      // No catalogue of schemas from the network.
      const settings = { validate: true, hover: true, completion: true, schemaStore: { enable: false } };
      send({ id: message.id, result: message.params.items.map(({ section }) => (section === 'yaml' ? settings : {})) });
    } else if (message.method === 'textDocument/publishDiagnostics') {
      problems.get(message.params.uri)?.(message.params.diagnostics.map((problem) => problem.message));
    } else if (message.method && message.id !== undefined) {
      send({ id: message.id, result: null });
    } else if (message.id !== undefined) {
      answers.get(message.id)?.(message.result);
    }
  }
});

function fail(why) {
  console.error(`tests/editor.mjs: ${why}`);
  server.kill();
  process.exit(1);
}

// Opens a document, and returns its address and what the server finds wrong.
async function open(file, text) {
  const uri = pathToFileURL(file).href;
  const found = new Promise((resolve) => problems.set(uri, resolve));
  send({ method: 'textDocument/didOpen', params: { textDocument: { uri, languageId: 'yaml', version: 1, text } } });
  return { uri, found: await found };
}

setTimeout(() => fail('the server does not answer'), 60_000).unref();
await ask('initialize', {
  processId: process.pid,
  rootUri: pathToFileURL(root).href,
  capabilities: { workspace: { configuration: true }, textDocument: { hover: {}, completion: {} } },
});
send({ method: 'initialized', params: {} });

let count = 0;
for (const folder of ['data/examples', 'data/presets']) {
  for (const name of readdirSync(path.join(root, folder))) {
    const file = path.join(root, folder, name);
    const { found } = await open(file, readFileSync(file, 'utf8'));
    if (found.length > 0) fail(`${folder}/${name}: ${found.join('; ')}`);
    count += 1;
  }
}

const schema = '# yaml-language-server: $schema=../schema/policy.schema.json\n';
const place = path.join(root, 'data/examples');
const wrong = await open(path.join(place, 'wrong.yaml'), `${schema}network_polices: {}\n`);
if (!wrong.found.some((message) => message.includes('network_polices'))) fail('a key that is misspelt is not marked');

const text = `${schema}network_policies:\n  web:\n    endpoints:\n      - host: example.com\n        \n`;
const { uri } = await open(path.join(place, 'new.yaml'), text);
const offered = await ask('textDocument/completion', { textDocument: { uri }, position: { line: 5, character: 8 } });
const labels = (offered.items ?? offered).map((item) => item.label);
for (const key of ['port', 'protocol', 'access']) {
  if (!labels.includes(key)) fail(`\`${key}\` is not offered in an endpoint, only ${labels.join(', ')}`);
}
const explained = await ask('textDocument/hover', { textDocument: { uri }, position: { line: 4, character: 9 } });
const words = JSON.stringify(explained?.contents ?? '');
if (words.length < 20) fail(`\`host\` is not explained: ${words}`);
console.log(`${count} policies are right for a YAML language server, which completes and explains keys`);
server.kill();
process.exit(0);
