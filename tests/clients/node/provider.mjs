// An OpenID Connect provider: the oidc-provider package with its own pages for people, where any name and password
// sign in. Each start has new keys and knows nobody, so that a restart is a rotation of the keys.
//
// Arguments: the port (0: any), the server's URL, and a JSON file with the groups of everyone.

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { Provider } from "oidc-provider";
import { newPrivateKey } from "./keys.mjs";

const [port, server, groups] = process.argv.slice(2);
const key = { ...newPrivateKey().export({ format: "jwk" }), use: "sig", alg: "RS256", kid: String(Date.now()) };

const configuration = {
    clients: [{
        client_id: "lode",
        client_secret: "secret of the provider",
        redirect_uris: [`${server}/login/corp/callback`],
        post_logout_redirect_uris: [`${server}/login`],
    }],
    jwks: { keys: [key] },
    cookies: { keys: ["a key for cookies"] },
    claims: { openid: ["sub"], profile: ["preferred_username", "groups"] },
    findAccount: (_, id) => ({
        accountId: id,
        claims: () => ({ sub: id, preferred_username: id, groups: JSON.parse(readFileSync(groups)) }),
    }),
};

const http = createServer().listen(Number(port), "127.0.0.1", () => {
    const url = `http://127.0.0.1:${http.address().port}`;
    http.on("request", new Provider(url, configuration).callback());
    console.log(`listening on ${url}`);
});
