// A server and a client of Spring, in one process because a Java process starts slowly.
// "mvn compile" builds it. Then, with build/spring/classes:build/spring/dependency/* as the class path:
//   java Peer [FRAGMENT]      serves, prints "listening URI URI URI": over TCP, over WebSocket, and over TCP for users
//                             only; then does one check for each line of standard input, which says CHECK URI MIME,
//                             and answers "ok CHECK" or "FAILED CHECK: why". Ends with its input.
//   java Peer call URI MIME   does all checks against one server, a line each; exits with the number of failures

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;

public final class Peer {
  private Peer() {}

  public static void main(String[] words) throws IOException {
    if (words.length > 0 && words[0].equals("call")) {
      Client client = new Client(0);
      long failures = Client.NAMES.stream().filter(name -> !report(client, name, words[1], words[2])).count();
      System.exit((int) failures);
    }
    int fragment = words.length > 0 ? Integer.parseInt(words[0]) : 0;
    Server.start(fragment);
    Client client = new Client(fragment);
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      String[] asked = line.split(" ");
      report(client, asked[0], asked[1], asked[2]);
    }
    System.exit(0);
  }

  /** Does one check and prints how it went. Returns whether it passed. */
  private static boolean report(Client client, String name, String uri, String mime) {
    String failure = client.check(name, uri, mime);
    System.out.println(failure == null ? "ok " + name : "FAILED " + name + ": " + failure.replaceAll("\\s+", " "));
    return failure == null;
  }
}
