import io.rsocket.Payload;
import io.rsocket.RSocket;
import io.rsocket.core.RSocketConnector;
import io.rsocket.frame.decoder.PayloadDecoder;
import io.rsocket.transport.netty.client.TcpClientTransport;
import io.rsocket.util.ByteBufPayload;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import reactor.core.publisher.Flux;

/**
 * The client of the workloads, with rsocket-java, which works one round after another: the JVM gets warm.
 *
 * <p>Prints "ready". Then each line that it reads says where a server listens, the kind of operation, how many make a
 * round, their size, and how many are in flight or the credit of a stream; it prints the seconds that the round took.
 */
public final class Client {
  private final Map<Integer, RSocket> sockets = new HashMap<>();

  public static void main(String[] words) throws IOException {
    Client client = new Client();
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    System.out.println("ready");
    for (String line; (line = lines.readLine()) != null; ) {
      String[] asked = line.split(" ");
      RSocket socket = client.socket(Integer.parseInt(asked[0]));
      int count = Integer.parseInt(asked[2]);
      int size = Integer.parseInt(asked[3]);
      int atOnce = Integer.parseInt(asked[4]);
      long begun = System.nanoTime();
      Flux<Payload> answers =
          asked[1].equals("stream") ? stream(socket, count, size, atOnce) : requests(socket, count, size, atOnce);
      long seen = answers.map(answer -> release(answer, size)).count().block();
      double wall = (System.nanoTime() - begun) / 1e9;
      if (seen != count) {
        throw new IllegalStateException(seen + " answers of " + count);
      }
      System.out.println(wall);
    }
    System.exit(0);
  }

  private RSocket socket(int port) {
    return sockets.computeIfAbsent(
        port,
        of ->
            RSocketConnector.create()
                .payloadDecoder(PayloadDecoder.ZERO_COPY)
                .connect(TcpClientTransport.create("127.0.0.1", of))
                .block());
  }

  private static Flux<Payload> requests(RSocket socket, int count, int size, int atOnce) {
    byte[] data = new byte[size];
    return Flux.range(0, count)
        .flatMap(number -> socket.requestResponse(ByteBufPayload.create(data)), atOnce);
  }

  /** Credit is topped up by halves. */
  private static Flux<Payload> stream(RSocket socket, int count, int size, int credit) {
    return socket
        .requestStream(ByteBufPayload.create(count + " " + size))
        .limitRate(credit, credit / 2);
  }

  private static int release(Payload payload, int size) {
    int found = payload.data().readableBytes();
    payload.release();
    if (found != size) {
      throw new IllegalStateException(found + " bytes");
    }
    return found;
  }
}
