"use strict";
// Transports of RSocket over HTTP/2 streams, by node's own http2: POST, content-type application/rsocket, and then
// the bytes that TCP would carry. The library's connection over TCP takes an HTTP/2 stream for its socket.

const http2 = require("http2");
const { Deserializer } = require("rsocket-core");
const { TcpDuplexConnection: ClientConnection } = require("rsocket-tcp-client/dist/TcpDuplexConnection");
const { TcpDuplexConnection: ServerConnection } = require("rsocket-tcp-server/dist/TcpDuplexConnection");

const TYPE = "application/rsocket";
const { NGHTTP2_CANCEL } = http2.constants;

// A socket ends its half when the other ends, and an HTTP/2 stream does not.
function endWithThePeer(stream) {
  stream.on("end", () => stream.end());
}

// Each `connect` opens one more stream of one HTTP/2 connection, which ends with the last of them.
class Http2ClientTransport {
  constructor({ url, path = "/", headers = {} }) {
    Object.assign(this, { url, path, headers, session: null, open: 0 });
  }

  connect(multiplexerDemultiplexerFactory) {
    return new Promise((resolve, reject) => {
      if (this.session === null) {
        this.session = http2.connect(this.url);
        this.session.on("error", reject);
      }
      const stream = this.session.request(
        { ":method": "POST", ":path": this.path, "content-type": TYPE, ...this.headers },
        { endStream: false }
      );
      this.open++;
      stream.on("close", () => {
        if (--this.open === 0) this.session.close();
      });
      stream.on("error", reject);
      stream.once("response", ({ ":status": status }) => {
        if (status !== 200) {
          stream.close(NGHTTP2_CANCEL);
          return reject(new Error(`answered ${status}`));
        }
        endWithThePeer(stream);
        resolve(new ClientConnection(stream, new Deserializer(), multiplexerDemultiplexerFactory));
      });
    });
  }
}

// Serves each stream as a connection. `server` is there once it is bound, `sessions` counts HTTP/2 connections.
class Http2ServerTransport {
  constructor({ listenOptions }) {
    Object.assign(this, { listenOptions, server: http2.createServer(), sessions: 0 });
  }

  bind(connectionAcceptor, multiplexerDemultiplexerFactory) {
    const { server } = this;
    server.on("session", () => this.sessions++);
    server.on("stream", (stream, headers) => {
      stream.on("error", () => {});
      if (headers[":method"] !== "POST") return stream.respond({ ":status": 405 }, { endStream: true });
      if (headers["content-type"] !== TYPE) return stream.respond({ ":status": 415 }, { endStream: true });
      stream.respond({ ":status": 200, "content-type": TYPE });
      endWithThePeer(stream);
      ServerConnection.create(stream, connectionAcceptor, multiplexerDemultiplexerFactory);
    });
    return new Promise((resolve, reject) => {
      server.once("error", reject);
      server.listen(this.listenOptions, () => resolve({ close: () => server.close(), onClose() {} }));
    });
  }
}

module.exports = { Http2ClientTransport, Http2ServerTransport };
