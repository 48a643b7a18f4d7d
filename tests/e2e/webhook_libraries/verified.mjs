// Prints what the page's function says of a call that arrives on standard input.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { verified } = await import(pathToFileURL(process.argv[2]));
const { key, headers, body } = JSON.parse(readFileSync(0, "utf8"));
console.log(verified(key, headers, Buffer.from(body, "base64")));
