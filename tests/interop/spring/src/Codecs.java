import org.springframework.core.codec.Encoder;
import org.springframework.http.codec.cbor.JacksonCborDecoder;
import org.springframework.http.codec.cbor.JacksonCborEncoder;
import org.springframework.http.codec.json.JacksonJsonDecoder;
import org.springframework.http.codec.json.JacksonJsonEncoder;
import org.springframework.messaging.rsocket.RSocketStrategies;

/** The codecs of both sides. */
final class Codecs {
  private Codecs() {}

  /** JSON and CBOR, and the encoders that one side needs beside them. */
  static RSocketStrategies strategies(Encoder<?>... further) {
    return RSocketStrategies.builder()
        .encoders(all -> all.add(new JacksonJsonEncoder()))
        .encoders(all -> all.add(new JacksonCborEncoder()))
        .encoder(further)
        .decoders(all -> all.add(new JacksonJsonDecoder()))
        .decoders(all -> all.add(new JacksonCborDecoder()))
        .build();
  }
}
