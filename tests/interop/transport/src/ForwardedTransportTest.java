import io.rsocket.Closeable;
import io.rsocket.DuplexConnection;
import io.rsocket.test.TransportTest;
import io.rsocket.transport.ClientTransport;
import io.rsocket.transport.ServerTransport;
import io.rsocket.transport.netty.client.TcpClientTransport;
import io.rsocket.transport.netty.client.WebsocketClientTransport;
import io.rsocket.transport.netty.server.TcpServerTransport;
import io.rsocket.transport.netty.server.WebsocketServerTransport;
import java.io.PrintWriter;
import java.net.InetSocketAddress;
import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.junit.jupiter.api.AfterEach;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.discovery.DiscoverySelectors;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;
import org.junit.platform.launcher.listeners.SummaryGeneratingListener;
import reactor.core.publisher.Sinks;

/**
 * rsocket-java's own tests of a transport, whose client asks a forwarder that asks the tests' server: the arguments are
 * the URI that the server listens on, the URI of the forwarder, and perhaps names of tests. Prints name, result and
 * seconds of each test as it ends, and "N of M" that passed. The one of two million items runs with
 * -DTEST_SLOW_ENABLED=true alone.
 */
public class ForwardedTransportTest implements TransportTest {
  static URI server;
  static URI forwarder;

  private final List<DuplexConnection> connections = new CopyOnWriteArrayList<>();
  private TransportPair<InetSocketAddress, ? extends Closeable> pair;
  private final Sinks.Empty<Void> reached = Sinks.empty();
  private volatile Closeable listening;
  private volatile boolean isClosed;

  @Override
  public Duration getTimeout() {
    return Duration.ofMinutes(15);
  }

  @Override
  @SuppressWarnings({"unchecked", "rawtypes"})
  public synchronized TransportPair<InetSocketAddress, ? extends Closeable> getTransportPair() {
    if (pair == null) {
      pair = new TransportPair<InetSocketAddress, Closeable>(
          () -> InetSocketAddress.createUnresolved(server.getHost(), server.getPort()),
          (address, closeable, allocator) -> client(),
          (address, allocator) -> (ServerTransport) keeping(server()));
    }
    return pair;
  }

  /** The forwarder's connection to the server outlives its client's: a test that ends closes it, and takes no other. */
  private <T extends Closeable> ServerTransport<T> keeping(ServerTransport<T> transport) {
    return acceptor -> transport.start(connection -> {
      connections.add(connection);
      reached.tryEmitEmpty();
      if (isClosed) {
        connection.dispose();
      }
      return acceptor.apply(connection);
    }).doOnNext(started -> listening = started);
  }

  @AfterEach
  @Override
  public void close() {
    isClosed = true;
    listening.dispose();
    listening.onClose().block();
    connections.forEach(DuplexConnection::dispose);
    TransportTest.super.close();
  }

  /** Connects once the forwarder has: before, that may still ask the server of the former test. */
  private ClientTransport client() {
    ClientTransport transport = forwarder.getScheme().equals("ws")
        ? WebsocketClientTransport.create(forwarder)
        : TcpClientTransport.create(forwarder.getHost(), forwarder.getPort());
    return () -> reached.asMono().then(transport.connect());
  }

  private static ServerTransport<? extends Closeable> server() {
    return server.getScheme().equals("ws")
        ? WebsocketServerTransport.create(server.getHost(), server.getPort())
        : TcpServerTransport.create(server.getHost(), server.getPort());
  }

  public static void main(String[] arguments) {
    server = URI.create(arguments[0]);
    forwarder = URI.create(arguments[1]);
    var listener = new Reporting();
    var names = List.of(arguments).subList(2, arguments.length);
    var chosen = names.isEmpty()
        ? List.of(DiscoverySelectors.selectClass(ForwardedTransportTest.class))
        : names.stream().map(name -> DiscoverySelectors.selectMethod(ForwardedTransportTest.class, name)).toList();
    var request = LauncherDiscoveryRequestBuilder.request().selectors(chosen).build();
    LauncherFactory.create().execute(request, listener);
    var summary = listener.getSummary();
    summary.printFailuresTo(new PrintWriter(System.err), 30);
    System.out.println(summary.getTestsSucceededCount() + " of " + summary.getTestsStartedCount());
    System.exit(summary.getTestsStartedCount() > 0 && summary.getTotalFailureCount() == 0 ? 0 : 1);
  }

  /** Prints each test as it ends. */
  private static final class Reporting extends SummaryGeneratingListener {
    private long started;

    @Override
    public void executionStarted(TestIdentifier test) {
      started = System.nanoTime();
      super.executionStarted(test);
    }

    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
      super.executionFinished(test, result);
      if (test.isTest()) {
        var seconds = (System.nanoTime() - started) / 1e9;
        System.out.printf("%s %s %.1f s%n", test.getLegacyReportingName(), result.getStatus(), seconds);
      }
    }
  }
}
