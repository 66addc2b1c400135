import io.rsocket.Payload;
import io.rsocket.RSocket;
import io.rsocket.SocketAcceptor;
import io.rsocket.core.RSocketServer;
import io.rsocket.transport.netty.server.CloseableChannel;
import io.rsocket.transport.netty.server.TcpServerTransport;
import io.rsocket.util.DefaultPayload;
import java.io.IOException;
import java.io.OutputStream;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

/** The server of the workloads, with rsocket-java. Prints its port, serves until its standard input ends. */
public final class Server implements RSocket {
  public static void main(String[] words) throws IOException {
    CloseableChannel listener =
        RSocketServer.create(SocketAcceptor.with(new Server()))
            .bindNow(TcpServerTransport.create("127.0.0.1", 0));
    System.out.println(listener.address().getPort());
    System.in.transferTo(OutputStream.nullOutputStream());
    System.exit(0);
  }

  @Override
  public Mono<Payload> requestResponse(Payload payload) {
    return Mono.just(payload);
  }

  @Override
  public Flux<Payload> requestStream(Payload payload) {
    String[] asked = payload.getDataUtf8().split(" ");
    payload.release();
    byte[] item = new byte[Integer.parseInt(asked[1])];
    return Flux.range(0, Integer.parseInt(asked[0])).map(number -> DefaultPayload.create(item));
  }
}
