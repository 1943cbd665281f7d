// The issuer of a CI service: its metadata, its key, and, as GitHub Actions has it, an address at which a job
// requests its token. Argument: a JSON file with the claims of the job.

import { createPublicKey, randomUUID, sign } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";

import { newPrivateKey } from "./keys.mjs";

const [claims] = process.argv.slice(2);
const privateKey = newPrivateKey();
const publicKey = createPublicKey(privateKey).export({ format: "jwk" });
const encode = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");

function token(issuer, audience) {
    const now = Math.floor(Date.now() / 1000);
    const times = { iss: issuer, aud: audience, iat: now, nbf: now, exp: now + 300, jti: randomUUID() };
    const signed = `${encode({ alg: "RS256", kid: "1", typ: "JWT" })}.${encode({ ...JSON.parse(readFileSync(claims)), ...times })}`;
    return `${signed}.${sign("sha256", signed, privateKey).toString("base64url")}`;
}

const http = createServer((request, response) => {
    const issuer = `http://127.0.0.1:${http.address().port}`;
    const url = new URL(request.url, issuer);
    const answer = {
        "/.well-known/openid-configuration": () => ({ issuer, jwks_uri: `${issuer}/keys` }),
        "/keys": () => ({ keys: [{ ...publicKey, use: "sig", alg: "RS256", kid: "1" }] }),
        "/job": () => {
            const isJob = request.headers.authorization === "Bearer job-credential";
            return isJob && { value: token(issuer, url.searchParams.get("audience")) };
        },
    }[url.pathname]?.();
    response.writeHead(answer ? 200 : 404, { "content-type": "application/json" });
    response.end(JSON.stringify(answer || {}));
}).listen(0, "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${http.address().port}`));
