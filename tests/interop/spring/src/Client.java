import io.rsocket.RSocketErrorException;
import io.rsocket.exceptions.ApplicationErrorException;
import io.rsocket.exceptions.InvalidException;
import io.rsocket.exceptions.RejectedException;
import io.rsocket.exceptions.RejectedSetupException;
import io.rsocket.metadata.WellKnownMimeType;
import java.net.URI;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import org.springframework.core.ParameterizedTypeReference;
import org.springframework.messaging.handler.annotation.DestinationVariable;
import org.springframework.messaging.handler.annotation.MessageMapping;
import org.springframework.messaging.handler.annotation.Payload;
import org.springframework.messaging.rsocket.RSocketRequester;
import org.springframework.messaging.rsocket.RSocketStrategies;
import org.springframework.messaging.rsocket.annotation.support.RSocketMessageHandler;
import org.springframework.security.rsocket.metadata.BearerTokenAuthenticationEncoder;
import org.springframework.security.rsocket.metadata.BearerTokenMetadata;
import org.springframework.security.rsocket.metadata.SimpleAuthenticationEncoder;
import org.springframework.security.rsocket.metadata.UsernamePasswordMetadata;
import org.springframework.util.MimeType;
import org.springframework.util.MimeTypeUtils;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.dataformat.cbor.CBORMapper;

/** What a Spring client asks a server, and what it has to hear. Each check has a connection of its own. */
final class Client {
  private static final Duration PATIENCE = Duration.ofSeconds(20);
  private static final int LARGE = 200_000;

  /** Items that are asked for at a time. */
  private static final int CREDIT = 32;

  private static final Order ORDER = new Order("ACME", 3);
  private static final Reason REASON = new Reason("sold out", 2);
  private static final UsernamePasswordMetadata ANN = new UsernamePasswordMetadata("ann", "secret");
  private static final UsernamePasswordMetadata WRONG = new UsernamePasswordMetadata("ann", "guess");
  private static final BearerTokenMetadata TOKEN = new BearerTokenMetadata("token-of-ann");
  private static final BearerTokenMetadata WRONG_TOKEN = new BearerTokenMetadata("token-of-nobody");
  private static final MimeType MIME_ENTRY = known(WellKnownMimeType.MESSAGE_RSOCKET_MIMETYPE);
  private static final MimeType ACCEPT_ENTRY = known(WellKnownMimeType.MESSAGE_RSOCKET_ACCEPT_MIMETYPES);

  /** The well-known number of application/cbor, as both entries write it. */
  private static final byte[] CBOR = {(byte) (0x80 | 0x01)};

  private static final Map<String, Consumer<Connection>> CHECKS = new LinkedHashMap<>();

  static {
    CHECKS.put("response", Client::response);
    CHECKS.put("fire-and-forget", Client::fireAndForget);
    CHECKS.put("stream", Client::stream);
    CHECKS.put("stream-since", Client::streamSince);
    CHECKS.put("stream-cancelled", Client::streamCancelled);
    CHECKS.put("channel", Client::channel);
    CHECKS.put("channel-variable", Client::channelVariable);
    CHECKS.put("channel-empty", Client::channelEmpty);
    CHECKS.put("channel-cancelled", Client::channelCancelled);
    CHECKS.put("nothing", Client::nothing);
    CHECKS.put("large", Client::large);
    CHECKS.put("details", Client::details);
    CHECKS.put("details-stream", Client::detailsOfStream);
    CHECKS.put("details-channel", Client::detailsOfChannel);
    CHECKS.put("wrong-field", Client::wrongField);
    CHECKS.put("unknown-route", Client::unknownRoute);
    CHECKS.put("setup", Client::setup);
    CHECKS.put("callback", Client::callback);
    CHECKS.put("simple-setup", connection -> connection.user(ANN));
    CHECKS.put("bearer-setup", connection -> connection.user(TOKEN));
    CHECKS.put("simple-setup-refused", connection -> connection.refused(WRONG));
    CHECKS.put("bearer-setup-refused", connection -> connection.refused(WRONG_TOKEN));
    CHECKS.put("simple", connection -> connection.userOfRequest(ANN));
    CHECKS.put("bearer", connection -> connection.userOfRequest(TOKEN));
    CHECKS.put("simple-refused", connection -> connection.refusedRequest(WRONG));
    CHECKS.put("bearer-refused", connection -> connection.refusedRequest(WRONG_TOKEN));
    CHECKS.put("anonymous-refused", connection -> connection.refusedRequest(null));
    CHECKS.put("requirement", Client::requirement);
  }

  /** The checks that any server of the service passes. */
  static final List<String> NAMES = List.copyOf(CHECKS.keySet());

  static {
    // A server for users only, which refuses another SETUP.
    CHECKS.put("setup-without-user", connection -> connection.refused(null));
    // Spring's own server reads no MIME entry, names no field, and refuses in other words.
    CHECKS.put("not-allowed", Client::notAllowed);
    CHECKS.put("mime-entry", Client::mimeEntry);
    CHECKS.put("accept-entry", Client::acceptEntry);
    CHECKS.put("invalid-field", Client::invalidField);
    // For a connection of text/plain, and for one whose data MIME type nobody chose.
    CHECKS.put("text", Client::text);
    // For a server that drains meanwhile.
    CHECKS.put("drain", Client::drain);
  }

  private final int fragment;

  Client(int fragment) {
    this.fragment = fragment;
  }

  /** Does one check. Returns what was wrong, or null. */
  String check(String name, String uri, String mime) {
    Consumer<Connection> check = CHECKS.get(name);
    if (check == null) {
      return "no such check";
    }
    try (Connection connection = new Connection(name, URI.create(uri), mime)) {
      check.accept(connection);
      return null;
    } catch (RuntimeException | AssertionError error) {
      return error.toString();
    }
  }

  // ---- the interactions

  private static void response(Connection connection) {
    RSocketRequester requester = connection.open();
    for (int amount = 0; amount < 20; amount++) {
      Order order = new Order("ACME", amount);
      Receipt receipt = requester.route("orders.place").data(order).retrieveMono(Receipt.class).block(PATIENCE);
      expect(new Receipt("ACME-" + amount, amount * Server.PRICE), receipt);
    }
  }

  private static void fireAndForget(Connection connection) {
    RSocketRequester requester = connection.open();
    requester.route("orders.clear").retrieveMono(Void.class).block(PATIENCE);
    requester.route("orders.note").data(ORDER).send().block(PATIENCE);
    List<Order> notes =
        requester.route("orders.notes")
            .retrieveMono(new ParameterizedTypeReference<List<Order>>() {})
            .filter(found -> !found.isEmpty())
            .repeatWhenEmpty(tries -> tries.delayElements(Duration.ofMillis(5)))
            .block(PATIENCE);
    expect(List.of(ORDER), notes);
  }

  private static void stream(Connection connection) {
    expect(ticks(0), all(connection.open().route("ticks.{symbol}", "ACME").retrieveFlux(Tick.class)));
  }

  private static void streamSince(Connection connection) {
    expect(ticks(250), all(connection.open().route("ticks.{symbol}", "ACME").data(250).retrieveFlux(Tick.class)));
  }

  private static void streamCancelled(Connection connection) {
    RSocketRequester requester = connection.open();
    List<Tick> some = all(requester.route("ticks.{symbol}", "ACME").retrieveFlux(Tick.class).take(7));
    expect(ticks(0).subList(0, 7), some);
    lives(requester);
  }

  private static void channel(Connection connection) {
    List<Offer> offers = IntStream.range(0, 100).mapToObj(Offer::new).toList();
    List<Answer> answers =
        all(connection.open().route("negotiate").data(Flux.fromIterable(offers), Offer.class)
            .retrieveFlux(Answer.class));
    expect(offers.stream().map(offer -> new Answer(offer.price(), offer.price() >= Server.PRICE)).toList(), answers);
  }

  private static void channelVariable(Connection connection) {
    Flux<Offer> offers = Flux.just(new Offer(1.5), new Offer(2.5));
    RSocketRequester requester = connection.open();
    expect(
        List.of("ACME at 1.5", "ACME at 2.5"),
        all(requester.route("negotiate.{symbol}", "ACME").data(offers, Offer.class).retrieveFlux(String.class)));
  }

  private static void channelEmpty(Connection connection) {
    RSocketRequester requester = connection.open();
    expect(
        List.of(),
        all(requester.route("negotiate.{symbol}", "ACME").data(Flux.empty(), Offer.class).retrieveFlux(String.class)));
    lives(requester);
  }

  private static void channelCancelled(Connection connection) {
    RSocketRequester requester = connection.open();
    Flux<Offer> offers = Flux.range(0, Integer.MAX_VALUE).map(Offer::new);
    expect(
        5, all(requester.route("negotiate").data(offers, Offer.class).retrieveFlux(Answer.class).take(5)).size());
    lives(requester);
  }

  private static void nothing(Connection connection) {
    RSocketRequester requester = connection.open();
    expect(null, requester.route("orders.clear").retrieveMono(Void.class).block(PATIENCE));
  }

  private static void large(Connection connection) {
    String text = "0123456789".repeat(LARGE / 10);
    Document document =
        connection.open().route("large").data(new Document(text)).retrieveMono(Document.class).block(PATIENCE);
    expect(text + "!", document.text());
  }

  // ---- errors

  private static void details(Connection connection) {
    RSocketRequester requester = connection.open();
    reasonOf(requester.route("fail").data(ORDER).retrieveMono(Receipt.class).flux());
    lives(requester);
  }

  private static void detailsOfStream(Connection connection) {
    reasonOf(connection.open().route("fail.stream").retrieveFlux(Tick.class));
  }

  private static void detailsOfChannel(Connection connection) {
    Flux<Offer> offers = Flux.just(new Offer(1), new Offer(2)).concatWith(Flux.never());
    reasonOf(connection.open().route("fail.channel").data(offers, Offer.class).retrieveFlux(Answer.class));
  }

  private static void wrongField(Connection connection) {
    RSocketRequester requester = connection.open();
    failure(requester.route("orders.place").data(Map.of("symbol", "ACME", "amount", "many"))
        .retrieveMono(Receipt.class).flux());
    lives(requester);
  }

  private static void invalidField(Connection connection) {
    Throwable error =
        failure(connection.open().route("orders.place").data(Map.of("symbol", "ACME", "amount", "many"))
            .retrieveMono(Receipt.class).flux());
    expect(InvalidException.class, error.getClass());
    expect("$.amount: expected int, got str", error.getMessage());
  }

  private static void unknownRoute(Connection connection) {
    RSocketRequester requester = connection.open();
    failure(requester.route("no.such.route").data(ORDER).retrieveMono(Receipt.class).flux());
    lives(requester);
  }

  // ---- MIME types

  private static void mimeEntry(Connection connection) {
    byte[] answer = placeInCbor(connection, spec -> spec.metadata(CBOR, MIME_ENTRY));
    expect(new Receipt("ACME-3", 3 * Server.PRICE), new CBORMapper().readValue(answer, Receipt.class));
  }

  private static void acceptEntry(Connection connection) {
    byte[] answer =
        connection.open().route("orders.place").metadata(CBOR, ACCEPT_ENTRY).data(ORDER)
            .retrieveMono(byte[].class).block(PATIENCE);
    expect(new Receipt("ACME-3", 3 * Server.PRICE), new CBORMapper().readValue(answer, Receipt.class));
  }

  private static byte[] placeInCbor(Connection connection, Consumer<RSocketRequester.MetadataSpec<?>> entries) {
    byte[] order = new CBORMapper().writeValueAsBytes(ORDER);
    return connection.open().route("orders.place").metadata(entries).data(order)
        .retrieveMono(byte[].class).block(PATIENCE);
  }

  private static void text(Connection connection) {
    RSocketRequester requester = connection.open();
    expect("nobody", requester.route("whoami").retrieveMono(String.class).block(PATIENCE));
    expect("Hello Ada", requester.route("greet").data("Ada").retrieveMono(String.class).block(PATIENCE));
  }

  // ---- SETUP, and requests of the server

  private static void setup(Connection connection) {
    RSocketRequester requester =
        connection.open(builder -> builder.setupRoute("hello.{place}", "Oslo").setupData(new Hello("ann")));
    expect("ann of Oslo", requester.route("name").retrieveMono(String.class).block(PATIENCE));
  }

  private static void callback(Connection connection) {
    RSocketRequester requester =
        connection.open(
            builder ->
                builder.rsocketConnector(
                    connector ->
                        connector.acceptor(
                            RSocketMessageHandler.responder(connection.strategies, new Called()))));
    expect("spring for server has 3", requester.route("callback").retrieveMono(String.class).block(PATIENCE));
  }

  /** What the client serves to the server that it is connected to. */
  private static final class Called {
    @MessageMapping("client.name")
    Mono<String> name(@Payload Hello hello) {
      return Mono.just("spring for " + hello.name());
    }

    @MessageMapping("client.ticks.{symbol}")
    Flux<Tick> ticks(@DestinationVariable String symbol) {
      return Flux.range(0, Server.TICKS).map(number -> new Tick(symbol, number, number * Server.PRICE));
    }
  }

  // ---- authentication

  private static void requirement(Connection connection) {
    RSocketRequester requester = connection.open();
    failure(requester.route("admin").metadata(ANN, Access.MIME).retrieveMono(String.class).flux());
    UsernamePasswordMetadata root = new UsernamePasswordMetadata("root", "toor");
    expect("root", requester.route("admin").metadata(root, Access.MIME).retrieveMono(String.class).block(PATIENCE));
  }

  /** Every refusal of a request has the same code and text. */
  private static void notAllowed(Connection connection) {
    RSocketRequester requester = connection.open();
    List.of(
            requester.route("secret").metadata(WRONG, Access.MIME),
            requester.route("admin").metadata(ANN, Access.MIME),
            requester.route("secret"))
        .forEach(
            request -> {
              Throwable error = failure(request.retrieveMono(String.class).flux());
              expect(RejectedException.class, error.getClass());
              expect("not allowed", error.getMessage());
            });
    lives(requester);
  }

  // ---- a server that drains

  /** The stream goes on behind the first item, while new requests are refused. */
  private static void drain(Connection connection) {
    RSocketRequester requester = connection.open();
    Flux<Tick> items =
        requester.route("drain").retrieveFlux(Tick.class).concatMap(
            tick -> tick.number() % 100 == 1 ? refusal(requester).thenReturn(tick) : Mono.just(tick));
    expect(ticks(0), all(items));
  }

  private static Mono<Void> refusal(RSocketRequester requester) {
    return requester.route("orders.place").data(ORDER).retrieveMono(Receipt.class)
        .then(Mono.<Void>error(() -> new AssertionError("it was not refused")))
        .onErrorResume(
            RejectedException.class,
            error -> {
              expect("no new requests: the connection is closing", error.getMessage());
              return Mono.empty();
            });
  }

  // ---- what checks are made of

  private static <T> List<T> all(Flux<T> items) {
    return items.limitRate(CREDIT).collectList().block(PATIENCE);
  }

  private static List<Tick> ticks(int since) {
    return IntStream.range(since, Server.TICKS)
        .mapToObj(number -> new Tick("ACME", number, number * Server.PRICE))
        .toList();
  }

  /** The connection still answers. */
  private static void lives(RSocketRequester requester) {
    Receipt receipt = requester.route("orders.place").data(ORDER).retrieveMono(Receipt.class).block(PATIENCE);
    expect(new Receipt("ACME-3", 3 * Server.PRICE), receipt);
  }

  private static void reasonOf(Flux<?> items) {
    Throwable error = failure(items);
    expect(ApplicationErrorException.class, error.getClass());
    expect(REASON, new JsonMapper().readValue(error.getMessage(), Reason.class));
  }

  /** The error of the server that ends the items. */
  private static Throwable failure(Flux<?> items) {
    return items.then(Mono.<Throwable>error(() -> new AssertionError("it did not fail")))
        .onErrorResume(RSocketErrorException.class, Mono::just)
        .block(PATIENCE);
  }

  private static void expect(Object expected, Object got) {
    if (!Objects.equals(expected, got)) {
      throw new AssertionError("expected " + brief(expected) + ", got " + brief(got));
    }
  }

  private static String brief(Object value) {
    String text = String.valueOf(value);
    return text.length() > 200 ? text.substring(0, 200) + "... of " + text.length() : text;
  }

  private static MimeType known(WellKnownMimeType mime) {
    return MimeTypeUtils.parseMimeType(mime.getString());
  }

  /** One server, and the connection of a check to it, which is closed at the end of the check. */
  private final class Connection implements AutoCloseable {
    private final URI uri;
    private final String mime;
    private final RSocketStrategies strategies;
    private RSocketRequester requester;

    Connection(String check, URI uri, String mime) {
      this.uri = uri;
      this.mime = mime;
      // The two go by the MIME type alone, so that the first would be asked to encode the credentials of the other.
      strategies =
          Codecs.strategies(
              check.startsWith("bearer") ? new BearerTokenAuthenticationEncoder() : new SimpleAuthenticationEncoder());
    }

    RSocketRequester open() {
      return open(builder -> {});
    }

    RSocketRequester open(Consumer<RSocketRequester.Builder> with) {
      RSocketRequester.Builder builder = RSocketRequester.builder().rsocketStrategies(strategies);
      if (!mime.equals("default")) {
        builder.dataMimeType(MimeTypeUtils.parseMimeType(mime));
      }
      builder.rsocketConnector(connector -> connector.fragment(fragment)).apply(with);
      requester = uri.getScheme().equals("ws") ? builder.websocket(uri) : builder.tcp(uri.getHost(), uri.getPort());
      return requester;
    }

    /** The user of these credentials in the SETUP. */
    void user(Object credentials) {
      RSocketRequester requester = open(builder -> builder.setupMetadata(credentials, Access.MIME));
      expect("ann", requester.route("whoami").retrieveMono(String.class).block(PATIENCE));
      expect("ann", requester.route("secret").retrieveMono(String.class).block(PATIENCE));
    }

    /** A SETUP with these credentials, or without any, is refused. */
    void refused(Object credentials) {
      RSocketRequester requester =
          open(builder -> {
            if (credentials != null) {
              builder.setupMetadata(credentials, Access.MIME);
            }
          });
      Throwable error = failure(requester.route("whoami").retrieveMono(String.class).flux());
      expect(RejectedSetupException.class, error.getClass());
    }

    void userOfRequest(Object credentials) {
      RSocketRequester requester = open();
      expect(
          "ann",
          requester.route("secret").metadata(credentials, Access.MIME).retrieveMono(String.class).block(PATIENCE));
      expect("nobody", requester.route("whoami").retrieveMono(String.class).block(PATIENCE));
    }

    /** A request with these credentials, or without any, is refused; the connection lives on. */
    void refusedRequest(Object credentials) {
      RSocketRequester requester = open();
      RSocketRequester.RequestSpec request = requester.route("secret");
      if (credentials != null) {
        request.metadata(credentials, Access.MIME);
      }
      failure(request.retrieveMono(String.class).flux());
      lives(requester);
    }

    @Override
    public void close() {
      if (requester != null) {
        requester.dispose();
      }
    }
  }
}
