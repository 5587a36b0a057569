package io.tidepool.plane;

import java.nio.charset.StandardCharsets;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Records of the topic of ceilings; the key is the node. */
final class CeilingFormat implements KafkaRecordSerializationSchema<Ceiling> {

    private static final long serialVersionUID = 1;

    private final String topic;

    CeilingFormat(String topic) {
        this.topic = topic;
    }

    @Override
    public ProducerRecord<byte[], byte[]> serialize(Ceiling ceiling, KafkaSinkContext context,
            Long timeMs) {
        return new ProducerRecord<>(topic, ceiling.node.getBytes(StandardCharsets.UTF_8),
                ceiling.json());
    }
}
