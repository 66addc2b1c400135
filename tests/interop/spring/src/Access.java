import io.rsocket.metadata.WellKnownMimeType;
import io.rsocket.plugins.SocketAcceptorInterceptor;
import java.util.List;
import java.util.Map;
import org.springframework.messaging.rsocket.RSocketStrategies;
import org.springframework.security.authentication.BadCredentialsException;
import org.springframework.security.authentication.UsernamePasswordAuthenticationToken;
import org.springframework.security.authorization.AuthenticatedReactiveAuthorizationManager;
import org.springframework.security.authorization.AuthorizationDecision;
import org.springframework.security.authorization.AuthorizationResult;
import org.springframework.security.authorization.ReactiveAuthorizationManager;
import org.springframework.security.core.Authentication;
import org.springframework.security.oauth2.server.resource.authentication.BearerTokenAuthenticationToken;
import org.springframework.security.rsocket.api.PayloadExchange;
import org.springframework.security.rsocket.api.PayloadExchangeType;
import org.springframework.security.rsocket.authentication.AnonymousPayloadInterceptor;
import org.springframework.security.rsocket.authentication.AuthenticationPayloadExchangeConverter;
import org.springframework.security.rsocket.authentication.AuthenticationPayloadInterceptor;
import org.springframework.security.rsocket.authorization.AuthorizationPayloadInterceptor;
import org.springframework.security.rsocket.authorization.PayloadExchangeMatcherReactiveAuthorizationManager;
import org.springframework.security.rsocket.core.PayloadSocketAcceptorInterceptor;
import org.springframework.security.rsocket.util.matcher.PayloadExchangeAuthorizationContext;
import org.springframework.security.rsocket.util.matcher.PayloadExchangeMatcher;
import org.springframework.security.rsocket.util.matcher.PayloadExchangeMatcherEntry;
import org.springframework.security.rsocket.util.matcher.RoutePayloadExchangeMatcher;
import org.springframework.util.MimeType;
import org.springframework.util.MimeTypeUtils;
import reactor.core.publisher.Mono;

/** The users of the server, and what each of them may do: Spring Security as it stands. */
final class Access {
  static final MimeType MIME =
      MimeTypeUtils.parseMimeType(WellKnownMimeType.MESSAGE_RSOCKET_AUTHENTICATION.getString());

  private static final Map<String, String> PASSWORDS = Map.of("ann", "secret", "root", "toor");
  private static final Map<String, String> TOKENS = Map.of("token-of-ann", "ann", "token-of-root", "root");

  private Access() {}

  /** Authenticates each SETUP and each request that carries credentials; a strict server needs them in the SETUP. */
  static SocketAcceptorInterceptor interceptor(RSocketStrategies strategies, boolean isStrict) {
    AuthenticationPayloadInterceptor authentication = new AuthenticationPayloadInterceptor(Access::authenticate);
    authentication.setAuthenticationConverter(new AuthenticationPayloadExchangeConverter());
    var rules = PayloadExchangeMatcherReactiveAuthorizationManager.builder();
    if (isStrict) {
      rules.add(new PayloadExchangeMatcherEntry<>(Access::isSetup, anyUser()));
    }
    rules.add(new PayloadExchangeMatcherEntry<>(route(strategies, "secret"), anyUser()));
    rules.add(new PayloadExchangeMatcherEntry<>(route(strategies, "admin"), Access::isRoot));
    rules.add(new PayloadExchangeMatcherEntry<>(exchange -> match(true), Access::anyone));
    return new PayloadSocketAcceptorInterceptor(
        List.of(
            authentication,
            new AnonymousPayloadInterceptor("nobody"),
            new AuthorizationPayloadInterceptor(rules.build())));
  }

  private static Mono<Authentication> authenticate(Authentication credentials) {
    String user = null;
    if (credentials instanceof BearerTokenAuthenticationToken bearer) {
      user = TOKENS.get(bearer.getToken());
    } else if (credentials.getCredentials().equals(PASSWORDS.get(credentials.getName()))) {
      user = credentials.getName();
    }
    if (user == null) {
      return Mono.error(new BadCredentialsException("Invalid Credentials"));
    }
    return Mono.just(UsernamePasswordAuthenticationToken.authenticated(user, null, List.of()));
  }

  private static ReactiveAuthorizationManager<PayloadExchangeAuthorizationContext> anyUser() {
    return AuthenticatedReactiveAuthorizationManager.authenticated();
  }

  private static Mono<AuthorizationResult> isRoot(
      Mono<Authentication> user, PayloadExchangeAuthorizationContext context) {
    return user.map(one -> new AuthorizationDecision(one.getName().equals("root")));
  }

  private static Mono<AuthorizationResult> anyone(
      Mono<Authentication> user, PayloadExchangeAuthorizationContext context) {
    return Mono.just(new AuthorizationDecision(true));
  }

  private static PayloadExchangeMatcher route(RSocketStrategies strategies, String pattern) {
    return new RoutePayloadExchangeMatcher(strategies.metadataExtractor(), strategies.routeMatcher(), pattern);
  }

  private static Mono<PayloadExchangeMatcher.MatchResult> isSetup(PayloadExchange exchange) {
    return match(exchange.getType() == PayloadExchangeType.SETUP);
  }

  private static Mono<PayloadExchangeMatcher.MatchResult> match(boolean isSo) {
    return isSo ? PayloadExchangeMatcher.MatchResult.match() : PayloadExchangeMatcher.MatchResult.notMatch();
  }
}
