// A certified OpenID provider on loopback, for the tests. tests/oidc/__init__.py starts it:
//
//   node provider.js FOLDER PORT
//
// It says {"issuer": ...} on standard output when it listens, keeps its signing keys in FOLDER/keys.json, so that it
// is the same issuer after a restart, and ends when its standard input closes. Under /test/ the tests steer it.

import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import path from 'node:path';

import { Provider } from 'oidc-provider';

const [folder, wantedPort] = process.argv.slice(2);
const keyFile = path.join(folder, 'keys.json');

const RESOURCE_SCOPES = ['inference', 'files', 'metrics', 'admin'];

// What the provider knows of people, and of services by their client id; the tests may change it while it runs.
const accounts = {
  alice: { name: 'Alice', email: 'alice@acme.example', tenant: 'acme', groups: ['engineering'], roles: ['user'] },
  bob: { name: 'Bob', email: 'bob@acme.example', tenant: 'acme', groups: ['sales'], roles: ['knowledge-manager'] },
  carol: { name: 'Carol', email: 'carol@acme.example', tenant: 'acme', groups: ['it'], roles: ['admin'] },
  dave: { name: 'Dave', email: 'dave@globex.example', tenant: 'globex', groups: ['engineering'], roles: ['user'] },
  service: { tenant: 'acme', roles: ['user'] },
};

const clients = [
  {
    client_id: 'service',
    client_secret: 'service-secret',
    grant_types: ['client_credentials'],
    response_types: [],
    redirect_uris: [],
  },
  {
    client_id: 'resource-server',
    client_secret: 'resource-server-secret',
    grant_types: [],
    response_types: [],
    redirect_uris: [],
  },
  {
    client_id: 'cli',
    application_type: 'native',
    token_endpoint_auth_method: 'none',
    grant_types: ['urn:ietf:params:oauth:grant-type:device_code', 'refresh_token'],
    response_types: [],
    redirect_uris: [],
  },
  {
    client_id: 'web',
    client_secret: 'web-secret',
    token_endpoint_auth_method: 'client_secret_basic',
    grant_types: ['authorization_code', 'refresh_token'],
    redirect_uris: ['http://127.0.0.1:1/callback'],
  },
];

function newKey() {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  return { ...privateKey.export({ format: 'jwk' }), kid: randomUUID(), alg: 'RS256', use: 'sig' };
}

function saveKeys(keys) {
  writeFileSync(keyFile, JSON.stringify({ keys }), { mode: 0o600 });
  return keys;
}

// The first key signs.
let keys = existsSync(keyFile) ? JSON.parse(readFileSync(keyFile, 'utf8')).keys : saveKeys([newKey()]);

function claimsOf(id) {
  const { tenant, groups, roles } = accounts[id] ?? {};
  return { tenant, groups, roles };
}

// Any absolute URI is a resource. One that holds "opaque" gets opaque tokens, the others JWTs by RFC 9068.
function resourceServer(resource) {
  const opaque = resource.includes('opaque');
  return {
    audience: resource,
    scope: RESOURCE_SCOPES.join(' '),
    accessTokenTTL: 600,
    accessTokenFormat: opaque ? 'opaque' : 'jwt',
    ...(opaque ? {} : { jwt: { sign: { alg: 'RS256' } } }),
  };
}

function makeProvider(issuer) {
  return new Provider(issuer, {
    clients,
    jwks: { keys },
    cookies: { keys: ['a key for signing the cookies of the tests'] },
    clientAuthMethods: ['none', 'client_secret_basic', 'client_secret_post'],
    conformIdTokenClaims: false, // as most products do: the claims are in the ID token too
    claims: { openid: ['sub'], profile: ['name', 'tenant', 'groups', 'roles'], email: ['email'] },
    findAccount: (_ctx, id) => ({ accountId: id, claims: () => ({ sub: id, ...accounts[id] }) }),
    extraTokenClaims: (_ctx, token) => claimsOf(token.accountId ?? token.clientId),
    fetch: (url, { method, headers, body, signal }) => fetch(url, { method, headers, body, signal }),
    ttl: { AccessToken: 600, ClientCredentials: 600, DeviceCode: 600, IdToken: 600, Session: 3600, Grant: 3600, Interaction: 600, RefreshToken: 3600 },
    features: {
      devInteractions: { enabled: true },
      clientCredentials: { enabled: true },
      introspection: { enabled: true },
      revocation: { enabled: true },
      deviceFlow: { enabled: true },
      registration: { enabled: true },
      rpInitiatedLogout: { enabled: true },
      backchannelLogout: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_ctx, resource) => resourceServer(resource),
        useGrantedResource: () => true,
      },
    },
  });
}

const requests = {}; // how often each path was asked for
let handle; // of the present provider

async function bodyOf(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return JSON.parse(Buffer.concat(parts).toString() || '{}');
}

const steering = {
  // A new key signs from now on; with drop the old ones are gone, otherwise they are still published.
  async '/test/rotate'(request) {
    const { drop } = await bodyOf(request);
    keys = saveKeys([newKey(), ...(drop ? [] : keys)]);
    serve();
    return { kid: keys[0].kid };
  },
  async '/test/accounts'(request) {
    return Object.assign(accounts, await bodyOf(request));
  },
  async '/test/requests'() {
    return requests;
  },
};

const server = createServer(async (request, response) => {
  const { pathname } = new URL(request.url, 'http://localhost');
  if (!steering[pathname]) {
    requests[pathname] = (requests[pathname] ?? 0) + 1;
    handle(request, response);
    return;
  }
  const answer = await steering[pathname](request);
  response.setHeader('content-type', 'application/json').end(JSON.stringify(answer));
});

// Tokens, sessions and grants lie in the adapter's memory, which all providers of this process share.
function serve() {
  handle = makeProvider(`http://127.0.0.1:${server.address().port}`).callback();
}

server.listen(Number(wantedPort), '127.0.0.1', () => {
  serve();
  console.log(JSON.stringify({ issuer: `http://127.0.0.1:${server.address().port}` }));
});
process.stdin.on('end', () => process.exit()).resume();
