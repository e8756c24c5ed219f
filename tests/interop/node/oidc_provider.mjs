// An OpenID Connect provider (oidc-provider) on a free port of loopback: its address is the first line of
// standard output. Arguments: the directory of the packages, and JSON {clientId, clientSecret, redirectUris, people: {name: [role, ...]}, inToken}.
// A person signs in with any password. With `inToken` the identity has all claims, else the userinfo has them.
import { createServer } from 'node:http';
import { pathToFileURL } from 'node:url';

const { default: Provider } = await import(pathToFileURL(`${process.argv[2]}/oidc-provider/lib/index.js`));
const given = JSON.parse(process.argv[3]);
const server = createServer();
await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
const issuer = `http://127.0.0.1:${server.address().port}`;
const provider = new Provider(issuer, {
  clients: [{
    client_id: given.clientId,
    client_secret: given.clientSecret,
    redirect_uris: given.redirectUris,
    response_types: ['code'],
    grant_types: ['authorization_code'],
  }],
  claims: { openid: ['sub'], profile: ['preferred_username', 'roles'], email: [] },
  conformIdTokenClaims: !given.inToken,
  pkce: { required: () => true },
  features: { devInteractions: { enabled: true } },
  findAccount: (_context, id) => given.people[id] && {
    accountId: id,
    claims: () => ({ sub: id, preferred_username: id, roles: given.people[id] }),
  },
});
server.on('request', provider.callback());
console.log(issuer);
process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
