// RSA keys of the servers that stand for identity providers.

import { createPrivateKey, generateKeyPairSync } from "node:crypto";

// Node 20 blocks forever if it exports or uses a generated key while it collects the memory of the generation, because both
// take the lock of the key. A key that was read from its text has a lock of its own.
export function newPrivateKey() {
    const { privateKey } = generateKeyPairSync("rsa", {
        modulusLength: 2048,
        publicKeyEncoding: { type: "spki", format: "pem" },
        privateKeyEncoding: { type: "pkcs8", format: "pem" },
    });
    return createPrivateKey(privateKey);
}
