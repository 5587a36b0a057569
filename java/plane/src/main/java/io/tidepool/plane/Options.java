package io.tidepool.plane;

import java.io.IOException;
import java.io.Reader;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/** Options of the job, from its arguments: {@code --name value}. */
final class Options implements Serializable {

    /** What {@code --help} says. */
    static final String HELP = """
            The plane of memory control: reads samples of nodes from Kafka, answers with ceilings.

              --kafka HOST:PORT,...        brokers (needed)
              --kafka-properties FILE      more properties of Kafka's clients: TLS, SASL
              --samples-topic NAME         samples of agents [tidepool-samples]
              --collectd-topic NAME        messages of collectd [none]
              --ceilings-topic NAME        answers to nodes [tidepool-ceilings]
              --summaries-topic NAME       sums, once a second [tidepool-summaries]
              --from latest|earliest       where to begin without a checkpoint [latest]
              --cluster NAME               serve this cluster alone [all]
              --collectd-cluster NAME      cluster of nodes with collectd [--cluster, or default]
              --policy NAME                dynims, dynims-printed, fair or follow [dynims]
              --used-share N               dynims: target share of used memory, r0 [0.95]
              --gain N                     dynims: gain, lambda [0.5]
              --interval-ms N              time between two decisions, T [100]
              --lease-ms N                 how long a ceiling holds [5000]
              --store-name NAME            nodes with collectd: name of the store [tidepool]
              --min-bytes N                nodes with collectd: Umin [0]
              --max-bytes N                nodes with collectd: Umax (needed with --collectd-topic)
              --block-bytes N              nodes with collectd: block [67108864]
              --fair-total-bytes N         fair: store bytes of the whole site
              --fair-share N               fair: the same as a share of the sum of all max [0.5]
              --fair-by user|job           fair: whose weights [user]
              --weights FILE               fair: lines "user NAME N", "job NAME N", "default N"
                                           and "idle N"
              --max-nodes N                nodes that are served [2000]
              --max-jobs N                 jobs of a node that are looked at [64]
              --max-all-jobs N             jobs of all nodes together [20000]
              --max-stores N               stores of a node [16]
              --parallelism N              instances of each function [1]
              --gather-ms N                time in which samples gather before they are taken
                                           together; 0 takes each at once [10]
              --buffer-timeout-ms N        time that Flink may hold messages back [0]
              --checkpoints URI            directory of checkpoints [none: kept in memory]
              --checkpoint-interval-ms N   time between two [1000]
              --restore PATH|latest        go on from a checkpoint, or the newest in --checkpoints
            """;

    private static final long serialVersionUID = 1;
    private static final double MOST_GAIN = 100;
    private static final long MOST_MS = 3_600_000;
    private static final long MOST_GATHER_MS = 1000;

    final String kafka;
    final HashMap<String, String> kafkaProperties = new HashMap<>();
    final String samplesTopic;
    final String collectdTopic;
    final String ceilingsTopic;
    final String summariesTopic;
    final boolean fromEarliest;
    final String cluster;
    final String collectdCluster;
    final PolicyName policy;
    final double usedShare;
    final double gain;
    final long intervalMs;
    final long leaseMs;
    final String storeName;
    final long minBytes;
    final long maxBytes;
    final long blockBytes;
    final long fairTotalBytes;
    final double fairShare;
    final Weights weights;
    final int maxNodes;
    final int maxJobs;
    final int maxAllJobs;
    final int maxStores;
    final int parallelism;
    final long gatherMs;
    final long bufferTimeoutMs;
    final String checkpoints;
    final long checkpointIntervalMs;
    final String restore;

    /**
     * Reads the arguments and the files that they name.
     *
     * @throws IllegalArgumentException with the cause in words of the user
     */
    Options(String... arguments) {
        Words words = new Words(arguments);
        kafka = words.text("kafka", "");
        samplesTopic = words.text("samples-topic", "tidepool-samples");
        collectdTopic = words.text("collectd-topic", "");
        ceilingsTopic = words.text("ceilings-topic", "tidepool-ceilings");
        summariesTopic = words.text("summaries-topic", "tidepool-summaries");
        fromEarliest = words.oneOf("from", "latest", "earliest").equals("earliest");
        cluster = words.text("cluster", "");
        collectdCluster = words.text("collectd-cluster", cluster.isEmpty() ? "default" : cluster);
        policy = PolicyName.of(words.text("policy", PolicyName.DYNIMS.text));
        usedShare = words.number("used-share", 0.95, 0.01, 1);
        gain = words.number("gain", 0.5, 0, MOST_GAIN);
        intervalMs = words.whole("interval-ms", 100, 1, MOST_MS);
        leaseMs = words.whole("lease-ms", 5000, 100, MOST_MS);
        storeName = words.text("store-name", "tidepool");
        minBytes = words.whole("min-bytes", 0, 0, Long.MAX_VALUE);
        maxBytes = words.whole("max-bytes", collectdTopic.isEmpty() ? 0 : -1, minBytes,
                Long.MAX_VALUE);
        blockBytes = words.whole("block-bytes", 64L << 20, 1, Long.MAX_VALUE);
        fairTotalBytes = words.whole("fair-total-bytes", 0, 0, Long.MAX_VALUE);
        fairShare = words.number("fair-share", 0.5, 0, 1);
        boolean byJob = words.oneOf("fair-by", "user", "job").equals("job");
        String weightsFile = words.text("weights", "");
        weights = weightsFile.isEmpty() ? Weights.equal(byJob)
                : Weights.read(Path.of(weightsFile), byJob);
        maxNodes = (int) words.whole("max-nodes", 2000, 1, 1_000_000);
        maxJobs = (int) words.whole("max-jobs", 64, 0, 1000);
        maxAllJobs = (int) words.whole("max-all-jobs", 20_000, 0, 10_000_000);
        maxStores = (int) words.whole("max-stores", 16, 1, 1000);
        parallelism = (int) words.whole("parallelism", 1, 1, 1000);
        gatherMs = words.whole("gather-ms", 10, 0, MOST_GATHER_MS);
        bufferTimeoutMs = words.whole("buffer-timeout-ms", 0, 0, MOST_MS);
        checkpoints = words.text("checkpoints", "");
        checkpointIntervalMs = words.whole("checkpoint-interval-ms", 1000, 10, MOST_MS);
        restore = words.text("restore", "");
        readProperties(words.text("kafka-properties", ""));
        words.end();
        if (kafka.isEmpty()) {
            throw new IllegalArgumentException("--kafka HOST:PORT is needed");
        }
    }

    private void readProperties(String file) {
        if (file.isEmpty()) {
            return;
        }
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(file))) {
            properties.load(reader);
        } catch (IOException unreadable) {
            throw new IllegalArgumentException("--kafka-properties " + file + ": " + unreadable,
                    unreadable);
        }
        properties.stringPropertyNames()
                .forEach(name -> kafkaProperties.put(name, properties.getProperty(name)));
    }

    /** Arguments that have not been asked for yet. */
    private static final class Words {

        private final Map<String, String> left = new HashMap<>();

        Words(String... arguments) {
            for (int i = 0; i < arguments.length; i += 2) {
                if (!arguments[i].startsWith("--") || i + 1 == arguments.length) {
                    throw new IllegalArgumentException("not understood: " + arguments[i]
                            + " (options are --name value; see --help)");
                }
                left.put(arguments[i].substring(2), arguments[i + 1]);
            }
        }

        String text(String name, String otherwise) {
            String text = left.remove(name);
            return text == null ? otherwise : text;
        }

        String oneOf(String name, String first, String second) {
            String text = text(name, first);
            if (!text.equals(first) && !text.equals(second)) {
                throw new IllegalArgumentException(
                        "--" + name + " " + text + ": it takes " + first + " or " + second);
            }
            return text;
        }

        long whole(String name, long otherwise, long least, long most) {
            String text = text(name, Long.toString(otherwise));
            try {
                long value = Long.parseLong(text);
                if (value >= least && value <= most) {
                    return value;
                }
            } catch (NumberFormatException noNumber) {
                // Told below.
            }
            throw new IllegalArgumentException("--" + name + " " + text
                    + ": it takes a whole number from " + least + " to " + most);
        }

        double number(String name, double otherwise, double least, double most) {
            String text = text(name, Double.toString(otherwise));
            try {
                double value = Double.parseDouble(text);
                if (value >= least && value <= most) {
                    return value;
                }
            } catch (NumberFormatException noNumber) {
                // Told below.
            }
            throw new IllegalArgumentException(
                    "--" + name + " " + text + ": it takes a number from " + least + " to " + most);
        }

        void end() {
            if (!left.isEmpty()) {
                List<String> names = new ArrayList<>(left.keySet());
                throw new IllegalArgumentException("no option --" + names.get(0) + "; see --help");
            }
        }
    }
}
