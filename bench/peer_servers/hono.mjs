// The official Hono middleware selling `POST /echo`.
import { serve } from "@hono/node-server";
import { Hono } from "hono";
import { HTTPFacilitatorClient } from "@x402/core/server";
import { paymentMiddleware, x402ResourceServer } from "@x402/hono";
import { ExactEvmScheme } from "@x402/evm/exact/server";

const network = "eip155:84532";
const facilitator = new HTTPFacilitatorClient({ url: process.env.FACILITATOR_URL });
const server = new x402ResourceServer(facilitator).register(network, new ExactEvmScheme());
const accepts = { scheme: "exact", network, payTo: process.env.PAYEE, price: "$0.01" };
const app = new Hono();
app.get("/health", (context) => context.json({ ok: true }));
app.use(paymentMiddleware({ "POST /echo": { accepts } }, server));
app.post("/echo", async (context) => { await context.req.json(); return context.json({ done: true }); });
serve({ fetch: app.fetch, hostname: "127.0.0.1", port: Number(process.env.PORT) });
