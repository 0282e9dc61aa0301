// A client of MCP for the conformance suites: `conformance-client.mjs URL`, which calls all that the server offers. The suite sets
// MCP_CONFORMANCE_SCENARIO, _CONTEXT and _PROTOCOL_VERSION; packages are taken from PACKAGES. LOCALHOST is the name by which the suite's
// localhost is reached.
import { createRequire } from 'node:module';

const require = createRequire(`${process.env.PACKAGES}/`);
const {
  Client,
  ClientCredentialsProvider,
  CrossAppAccessProvider,
  DpopSession,
  PrivateKeyJwtProvider,
  StreamableHTTPClientTransport,
  UnauthorizedError,
  requestJwtAuthorizationGrant,
} = require('@modelcontextprotocol/client');

const url = new URL(process.argv.at(-1));
const scenario = process.env.MCP_CONFORMANCE_SCENARIO ?? '';
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}');
const revision = process.env.MCP_CONFORMANCE_PROTOCOL_VERSION ?? '';
const mode = revision >= '2026' ? 'auto' : 'legacy';
const named = address => String(address).replace('//localhost:', `//${process.env.LOCALHOST ?? 'localhost'}:`);
const fetchNamed = (address, options) => fetch(named(address), options);
const redirectUrl = 'http://localhost:3000/callback';

class Provider {
  redirectUrl = redirectUrl;
  clientMetadataUrl = 'https://conformance-test.local/client-metadata.json';
  clientMetadata = {
    client_name: 'conformance',
    redirect_uris: [redirectUrl],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
  };
  rounds = 0;
  #information = context.client_id && { client_id: context.client_id, client_secret: context.client_secret, issuer: context.issuer };
  #tokens;
  #verifier;
  #discovered;
  clientInformation() {
    return this.#information;
  }
  saveClientInformation(information) {
    this.#information = information;
  }
  tokens() {
    return this.#tokens;
  }
  saveTokens(tokens) {
    this.#tokens = tokens;
  }
  codeVerifier() {
    return this.#verifier;
  }
  saveCodeVerifier(verifier) {
    this.#verifier = verifier;
  }
  discoveryState() {
    return this.#discovered;
  }
  saveDiscoveryState(state) {
    this.#discovered = state;
  }
  invalidateCredentials(what) {
    if (['all', 'client'].includes(what)) this.#information = undefined;
    if (['all', 'tokens'].includes(what)) this.#tokens = undefined;
    if (['all', 'discovery'].includes(what)) this.#discovered = undefined;
  }
  async redirectToAuthorization(page) {
    if (++this.rounds > 3) throw new Error('too many authorizations');
    const response = await fetchNamed(page, { redirect: 'manual' });
    this.callback = new URL(response.headers.get('location')).searchParams;
  }
}

class WorkloadProvider extends Provider {
  redirectUrl = undefined;
  prepareTokenRequest(scope) {
    const grant_type = 'urn:ietf:params:oauth:grant-type:jwt-bearer';
    return new URLSearchParams({ grant_type, assertion: context.valid_jwt, ...(scope && { scope }) });
  }
}

class BoundProvider extends Provider {
  #session = DpopSession.create();
  dpop() {
    return this.#session;
  }
}

function provider() {
  const { client_id: clientId, client_secret: clientSecret, private_key_pem: privateKey, signing_algorithm: algorithm } = context;
  if (scenario === 'auth/client-credentials-jwt') return new PrivateKeyJwtProvider({ clientId, privateKey, algorithm });
  if (scenario === 'auth/client-credentials-basic') return new ClientCredentialsProvider({ clientId, clientSecret });
  if (scenario === 'auth/wif-jwt-bearer') return new WorkloadProvider();
  if (scenario.startsWith('auth/dpop')) return new BoundProvider();
  if (!context.idp_id_token) return new Provider();
  const assertion = async ({ authorizationServerUrl, resourceUrl, scope }) => {
    const { jwtAuthGrant } = await requestJwtAuthorizationGrant({
      tokenEndpoint: context.idp_token_endpoint,
      audience: authorizationServerUrl,
      resource: resourceUrl,
      idToken: context.idp_id_token,
      clientId: context.idp_client_id,
      scope,
      fetchFn: fetchNamed,
    });
    return jwtAuthGrant;
  };
  return new CrossAppAccessProvider({ assertion, clientId, clientSecret });
}

const authProvider = scenario.startsWith('auth/') ? provider() : undefined;
let client;
let transport;

async function authorized(action) {
  for (;;) {
    try {
      return await action();
    } catch (error) {
      if (!(error instanceof UnauthorizedError) || !authProvider?.callback) throw error;
      const { callback } = authProvider;
      authProvider.callback = undefined;
      await transport.finishAuth(callback);
      authProvider.invalidateCredentials('discovery');
    }
  }
}

async function connect() {
  const capabilities = { elicitation: { form: { applyDefaults: true } }, roots: {}, sampling: {} };
  client = new Client({ name: 'conformance', version: '1' }, { capabilities, versionNegotiation: { mode } });
  client.setRequestHandler('elicitation/create', () => ({ action: 'accept', content: {} }));
  client.setRequestHandler('roots/list', () => ({ roots: [{ uri: 'file:///work' }] }));
  const content = { type: 'text', text: 'sampled' };
  client.setRequestHandler('sampling/createMessage', () => ({ role: 'assistant', model: 'none', content }));
  const skipIssuerMetadataValidation = scenario.startsWith('auth/2025-03-26');
  transport = new StreamableHTTPClientTransport(url, { authProvider, fetch: fetchNamed, skipIssuerMetadataValidation });
  await client.connect(transport);
}

const values = { boolean: true, integer: 1, number: 1, string: 'some' };

function filled(schema) {
  const properties = Object.entries(schema.properties ?? {});
  return Object.fromEntries(properties.filter(([, { type }]) => type in values).map(([name, { type }]) => [name, values[type]]));
}

async function attempt(what, action) {
  try {
    console.log(what, '->', JSON.stringify(await authorized(action)));
  } catch (error) {
    console.log(what, 'refused:', error.code, error.message);
  }
}

await authorized(connect);
const { prompts, resources, tools: offers } = client.getServerCapabilities() ?? {};
const { tools } = offers ? await authorized(() => client.listTools()) : { tools: [] };
const examined = tools.find(tool => tool.name === 'json_schema_2020_12_tool');
const known = { json_schema_echo: { schema: examined?.inputSchema } };
const planned = context.toolCalls ?? tools.map(tool => ({ name: tool.name, arguments: known[tool.name] ?? filled(tool.inputSchema) }));
for (const call of planned) await attempt(call.name, () => client.callTool(call));
if (resources) {
  const { resources: listed } = await client.listResources();
  for (const { uri } of listed) await attempt(uri, () => client.readResource({ uri }));
}
if (prompts) {
  const { prompts: listed } = await client.listPrompts();
  for (const { name } of listed) await attempt(name, () => client.getPrompt({ name }));
}
await client.close();
