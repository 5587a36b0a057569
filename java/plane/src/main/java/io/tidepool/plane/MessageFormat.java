package io.tidepool.plane;

import java.util.function.Consumer;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.record.TimestampType;

/** Readings from records of the topic of samples, or of the one that collectd writes to. */
final class MessageFormat implements KafkaRecordDeserializationSchema<Reading> {

    private static final long serialVersionUID = 1;

    private final SampleReader samples;
    private final CollectdReader collectd;

    private MessageFormat(SampleReader samples, CollectdReader collectd) {
        this.samples = samples;
        this.collectd = collectd;
    }

    static MessageFormat ofAgents(Options options) {
        return new MessageFormat(
                new SampleReader(options.cluster, options.maxStores, options.maxJobs), null);
    }

    static MessageFormat ofCollectd(Options options) {
        return new MessageFormat(null, new CollectdReader(options.collectdCluster));
    }

    @Override
    public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Reading> out) {
        // A time that a producer set is that of some node, and says nothing about the way here.
        boolean stamped = record.timestampType() == TimestampType.LOG_APPEND_TIME;
        long recordMs = stamped ? record.timestamp() : Reading.UNKNOWN;
        Consumer<Reading> each = out::collect;
        if (collectd != null) {
            collectd.read(record.key(), record.value(), recordMs, each);
        } else {
            samples.read(record.key(), record.value(), recordMs, each);
        }
    }

    @Override
    public TypeInformation<Reading> getProducedType() {
        return TypeInformation.of(Reading.class);
    }
}
