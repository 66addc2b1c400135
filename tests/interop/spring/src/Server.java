import io.rsocket.core.RSocketServer;
import io.rsocket.exceptions.ApplicationErrorException;
import io.rsocket.transport.netty.server.CloseableChannel;
import io.rsocket.transport.netty.server.TcpServerTransport;
import io.rsocket.transport.netty.server.WebsocketServerTransport;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.springframework.messaging.handler.annotation.DestinationVariable;
import org.springframework.messaging.handler.annotation.MessageMapping;
import org.springframework.messaging.handler.annotation.Payload;
import org.springframework.messaging.rsocket.RSocketRequester;
import org.springframework.messaging.rsocket.RSocketStrategies;
import org.springframework.messaging.rsocket.annotation.ConnectMapping;
import org.springframework.messaging.rsocket.annotation.support.RSocketMessageHandler;
import org.springframework.security.core.context.ReactiveSecurityContextHolder;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

/** The service as Spring writes it. The tests serve the same with typed handlers. */
final class Server {
  static final String HOST = "127.0.0.1";
  static final double PRICE = 2.5;
  static final int TICKS = 500;
  static final String DETAILS = "{\"reason\":\"sold out\",\"left\":2}";

  private final ConcurrentLinkedQueue<Order> notes = new ConcurrentLinkedQueue<>();
  private final ConcurrentHashMap<RSocketRequester, String> names = new ConcurrentHashMap<>();

  /** Serves on free ports, and prints the URI of each: over TCP, over WebSocket, and for users only. */
  static void start(int fragment) {
    RSocketStrategies strategies = Codecs.strategies();
    CloseableChannel tcp = server(strategies, false, fragment).bindNow(TcpServerTransport.create(HOST, 0));
    CloseableChannel ws = server(strategies, false, fragment).bindNow(WebsocketServerTransport.create(HOST, 0));
    CloseableChannel strict = server(strategies, true, fragment).bindNow(TcpServerTransport.create(HOST, 0));
    System.out.printf(
        "listening tcp://%s:%d ws://%s:%d tcp://%s:%d%n",
        HOST, tcp.address().getPort(), HOST, ws.address().getPort(), HOST, strict.address().getPort());
  }

  private static RSocketServer server(RSocketStrategies strategies, boolean isStrict, int fragment) {
    return RSocketServer.create(RSocketMessageHandler.responder(strategies, new Server()))
        .fragment(fragment)
        .interceptors(all -> all.forSocketAcceptor(Access.interceptor(strategies, isStrict)));
  }

  @ConnectMapping
  Mono<Void> connectedWithoutRoute(RSocketRequester requester) {
    return Mono.empty();
  }

  @ConnectMapping("hello.{place}")
  Mono<Void> connected(RSocketRequester requester, @DestinationVariable String place, @Payload Hello hello) {
    if (hello.name().equals("refuse")) {
      return Mono.error(new IllegalStateException("refused as asked"));
    }
    names.put(requester, hello.name() + " of " + place);
    requester.rsocket().onClose().doFinally(end -> names.remove(requester)).subscribe();
    return Mono.empty();
  }

  /** What the SETUP of this connection said. */
  @MessageMapping("name")
  Mono<String> name(RSocketRequester requester) {
    return Mono.justOrEmpty(names.get(requester)).defaultIfEmpty("nobody");
  }

  @MessageMapping("orders.place")
  Mono<Receipt> place(@Payload Order order) {
    return Mono.just(new Receipt(order.symbol() + "-" + order.amount(), order.amount() * PRICE));
  }

  @MessageMapping("orders.note")
  Mono<Void> note(@Payload Order order) {
    notes.add(order);
    return Mono.empty();
  }

  @MessageMapping("orders.notes")
  Mono<List<Order>> notes() {
    return Mono.just(List.copyOf(notes));
  }

  @MessageMapping("orders.clear")
  Mono<Void> clear() {
    notes.clear();
    return Mono.empty();
  }

  @MessageMapping("ticks.{symbol}")
  Flux<Tick> ticks(@DestinationVariable String symbol, @Payload(required = false) Integer since) {
    int first = since == null ? 0 : since;
    return Flux.range(first, TICKS - first).map(number -> new Tick(symbol, number, number * PRICE));
  }

  @MessageMapping("negotiate")
  Flux<Answer> negotiate(@Payload Flux<Offer> offers) {
    return offers.map(offer -> new Answer(offer.price(), offer.price() >= PRICE));
  }

  /** Takes no offers at all, too. */
  @MessageMapping("negotiate.{symbol}")
  Flux<String> negotiate(@DestinationVariable String symbol, @Payload(required = false) Flux<Offer> offers) {
    return offers.map(offer -> symbol + " at " + offer.price());
  }

  @MessageMapping("large")
  Mono<Document> large(@Payload Document document) {
    return Mono.just(new Document(document.text() + "!"));
  }

  @MessageMapping("fail")
  Mono<Receipt> fail(@Payload Order order) {
    return Mono.error(new ApplicationErrorException(DETAILS));
  }

  @MessageMapping("fail.stream")
  Flux<Tick> failStream() {
    return Flux.range(0, 3)
        .map(number -> new Tick("ACME", number, number * PRICE))
        .concatWith(Flux.error(new ApplicationErrorException(DETAILS)));
  }

  @MessageMapping("fail.channel")
  Flux<Answer> failChannel(@Payload Flux<Offer> offers) {
    return offers.take(2)
        .map(offer -> new Answer(offer.price(), true))
        .concatWith(Flux.error(new ApplicationErrorException(DETAILS)));
  }

  @MessageMapping({"whoami", "secret", "admin"})
  Mono<String> user() {
    return ReactiveSecurityContextHolder.getContext()
        .map(context -> context.getAuthentication().getName())
        .map(name -> name.equals("anonymousUser") ? "nobody" : name);
  }

  /** A String is its text in both directions, whatever the MIME type of the connection. */
  @MessageMapping("greet")
  Mono<String> greet(@Payload String name) {
    return Mono.just("Hello " + name);
  }

  /** Asks the one who asks: for its name, and for three of its ticks. */
  @MessageMapping("callback")
  Mono<String> callback(RSocketRequester requester) {
    return requester
        .route("client.name")
        .data(new Hello("server"))
        .retrieveMono(String.class)
        .zipWith(requester.route("client.ticks.{symbol}", "ACME").retrieveFlux(Tick.class).take(3).count())
        .map(both -> both.getT1() + " has " + both.getT2());
  }
}
