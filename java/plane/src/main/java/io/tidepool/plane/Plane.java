package io.tidepool.plane;

import java.security.SecureRandom;
import java.util.HexFormat;
import java.util.Map;
import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.DataStreamUtils;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * The job of the plane of memory control: samples of nodes in, ceilings and sums out. It runs in
 * one JVM by its own {@code main}, or on a Flink cluster that it is submitted to.
 */
public final class Plane {

    private static final int ID_BYTES = 8;
    private static final int BAD_USAGE = 2;
    /** Time between two looks for new partitions. */
    private static final String DISCOVERY_MS = "30000";
    /** More than comes in the time of gathering: a message has a kilobyte or two. */
    private static final String GATHER_BYTES = Integer.toString(1 << 20);
    /** Longer than the answers to samples take that came together. */
    private static final long LINGER_MS = 2;

    private Plane() {
    }

    /**
     * Runs the job until it is stopped.
     *
     * @throws Exception where Flink or Kafka cannot be used
     */
    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 1 && arguments[0].equals("--help")) {
            System.out.print(Options.HELP);
            return;
        }
        Options options = null;
        Configuration settings = null;
        try {
            options = new Options(arguments);
            settings = Settings.of(options);
        } catch (IllegalArgumentException refused) {
            System.err.println("plane: " + refused.getMessage());
            System.exit(BAD_USAGE);
        }
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment(settings);
        build(environment, options);
        environment.execute("tidepool-plane");
    }

    /** Puts the job together. Functions have ids, so that a changed job takes over their state. */
    static void build(StreamExecutionEnvironment environment, Options options) {
        environment.setParallelism(options.parallelism);
        environment.getConfig().enableObjectReuse();
        byte[] id = new byte[ID_BYTES];
        new SecureRandom().nextBytes(id);
        String newPlane = HexFormat.of().formatHex(id);

        boolean single = options.parallelism == 1;
        boolean hasCollectd = !options.collectdTopic.isEmpty();
        DataStream<Reading> readings = source(environment, options, options.samplesTopic,
                MessageFormat.ofAgents(options), "samples");
        if (hasCollectd) {
            readings = readings.union(source(environment, options, options.collectdTopic,
                    MessageFormat.ofCollectd(options), "collectd"));
        }
        SingleOutputStreamOperator<Ceiling> nodes =
                keyed(readings, Reading::key, single && !hasCollectd)
                .process(new NodeFunction(options, newPlane)).name("nodes").uid("nodes");
        DataStream<Ceiling> ceilings = nodes;
        DataStream<Report> reports = nodes.getSideOutput(NodeFunction.REPORTS);
        boolean isFair = options.policy == PolicyName.FAIR;
        if (isFair) {
            DataStream<Reading> taken = nodes.getSideOutput(NodeFunction.TAKEN);
            SingleOutputStreamOperator<Ceiling> sites = keyed(taken, it -> it.cluster, single)
                    .process(new SiteFunction(options, newPlane)).name("sites").uid("sites");
            ceilings = sites;
            reports = reports.union(sites.getSideOutput(NodeFunction.REPORTS));
        }
        ceilings.sinkTo(sink(options, new CeilingFormat(options.ceilingsTopic)))
                .name("ceilings").uid("ceilings");
        keyed(reports, report -> "", single && !isFair)
                .process(new SummaryFunction(options.policy)).name("sums").uid("sums")
                .setParallelism(1)
                .sinkTo(sink(options, new SummaryFormat(options.summariesTopic)))
                .name("summaries").uid("summaries").setParallelism(1);
    }

    /**
     * A stream by key. Where one instance does all, and one stream comes, both sides are one
     * thread: a message that goes to another one is written, read, and wakes it.
     */
    private static <T> KeyedStream<T, String> keyed(DataStream<T> stream,
            KeySelector<T, String> key, boolean inOneThread) {
        return inOneThread ? DataStreamUtils.reinterpretAsKeyedStream(stream, key, Types.STRING)
                : stream.keyBy(key, Types.STRING);
    }

    private static DataStream<Reading> source(StreamExecutionEnvironment environment,
            Options options, String topic, MessageFormat format, String name) {
        KafkaSource<Reading> source = kafka(options, topic, format, name);
        // Each node's samples have an order of their own: no clock is compared with another.
        return environment.fromSource(source, WatermarkStrategy.noWatermarks(), name).uid(name);
    }

    static KafkaSource<Reading> kafka(Options options, String topic, MessageFormat format,
            String name) {
        Properties gather = new Properties();
        if (options.gatherMs > 0) {
            // The broker answers when the time is over: one request for all that came in it.
            gather.setProperty("fetch.min.bytes", GATHER_BYTES);
            gather.setProperty("fetch.max.wait.ms", Long.toString(options.gatherMs));
        }
        return KafkaSource.<Reading>builder()
                .setBootstrapServers(options.kafka)
                .setTopics(topic)
                .setDeserializer(format)
                // With a checkpoint it goes on from there.
                .setStartingOffsets(options.fromEarliest
                        ? OffsetsInitializer.earliest() : OffsetsInitializer.latest())
                .setProperty("client.id.prefix", "tidepool-plane-" + name)
                // Partitions that are new since the start are read from their beginning.
                .setProperty("partition.discovery.interval.ms", DISCOVERY_MS)
                .setProperty("commit.offsets.on.checkpoint", "false")
                .setProperties(gather)
                .setProperties(properties(options))
                .build();
    }

    private static <T> KafkaSink<T> sink(Options options,
            KafkaRecordSerializationSchema<T> format) {
        Properties properties = new Properties();
        properties.setProperty("linger.ms",
                Long.toString(Math.min(options.gatherMs, LINGER_MS)));
        properties.setProperty("acks", "1");
        properties.setProperty("enable.idempotence", "false");
        properties.putAll(properties(options));
        return KafkaSink.<T>builder()
                .setBootstrapServers(options.kafka)
                .setKafkaProducerConfig(properties)
                .setRecordSerializer(format)
                .setDeliveryGuarantee(DeliveryGuarantee.AT_LEAST_ONCE)
                .build();
    }

    private static Properties properties(Options options) {
        Properties properties = new Properties();
        for (Map.Entry<String, String> entry : options.kafkaProperties.entrySet()) {
            properties.setProperty(entry.getKey(), entry.getValue());
        }
        return properties;
    }
}
