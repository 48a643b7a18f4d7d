// Buys once with one of the published clients: reads {url, contract, body} from stdin, prints what came back.
import { readFileSync } from "node:fs";
import { privateKeyToAccount } from "viem/accounts";

const { url, contract, body } = JSON.parse(readFileSync(0, "utf8"));
const account = privateKeyToAccount(process.env.SEEKER_KEY);
const headers = { "Content-Type": "application/json", ...(contract && { "X-Contract-ID": contract }) };

const decode = (value) => (value ? JSON.parse(Buffer.from(value, "base64").toString("utf8")) : null);

async function schemes() {
  const { ExactEvmScheme } = await import("@x402/evm");
  return { schemes: [{ network: "eip155:84532", client: new ExactEvmScheme(account) }] };
}

async function byFetch(pay) {
  const answer = await pay(url, { method: "POST", headers, body: JSON.stringify(body) });
  return { status: answer.status, body: await answer.json(), header: (name) => answer.headers.get(name) };
}

const clients = {
  "@x402/fetch": async () => {
    const { wrapFetchWithPaymentFromConfig } = await import("@x402/fetch");
    return byFetch(wrapFetchWithPaymentFromConfig(fetch, await schemes()));
  },
  "@x402/axios": async () => {
    const { wrapAxiosWithPaymentFromConfig } = await import("@x402/axios");
    const { default: axios } = await import("axios");
    const api = wrapAxiosWithPaymentFromConfig(axios.create(), await schemes());
    const answer = await api.post(url, body, { headers });
    return { status: answer.status, body: answer.data, header: (name) => answer.headers[name.toLowerCase()] };
  },
  "x402-fetch": async () => {
    const { wrapFetchWithPayment } = await import("x402-fetch");
    const { createWalletClient, http } = await import("viem");
    const { baseSepolia } = await import("viem/chains");
    const wallet = createWalletClient({ account, transport: http(), chain: baseSepolia });
    return byFetch(wrapFetchWithPayment(fetch, wallet));
  },
};

const answer = await clients[process.argv[2]]();
const paid = decode(answer.header("PAYMENT-RESPONSE"));
console.log(JSON.stringify({ status: answer.status, body: answer.body, paid }));
process.exit(0);
