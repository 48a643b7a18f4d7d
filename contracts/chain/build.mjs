// Compiles the contracts beside this file and writes one artifact each: `npm install --no-package-lock && npm run build`.
// With --check it writes nothing and fails when a committed artifact differs from its source.
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import solc from "solc";

const here = fileURLToPath(new URL(".", import.meta.url));
const checking = process.argv.includes("--check");

// cancun: the local EVM runs prague rules, which contain it, and so does every public network used here.
// No metadata hash: the bytecode then depends on the source alone, not on comments or paths.
const settings = {
  evmVersion: "cancun",
  viaIR: true,
  optimizer: { enabled: true, runs: 200 },
  metadata: { bytecodeHash: "none", appendCBOR: false },
  outputSelection: { "*": { "*": ["abi", "evm.bytecode.object", "evm.deployedBytecode.object"] } },
};

let stale = false;
for (const name of ["TestDollar", "TestWallet"]) {
  const file = `${name}.sol`;
  const sources = { [file]: { content: readFileSync(here + file, "utf8") } };
  const output = JSON.parse(solc.compile(JSON.stringify({ language: "Solidity", sources, settings })));
  for (const message of output.errors ?? []) process.stderr.write(message.formattedMessage);
  if ((output.errors ?? []).length > 0) process.exit(1);
  const built = output.contracts[file][name];
  const artifact = {
    contract: name,
    source: `contracts/chain/${file}`,
    compiler: `solc ${solc.version()}`,
    command: "cd contracts/chain && npm install --no-package-lock && npm run build",
    settings,
    abi: built.abi,
    bytecode: "0x" + built.evm.bytecode.object,
    deployedBytecode: "0x" + built.evm.deployedBytecode.object,
  };
  const text = JSON.stringify(artifact, null, 1) + "\n";
  const path = `${here}${name}.json`;
  if (!checking) writeFileSync(path, text);
  else if (readFileSync(path, "utf8") !== text) {
    process.stderr.write(`${name}.json does not match ${file}\n`);
    stale = true;
  }
}
process.exit(stale ? 1 : 0);
