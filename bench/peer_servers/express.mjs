// The official Express middleware selling `POST /echo`.
import express from "express";
import { HTTPFacilitatorClient } from "@x402/core/server";
import { paymentMiddleware, x402ResourceServer } from "@x402/express";
import { ExactEvmScheme } from "@x402/evm/exact/server";

const network = "eip155:84532";
const facilitator = new HTTPFacilitatorClient({ url: process.env.FACILITATOR_URL });
const server = new x402ResourceServer(facilitator).register(network, new ExactEvmScheme());
const accepts = { scheme: "exact", network, payTo: process.env.PAYEE, price: "$0.01" };
const app = express();
app.get("/health", (request, response) => response.json({ ok: true }));
app.use(paymentMiddleware({ "POST /echo": { accepts } }, server));
app.post("/echo", express.json(), (request, response) => response.json({ done: true }));
app.listen(Number(process.env.PORT), "127.0.0.1");
