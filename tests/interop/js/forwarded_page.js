"use strict";
// For a browser, where it is bundled for: window.greet(URI, NAME) asks the route `greet` by rsocket-js, and returns the answer.

const { encodeCompositeMetadata, encodeRoute } = require("rsocket-composite-metadata");
const { RSocketConnector } = require("rsocket-core");
const { WebsocketClientTransport } = require("rsocket-websocket-client");

const ROUTE = "message/x.rsocket.routing.v0";

window.greet = async (url, name) => {
  const socket = await new RSocketConnector({
    transport: new WebsocketClientTransport({ url }),
    setup: {
      dataMimeType: "application/octet-stream",
      metadataMimeType: "message/x.rsocket.composite-metadata.v0",
      keepAlive: 20000,
      lifetime: 90000,
    },
  }).connect();
  const metadata = encodeCompositeMetadata([[ROUTE, encodeRoute("greet")]]);
  try {
    return await new Promise((resolve, reject) =>
      socket.requestResponse(
        { data: Buffer.from(name), metadata },
        { onError: reject, onNext: (payload) => resolve(payload.data.toString()), onComplete() {}, onExtension() {} },
      ),
    );
  } finally {
    socket.close();
  }
};
