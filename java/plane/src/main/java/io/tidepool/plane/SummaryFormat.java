package io.tidepool.plane;

import java.nio.charset.StandardCharsets;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Records of the topic of summaries; the key is what is summed up. */
final class SummaryFormat implements KafkaRecordSerializationSchema<Summary> {

    private static final long serialVersionUID = 1;

    private final String topic;

    SummaryFormat(String topic) {
        this.topic = topic;
    }

    @Override
    public ProducerRecord<byte[], byte[]> serialize(Summary summary, KafkaSinkContext context,
            Long timeMs) {
        return new ProducerRecord<>(topic, summary.key.getBytes(StandardCharsets.UTF_8),
                summary.text.getBytes(StandardCharsets.UTF_8));
    }
}
