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
import org.junit.platform.engine.discovery.DiscoverySelectors;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;
import org.junit.platform.launcher.listeners.SummaryGeneratingListener;

/**
 * rsocket-java's own tests of a transport, whose client asks a forwarder that asks the tests' server: the arguments are
 * the URI that the server listens on, the URI of the forwarder, and perhaps the name of one test. Prints "N of M".
 */
public class ForwardedTransportTest implements TransportTest {
  static URI server;
  static URI forwarder;

  private final List<DuplexConnection> connections = new CopyOnWriteArrayList<>();
  private TransportPair<InetSocketAddress, ? extends Closeable> pair;

  @Override
  public Duration getTimeout() {
    return Duration.ofMinutes(3);
  }

  @Override
  @SuppressWarnings({"unchecked", "rawtypes"})
  public TransportPair<InetSocketAddress, ? extends Closeable> getTransportPair() {
    if (pair == null) {
      pair = new TransportPair<InetSocketAddress, Closeable>(
          () -> InetSocketAddress.createUnresolved(server.getHost(), server.getPort()),
          (address, closeable, allocator) -> client(),
          (address, allocator) -> (ServerTransport) keeping(server()));
    }
    return pair;
  }

  /** The forwarder's connection to the server outlives its client's: a test that ends closes it. */
  private <T extends Closeable> ServerTransport<T> keeping(ServerTransport<T> transport) {
    return acceptor -> transport.start(connection -> {
      connections.add(connection);
      return acceptor.apply(connection);
    });
  }

  @AfterEach
  @Override
  public void close() {
    connections.forEach(DuplexConnection::dispose);
    TransportTest.super.close();
  }

  private static ClientTransport client() {
    return forwarder.getScheme().equals("ws")
        ? WebsocketClientTransport.create(forwarder)
        : TcpClientTransport.create(forwarder.getHost(), forwarder.getPort());
  }

  private static ServerTransport<? extends Closeable> server() {
    return server.getScheme().equals("ws")
        ? WebsocketServerTransport.create(server.getHost(), server.getPort())
        : TcpServerTransport.create(server.getHost(), server.getPort());
  }

  public static void main(String[] arguments) {
    server = URI.create(arguments[0]);
    forwarder = URI.create(arguments[1]);
    var listener = new SummaryGeneratingListener();
    var chosen = arguments.length > 2
        ? DiscoverySelectors.selectMethod(ForwardedTransportTest.class, arguments[2])
        : DiscoverySelectors.selectClass(ForwardedTransportTest.class);
    var request = LauncherDiscoveryRequestBuilder.request().selectors(chosen).build();
    LauncherFactory.create().execute(request, listener);
    var summary = listener.getSummary();
    summary.printFailuresTo(new PrintWriter(System.err), 30);
    System.out.println(summary.getTestsSucceededCount() + " of " + summary.getTestsFoundCount());
    System.exit(summary.getTestsFoundCount() > 0 && summary.getTotalFailureCount() == 0 ? 0 : 1);
  }
}
