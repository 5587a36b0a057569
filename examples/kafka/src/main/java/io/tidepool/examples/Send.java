package io.tidepool.examples;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Sends each line of its input as a message: {@code Send HOST:PORT TOPIC KEY}. */
public final class Send {
    private Send() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> properties =
                Map.of("bootstrap.servers", arguments[0], "acks", "all");
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties, text, text);
                BufferedReader lines = new BufferedReader(
                        new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                producer.send(new ProducerRecord<>(arguments[1], arguments[2], line)).get();
            }
        }
    }
}
