package io.tidepool.plane;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.graph.StreamGraph;
import org.apache.flink.streaming.api.graph.StreamNode;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Options, and the job that is put together by them. */
public class TestOptions {

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    private static void refused(String words, String... arguments) {
        assertThatThrownBy(() -> new Options(arguments))
                .isInstanceOf(IllegalArgumentException.class).hasMessageContaining(words);
    }

    @Test
    public void defaultsAreThoseOfThePaper() {
        Options options = Samples.options();
        assertThat(options.policy).isEqualTo(PolicyName.DYNIMS);
        assertThat(options.usedShare).isEqualTo(0.95);
        assertThat(options.gain).isEqualTo(0.5);
        assertThat(options.intervalMs).isEqualTo(100);
        assertThat(options.leaseMs).isEqualTo(5000);
        assertThat(options.maxNodes).isEqualTo(2000);
        assertThat(options.maxAllJobs).isEqualTo(20_000);
    }

    @Test
    public void whatIsNotUnderstoodIsRefusedWithTheCause() {
        refused("--kafka HOST:PORT is needed");
        refused("--help", "kafka", "x");
        refused("--help", "--kafka");
        refused("no option --polcy", "--kafka", "x", "--polcy", "fair");
        refused("no policy fare", "--kafka", "x", "--policy", "fare");
        refused("--lease-ms 1", "--kafka", "x", "--lease-ms", "1");
        refused("--gain NaN", "--kafka", "x", "--gain", "NaN");
        refused("--from middle", "--kafka", "x", "--from", "middle");
        refused("--max-bytes", "--kafka", "x", "--collectd-topic", "collectd");
        refused("--weights /not/there", "--kafka", "x", "--weights", "/not/there");
        refused("--kafka-properties /no", "--kafka", "x", "--kafka-properties", "/no");
    }

    @Test
    public void kafkaPropertiesComeFromAFile() throws IOException {
        Path file = folder.newFile().toPath();
        Files.write(file, List.of("security.protocol=SASL_SSL", "# a remark", "a.b=PEM"));
        Options options = Samples.options("--kafka-properties", file.toString());
        assertThat(options.kafkaProperties).hasSize(2)
                .containsEntry("security.protocol", "SASL_SSL");
    }

    @Test
    public void weightsAreReadAndErrorsNameTheLine() {
        List<String> lines = List.of("user anna 3 # first", "", "job 7 9", "idle 0");
        Weights weights = Weights.of(lines, false);
        assertThat(weights.of("anna")).isEqualTo(3);
        assertThat(weights.of("bob")).isEqualTo(1);
        assertThat(weights.of("7")).as("jobs do not count here").isEqualTo(1);
        assertThat(weights.idle()).isEqualTo(0);
        assertThat(Weights.of(List.of("job 7 9", "default 2"), true).of("7")).isEqualTo(9);
        for (String line : List.of("user anna", "anna 3", "user anna -1", "user anna x", "job")) {
            assertThatThrownBy(() -> Weights.of(List.of(line), false)).hasMessageContaining(line);
        }
    }

    private static Configuration sourceSettings(String... arguments) throws Exception {
        Options options = Samples.options(arguments);
        KafkaSource<Reading> source =
                Plane.kafka(options, "topic", MessageFormat.ofAgents(options), "name");
        Method settings = KafkaSource.class.getDeclaredMethod("getConfiguration");
        settings.setAccessible(true);
        return (Configuration) settings.invoke(source);
    }

    @Test
    public void newPartitionsAreLookedFor() throws Exception {
        assertThat(sourceSettings().getString("partition.discovery.interval.ms", ""))
                .isEqualTo("30000");
    }

    @Test
    public void samplesGatherForAsLongAsTheyMay() throws Exception {
        assertThat(sourceSettings().getString("fetch.max.wait.ms", "")).isEqualTo("10");
        assertThat(sourceSettings("--gather-ms", "70").getString("fetch.max.wait.ms", ""))
                .isEqualTo("70");
        assertThat(sourceSettings("--gather-ms", "70").getString("fetch.min.bytes", ""))
                .as("more than comes").isEqualTo("1048576");
        assertThat(sourceSettings("--gather-ms", "0").toMap())
                .as("each at once").doesNotContainKeys("fetch.min.bytes", "fetch.max.wait.ms");
        Path file = folder.newFile().toPath();
        Files.write(file, List.of("fetch.max.wait.ms=3"));
        assertThat(sourceSettings("--kafka-properties", file.toString())
                .getString("fetch.max.wait.ms", "")).as("who says it himself").isEqualTo("3");
        refused("--gather-ms 1001", "--kafka", "x", "--gather-ms", "1001");
    }

    private static int threads(String... arguments) {
        Options options = Samples.options(arguments);
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment(Settings.of(options));
        Plane.build(environment, options);
        return environment.getStreamGraph().getJobGraph().getNumberOfVertices();
    }

    @Test
    public void oneInstanceHandsNothingFromThreadToThread() {
        assertThat(threads("--policy", "dynims")).isEqualTo(1);
        assertThat(threads("--policy", "follow")).isEqualTo(1);
        assertThat(threads("--policy", "fair")).as("sums of two streams").isEqualTo(2);
        // Two sources, and samples that have to find the instance of their node.
        String[] collectd = {"--collectd-topic", "collectd", "--max-bytes", "1"};
        assertThat(threads(collectd)).isEqualTo(3);
        assertThat(threads("--parallelism", "2")).isEqualTo(3);
    }

    @Test
    public void theJobNeedsNoGenericTypesAndAllFunctionsHaveIds() {
        for (String policy : List.of("dynims", "fair", "follow")) {
            Options options = Samples.options("--policy", policy, "--collectd-topic", "collectd",
                    "--max-bytes", "1", "--parallelism", "2");
            StreamExecutionEnvironment environment =
                    StreamExecutionEnvironment.getExecutionEnvironment(Settings.of(options));
            Plane.build(environment, options);
            StreamGraph graph = environment.getStreamGraph();
            for (StreamNode node : graph.getStreamNodes()) {
                boolean ours = !node.getOperatorName().contains("Committer");
                assertThat(node.getTransformationUID() != null || !ours).as("%s", node).isTrue();
            }
            assertThat(graph.getJobGraph().getNumberOfVertices()).isGreaterThan(2);
        }
    }
}
