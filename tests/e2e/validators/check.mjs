// Reads {required, receipt} as JSON and prints what the published validators say of them.
import { validatePaymentRequiredDetailed } from "@agentcash/discovery";
import { validateDiscoveryExtension } from "@x402/extensions/bazaar";
import {
  extractOffersFromPaymentRequired,
  verifyOfferSignatureEIP712,
  verifyReceiptSignatureEIP712,
} from "@x402/extensions/offer-receipt";

let text = "";
for await (const part of process.stdin) text += part;
const { required, receipt } = JSON.parse(text);
const strict = validatePaymentRequiredDetailed(required, { compatMode: "strict" });
const offers = await Promise.all(extractOffersFromPaymentRequired(required).map(verifyOfferSignatureEIP712));
const receipts = receipt ? [await verifyReceiptSignatureEIP712(receipt)] : [];
console.log(
  JSON.stringify({
    valid: strict.valid,
    issues: strict.issues,
    bazaar: validateDiscoveryExtension(required.extensions.bazaar),
    offers: offers.map(({ signer, payload }) => ({ signer, amount: payload.amount, url: payload.resourceUrl })),
    receipts: receipts.map(({ signer, payload }) => ({ signer, url: payload.resourceUrl })),
  }),
);
