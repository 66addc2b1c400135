// A server and a client of rsocket-java with the interactions that the conformance cases need.
// "mvn compile" builds it. Then, with target/classes:target/dependency/* as the class path:
//   java Peer server [PORT [ws]]  prints "listening URI" and serves until it is ended, over WebSocket if "ws" is said
//   java Peer client              is started by rsocket-trio conformance --role client: RSOCKET_URI says where it
//                                 connects, and RSOCKET_ASKS what it asks then
// Both resume sessions if RSOCKET_WITH has "resume", and take and grant leases if it has "leases".

import io.rsocket.Payload;
import io.rsocket.RSocket;
import io.rsocket.SocketAcceptor;
import io.rsocket.core.RSocketConnector;
import io.rsocket.core.RSocketServer;
import io.rsocket.core.Resume;
import io.rsocket.lease.Lease;
import io.rsocket.transport.netty.client.TcpClientTransport;
import io.rsocket.transport.netty.client.WebsocketClientTransport;
import io.rsocket.transport.netty.server.CloseableChannel;
import io.rsocket.transport.netty.server.TcpServerTransport;
import io.rsocket.transport.netty.server.WebsocketServerTransport;
import io.rsocket.util.DefaultPayload;
import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.reactivestreams.Publisher;
import org.reactivestreams.Subscription;
import reactor.core.publisher.BaseSubscriber;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;
import reactor.core.publisher.Sinks;
import reactor.util.retry.Retry;

public final class Peer {
  private static final String HOST = "127.0.0.1";
  private static final String PORT = "7878";
  private static final String OCTETS = "application/octet-stream";

  /** What it takes part in beside the interactions: resume or leases. */
  private static final List<String> OPTIONS =
      List.of(System.getenv().getOrDefault("RSOCKET_WITH", "").split(","));

  private static final Duration SESSION = Duration.ofMinutes(2);

  /** Between two tries to connect again. */
  private static final Duration PAUSE = Duration.ofMillis(100);

  /** Items that a stream or channel of the client asks for, once. */
  private static final int CREDIT = 2;

  /** Requests that wait for a lease. */
  private static final int PENDING = 16;

  /** Items that a channel's requester may send before one of them was echoed. */
  private static final int ITEMS_AHEAD = 4;

  public static void main(String[] words) throws InterruptedException {
    if (words[0].equals("client")) {
      ask(connect(URI.create(System.getenv("RSOCKET_URI"))), System.getenv("RSOCKET_ASKS"));
    } else {
      serve(Integer.parseInt(words.length > 1 ? words[1] : PORT), words.length > 2 ? words[2] : "tcp");
    }
    new CountDownLatch(1).await();
  }

  /** The interactions, none of which needs a route. */
  private static final class Responder implements RSocket {
    /** Answers with the request; never answers one that says "silent". */
    @Override
    public Mono<Payload> requestResponse(Payload payload) {
      return payload.getDataUtf8().equals("silent") ? Mono.never() : Mono.just(payload);
    }

    /** Counts, as far as the data says. */
    @Override
    public Flux<Payload> requestStream(Payload payload) {
      String data = payload.getDataUtf8();
      long end = data.isEmpty() ? Long.MAX_VALUE : Long.parseLong(data);
      return Flux.generate(
          () -> 0L,
          (next, sink) -> {
            if (next < end) {
              sink.next(DefaultPayload.create(String.valueOf(next)));
            }
            if (next + 1 >= end) {
              sink.complete();
            }
            return next + 1;
          });
    }

    /** Sends back each item. */
    @Override
    public Flux<Payload> requestChannel(Publisher<Payload> payloads) {
      return Flux.from(payloads).limitRate(ITEMS_AHEAD, 1);
    }

    @Override
    public Mono<Void> fireAndForget(Payload payload) {
      return Mono.empty();
    }

    @Override
    public Mono<Void> metadataPush(Payload payload) {
      return Mono.empty();
    }
  }

  private static void serve(int port, String scheme) {
    RSocketServer server = RSocketServer.create(SocketAcceptor.with(new Responder()));
    if (OPTIONS.contains("resume")) {
      server.resume(new Resume().sessionDuration(SESSION));
    }
    if (OPTIONS.contains("leases")) {
      server.lease(leases -> leases.sender(Peer::leases));
    }
    CloseableChannel listener =
        scheme.equals("ws")
            ? server.bindNow(WebsocketServerTransport.create(HOST, port))
            : server.bindNow(TcpServerTransport.create(HOST, port));
    System.out.println("listening " + scheme + "://" + HOST + ":" + listener.address().getPort());
  }

  /** Grants 3 requests for 2 seconds, and that again every 3 seconds. */
  private static Flux<Lease> leases() {
    return Flux.interval(Duration.ZERO, Duration.ofSeconds(3))
        .map(number -> Lease.create(Duration.ofSeconds(2), 3));
  }

  private static RSocket connect(URI uri) {
    RSocketConnector connector =
        RSocketConnector.create()
            .dataMimeType(OCTETS)
            .metadataMimeType(OCTETS)
            .keepAlive(Duration.ofSeconds(2), Duration.ofSeconds(8))
            .acceptor(SocketAcceptor.with(new Responder()));
    if (OPTIONS.contains("resume")) {
      connector.resume(new Resume().sessionDuration(SESSION).retry(Retry.fixedDelay(100, PAUSE)));
    }
    if (OPTIONS.contains("leases")) {
      connector.lease(leases -> leases.sender(Peer::leases).maxPendingRequests(PENDING));
    }
    return uri.getScheme().equals("ws")
        ? connector.connect(WebsocketClientTransport.create(uri)).block()
        : connector.connect(TcpClientTransport.create(uri.getHost(), uri.getPort())).block();
  }

  /** Makes the request, and one more with what answered it. */
  private static void ask(RSocket peer, String asks) {
    switch (asks) {
      case "request" -> peer.requestResponse(DefaultPayload.create("q")).subscribe(answer -> repeat(peer, answer), e -> {});
      case "stream" -> peer.requestStream(DefaultPayload.create("s")).subscribe(new Items(peer));
      case "channel" -> converse(peer);
      default -> {}
    }
  }

  private static void repeat(RSocket peer, Payload answer) {
    peer.requestResponse(DefaultPayload.create(answer.data())).subscribe(again -> {}, e -> {});
  }

  /** Sends back what comes on a channel. */
  private static void converse(RSocket peer) {
    Sinks.Many<Payload> out = Sinks.many().unicast().onBackpressureBuffer();
    out.tryEmitNext(DefaultPayload.create("c"));
    peer.requestChannel(out.asFlux())
        .subscribe(
            new Credited() {
              @Override
              protected void hookOnNext(Payload item) {
                out.tryEmitNext(DefaultPayload.create(item.data()));
              }
            });
  }

  /** Asks for a few items, and for none after them. */
  private static class Credited extends BaseSubscriber<Payload> {
    @Override
    protected void hookOnSubscribe(Subscription subscription) {
      subscription.request(CREDIT);
    }

    @Override
    protected void hookOnError(Throwable error) {
      // The connection is to go on.
    }
  }

  /** Sends the last item of a stream as one more request. */
  private static final class Items extends Credited {
    private final RSocket peer;
    private Payload last;

    Items(RSocket peer) {
      this.peer = peer;
    }

    @Override
    protected void hookOnNext(Payload item) {
      last = item;
    }

    @Override
    protected void hookOnComplete() {
      if (last != null) {
        repeat(peer, last);
      }
    }
  }
}
