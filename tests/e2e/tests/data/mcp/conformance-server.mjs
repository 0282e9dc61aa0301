// A server of MCP for the conformance suites: `conformance-server.mjs ADDRESS PORT [guarded]`, at /mcp. Packages are taken from PACKAGES;
// a guarded one serves the Host names and origins of localhost alone.
import { randomBytes, randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { setTimeout as pause } from 'node:timers/promises';

const require = createRequire(`${process.env.PACKAGES}/`);
const {
  CLIENT_CAPABILITIES_META_KEY,
  LOG_LEVEL_META_KEY,
  McpServer,
  ResourceTemplate,
  acceptedContent,
  completable,
  createMcpHandler,
  createRequestStateCodec,
  fromJsonSchema,
  inputRequired,
  isLegacyRequest,
} = require('@modelcontextprotocol/server');
const {
  NodeStreamableHTTPServerTransport,
  localhostHostValidation,
  localhostOriginValidation,
  toNodeHandler,
  toWebRequest,
} = require('@modelcontextprotocol/node');
const z = require('zod');

const [address, port, guarded] = process.argv.slice(2);
const png = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==';
const wav = 'UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=';
const states = createRequestStateCodec({ key: randomBytes(32) });

const text = words => ({ type: 'text', text: words });
const image = { type: 'image', data: png, mimeType: 'image/png' };
const audio = { type: 'audio', data: wav, mimeType: 'audio/wav' };
const embedded = (uri, mimeType, words) => ({ type: 'resource', resource: { uri, mimeType, text: words } });
const said = (...parts) => ({ content: parts.map(part => (typeof part === 'string' ? text(part) : part)) });
const user = content => ({ role: 'user', content });

const person = z.object({ name: z.string() });
const color = z.object({ color: z.string() });
const agreed = z.object({ ok: z.boolean() });
const background = z.object({ context: z.string() });
const ask = (message, requestedSchema) => inputRequired.elicit({ message, requestedSchema });
const sample = (words, maxTokens) => inputRequired.createMessage({ messages: [user(text(words))], maxTokens });
const answered = (context, key, schema) => acceptedContent(context.mcpReq.inputResponses, key, schema);
const supported = context => context.mcpReq.envelope?.[CLIENT_CAPABILITIES_META_KEY] ?? {};

const defaults = {
  type: 'object',
  properties: {
    name: { type: 'string', default: 'John Doe' },
    age: { type: 'integer', default: 30 },
    score: { type: 'number', default: 95.5 },
    status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
    verified: { type: 'boolean', default: true },
  },
};
const titled = (...values) => values.map((value, index) => ({ const: value, title: `Choice ${index + 1}` }));
const options = ['option1', 'option2', 'option3'];
const enums = {
  type: 'object',
  properties: {
    untitledSingle: { type: 'string', enum: options },
    titledSingle: { type: 'string', oneOf: titled('value1', 'value2', 'value3') },
    legacyEnum: { type: 'string', enum: ['opt1', 'opt2', 'opt3'], enumNames: ['Option One', 'Option Two', 'Option Three'] },
    untitledMulti: { type: 'array', items: { type: 'string', enum: options } },
    titledMulti: { type: 'array', items: { anyOf: titled('value1', 'value2', 'value3') } },
  },
};
const contact = {
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  type: 'object',
  $defs: { address: { $anchor: 'addressDef', type: 'object', properties: { street: { type: 'string' }, city: { type: 'string' } } } },
  properties: {
    name: { type: 'string' },
    address: { $ref: '#/$defs/address' },
    contactMethod: { type: 'string', enum: ['phone', 'email'] },
    phone: { type: 'string' },
    email: { type: 'string' },
  },
  allOf: [{ anyOf: [{ required: ['phone'] }, { required: ['email'] }] }],
  if: { properties: { contactMethod: { const: 'phone' } }, required: ['contactMethod'] },
  then: { required: ['phone'] },
  else: { required: ['email'] },
  additionalProperties: false,
};
const region = {
  type: 'object',
  properties: { region: { type: 'string', 'x-mcp-header': 'Region' }, query: { type: 'string' } },
  required: ['region'],
};

function contents(server) {
  const tool = (name, call, inputSchema) => {
    const handler = inputSchema ? call : context => call({}, context);
    server.registerTool(name, { description: `The tool ${name}`, ...(inputSchema && { inputSchema }) }, handler);
  };
  tool('test_simple_text', () => said('This is a simple text response for testing.'));
  tool('test_image_content', () => said(image));
  tool('test_audio_content', () => said(audio));
  tool('test_embedded_resource', () => said(embedded('test://embedded-resource', 'text/plain', 'This is an embedded resource content.')));
  const mixed = embedded('test://mixed-content-resource', 'application/json', JSON.stringify({ test: 'data', value: 123 }));
  tool('test_multiple_content_types', () => said('Multiple content types test:', image, mixed));
  tool('test_error_handling', () => {
    throw new Error('This tool intentionally returns an error for testing');
  });
  tool('test_tool_with_logging', async (_, { mcpReq }) => {
    await mcpReq.log('info', 'Tool execution started');
    await pause(50);
    await mcpReq.log('info', 'Tool processing data');
    await pause(50);
    await mcpReq.log('info', 'Tool execution completed');
    return said('logged');
  });
  tool('test_tool_with_progress', async (_, { mcpReq }) => {
    const { progressToken } = mcpReq._meta ?? {};
    for (const progress of [0, 50, 100]) {
      const params = { progressToken, progress, total: 100 };
      if (progressToken !== undefined) await mcpReq.notify({ method: 'notifications/progress', params });
      await pause(50);
    }
    return said('progressed');
  });
  tool('test_reconnection', async (_, { http }) => {
    await pause(50);
    http?.closeSSE?.();
    await pause(100);
    return said('reconnected');
  });
  tool('json_schema_2020_12_tool', () => said('kept'), fromJsonSchema(contact));
  tool('test_x_mcp_header', values => said(`region ${values.region}`), fromJsonSchema(region));

  // By the stream of the call: that of the session may not be open yet.
  const beside = ({ id }) => ({ relatedRequestId: id });
  const sampled = async ({ prompt }, { mcpReq }) => {
    const { content } = await mcpReq.requestSampling({ messages: [user(text(prompt))], maxTokens: 100 }, beside(mcpReq));
    return said(`LLM response: ${content.text}`);
  };
  tool('test_sampling', sampled, z.object({ prompt: z.string() }));
  const told = ({ action, content }) => `action=${action}, content=${JSON.stringify(content ?? {})}`;
  const identity = { username: { type: 'string', description: "User's response" }, email: { type: 'string' } };
  const requestedSchema = { type: 'object', properties: identity, required: ['username', 'email'] };
  const elicited = async ({ message }, { mcpReq }) => {
    const result = await mcpReq.elicitInput({ message, requestedSchema }, beside(mcpReq));
    return said(`User response: ${told(result)}`);
  };
  tool('test_elicitation', elicited, z.object({ message: z.string() }));
  for (const [name, schema] of [['sep1034_defaults', defaults], ['sep1330_enums', enums]]) {
    tool(`test_elicitation_${name}`, async (_, { mcpReq }) => {
      const result = await mcpReq.elicitInput({ message: 'Please fill in', requestedSchema: schema }, beside(mcpReq));
      return said(`Elicitation completed: ${told(result)}`);
    });
  }

  tool('test_missing_capability', (_, { mcpReq }) => {
    if (mcpReq.inputResponses?.sampled) return said('sampling is there');
    return inputRequired({ inputRequests: { sampled: sample('Is sampling there?', 10) } });
  });
  tool('test_streaming_elicitation', (_, context) => {
    if (answered(context, 'user_name', person)) return said('answered');
    return inputRequired({ inputRequests: { user_name: ask('What is your name?', person) } });
  });
  tool('test_logging_tool', async (_, { mcpReq }) => {
    if (mcpReq.envelope?.[LOG_LEVEL_META_KEY]) await mcpReq.log('info', 'asked for');
    return said('logged if asked');
  });
  tool('test_trigger_tool_change', () => {
    modern.notify.toolsChanged();
    return said('tools changed');
  });
  tool('test_trigger_prompt_change', () => {
    modern.notify.promptsChanged();
    return said('prompts changed');
  });

  const requiring = (name, call) => tool(`test_input_required_result_${name}`, call);
  requiring('elicitation', (_, context) => {
    const answer = answered(context, 'user_name', person);
    if (answer) return said(`Hello, ${answer.name}!`);
    return inputRequired({ inputRequests: { user_name: ask('What is your name?', person) } });
  });
  requiring('sampling', (_, { mcpReq }) => {
    const answer = mcpReq.inputResponses?.capital_question;
    if (answer) return said(`LLM response: ${answer.content?.text}`);
    return inputRequired({ inputRequests: { capital_question: sample('What is the capital of France?', 100) } });
  });
  requiring('list_roots', (_, { mcpReq }) => {
    const answer = mcpReq.inputResponses?.client_roots;
    if (answer) return said(`roots: ${answer.roots?.map(root => root.uri).join(' ')}`);
    return inputRequired({ inputRequests: { client_roots: inputRequired.listRoots() } });
  });
  for (const name of ['request_state', 'tampered_state']) {
    requiring(name, async (_, context) => {
      const state = context.mcpReq.requestState();
      if (state && answered(context, 'confirm', agreed)) return said('state-ok');
      return inputRequired({ inputRequests: { confirm: ask('Please confirm', agreed) }, requestState: await states.mint({ name }) });
    });
  }
  requiring('multiple_inputs', async (_, context) => {
    const { client_roots, greeting } = context.mcpReq.inputResponses ?? {};
    const answer = answered(context, 'user_name', person);
    if (answer && greeting && client_roots) return said(`${greeting.content?.text}, ${answer.name}: ${client_roots.roots?.length}`);
    const inputRequests = {
      user_name: ask('What is your name?', person),
      greeting: sample('Generate a greeting', 50),
      client_roots: inputRequired.listRoots(),
    };
    return inputRequired({ inputRequests, requestState: await states.mint({ round: 1 }) });
  });
  requiring('multi_round', async (_, context) => {
    const state = context.mcpReq.requestState();
    const first = answered(context, 'step1', person);
    const second = answered(context, 'step2', color);
    if (state?.name && second) return said(`${state.name} likes ${second.color}`);
    if (state && first) {
      const requestState = await states.mint({ round: 2, name: first.name });
      return inputRequired({ inputRequests: { step2: ask('Step 2: What is your favorite color?', color) }, requestState });
    }
    const requestState = await states.mint({ round: 1 });
    return inputRequired({ inputRequests: { step1: ask('Step 1: What is your name?', person) }, requestState });
  });
  requiring('capabilities', (_, context) => {
    const { elicitation, roots, sampling } = supported(context);
    const inputRequests = {
      ...(elicitation && { user_name: ask('What is your name?', person) }),
      ...(sampling && { greeting: sample('Generate a greeting', 50) }),
      ...(roots && { client_roots: inputRequired.listRoots() }),
    };
    if (context.mcpReq.inputResponses || !Object.keys(inputRequests).length) return said('no more is required');
    return inputRequired({ inputRequests });
  });

  const resource = (name, uri, mimeType, content) => {
    const metadata = { description: `The resource ${name}`, mimeType };
    server.registerResource(name, uri, metadata, ({ href }) => ({ contents: [{ uri: href, mimeType, ...content }] }));
  };
  resource('static-text', 'test://static-text', 'text/plain', { text: 'This is the content of the static text resource.' });
  resource('static-binary', 'test://static-binary', 'image/png', { blob: png });
  resource('watched', 'test://watched-resource', 'text/plain', { text: 'watched' });
  const template = new ResourceTemplate('test://template/{id}/data', { list: undefined });
  const mimeType = 'application/json';
  server.registerResource('template', template, { description: 'Data for an id', mimeType }, ({ href }, { id }) => ({
    contents: [{ uri: href, mimeType, text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }) }],
  }));
  for (const method of ['resources/subscribe', 'resources/unsubscribe']) server.server.setRequestHandler(method, () => ({}));

  const prompt = (name, give, shape) => {
    const argsSchema = shape && z.object(shape);
    const handler = shape ? give : context => give({}, context);
    server.registerPrompt(name, { description: `The prompt ${name}`, ...(argsSchema && { argsSchema }) }, handler);
  };
  const messages = (...parts) => ({ messages: parts.map(part => user(typeof part === 'string' ? text(part) : part)) });
  prompt('test_simple_prompt', () => messages('This is a simple prompt for testing.'));
  const begins = value => ['testing', 'paris', 'park'].filter(word => word.startsWith(value));
  const pair = { arg1: completable(z.string().describe('First test argument'), begins), arg2: z.string().describe('Second test argument') };
  prompt('test_prompt_with_arguments', ({ arg1, arg2 }) => messages(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`), pair);
  const about = ({ resourceUri }) => {
    const part = embedded(resourceUri, 'text/plain', 'Embedded resource content for testing.');
    return messages(part, 'Please process the embedded resource above.');
  };
  prompt('test_prompt_with_embedded_resource', about, { resourceUri: z.string().describe('URI of the resource to embed') });
  prompt('test_prompt_with_image', () => messages(image, 'Please analyze the image above.'));
  prompt('test_input_required_result_prompt', (_, context) => {
    const answer = answered(context, 'user_context', background);
    if (answer) return messages(`In the context of ${answer.context}`);
    return inputRequired({ inputRequests: { user_context: ask('What context should the prompt use?', background) } });
  });
}

function suite() {
  const capabilities = {
    logging: {},
    prompts: { listChanged: true },
    resources: { subscribe: true, listChanged: true },
    tools: { listChanged: true },
  };
  const server = new McpServer({ name: 'conformance', version: '1' }, { capabilities, requestState: { verify: states.verify } });
  contents(server);
  return server;
}

function eventStore() {
  const events = [];
  return {
    async storeEvent(stream, message) {
      events.push({ stream, message });
      return `${events.length}`;
    },
    async getStreamIdForEventId(id) {
      return events[id - 1]?.stream;
    },
    async replayEventsAfter(id, { send }) {
      const { stream } = events[id - 1];
      for (const [index, event] of events.entries()) {
        if (index >= id && event.stream === stream && event.message.jsonrpc) await send(`${index + 1}`, event.message);
      }
      return stream;
    },
  };
}

const modern = createMcpHandler(suite, { legacy: 'reject' });
const handler = toNodeHandler(modern);
const sessions = new Map();

async function session(request, response, body) {
  const id = request.headers['mcp-session-id'];
  let transport = sessions.get(id);
  if (id && !transport) {
    const error = { code: -32001, message: 'Session not found' };
    response.writeHead(404, { 'content-type': 'application/json' });
    return response.end(JSON.stringify({ jsonrpc: '2.0', id: body?.id ?? null, error }));
  }
  if (!transport) {
    transport = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      eventStore: eventStore(),
      retryInterval: 500,
      onsessioninitialized: created => sessions.set(created, transport),
      onsessionclosed: closed => sessions.delete(closed),
    });
    await suite().connect(transport);
  }
  await transport.handleRequest(request, response, body);
}

function parsed(parts) {
  try {
    return parts.length ? JSON.parse(Buffer.concat(parts)) : undefined;
  } catch {
    return null;
  }
}

const guards = guarded ? [localhostHostValidation(), localhostOriginValidation()] : [];
createServer(async (request, response) => {
  if (!guards.every(allows => allows(request, response))) return;
  if (new URL(request.url, 'http://localhost').pathname !== '/mcp') return response.writeHead(404).end();
  const parts = [];
  for await (const part of request) parts.push(part);
  const body = parsed(parts);
  const isLegacy = await isLegacyRequest(await toWebRequest(request, body), body);
  await (isLegacy ? session(request, response, body) : handler(request, response, body));
}).listen(Number(port), address, () => console.log('starts'));
