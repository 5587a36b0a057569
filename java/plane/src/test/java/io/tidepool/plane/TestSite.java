package io.tidepool.plane;

import static io.tidepool.plane.Samples.GIB;
import static io.tidepool.plane.Samples.NOW_MS;
import static io.tidepool.plane.Samples.sample;
import static org.assertj.core.api.Assertions.assertThat;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.runtime.checkpoint.OperatorSubtaskState;
import org.apache.flink.streaming.api.operators.KeyedProcessOperator;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.streaming.util.KeyedOneInputStreamOperatorTestHarness;
import org.apache.flink.streaming.util.OperatorSnapshotUtil;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** The bytes of a site are shared by weights. */
public class TestSite {

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    private KeyedOneInputStreamOperatorTestHarness<String, Reading, Ceiling> job;
    private Options options;
    private long nowMs = NOW_MS;
    private int number;

    @Before
    public void start() throws Exception {
        Path weights = folder.newFile().toPath();
        Files.write(weights, List.of("user anna 3"));
        options = Samples.options("--policy", "fair", "--weights", weights.toString(),
                "--fair-total-bytes", Long.toString(80 * GIB));
        open("plane1", null);
    }

    @After
    public void stop() throws Exception {
        job.close();
    }

    private void open(String plane, OperatorSubtaskState state) throws Exception {
        if (job != null) {
            job.close();
        }
        job = new KeyedOneInputStreamOperatorTestHarness<>(new KeyedProcessOperator<>(
                new SiteFunction(options, plane)), sample -> sample.cluster, Types.STRING);
        job.setup();
        if (state != null) {
            job.initializeState(state);
        }
        job.open();
        job.setProcessingTime(nowMs);
    }

    private static Reading of(String node, int number, String... users) {
        Reading reading = sample(node, "a", number, 0);
        reading.jobs = Arrays.stream(users).map(user -> new JobUse("j-" + user, user, 1))
                .toArray(JobUse[]::new);
        return reading;
    }

    /** All nodes speak once in each interval for that time; the last ceilings of each. */
    private Map<String, Ceiling> run(long spanMs, Map<String, String[]> users) throws Exception {
        Map<String, Ceiling> last = new TreeMap<>();
        for (long endMs = nowMs + spanMs; nowMs < endMs;) {
            number++;
            for (Map.Entry<String, String[]> node : users.entrySet()) {
                job.processElement(new StreamRecord<>(of(node.getKey(), number, node.getValue())));
            }
            nowMs += 100;
            job.setProcessingTime(nowMs);
            for (Ceiling ceiling : job.extractOutputValues()) {
                Ceiling before = last.put(ceiling.node, ceiling);
                assertThat(before == null || before.number < ceiling.number).isTrue();
            }
            job.getOutput().clear();
        }
        return last;
    }

    private static Map<String, String[]> users(String... nodes) {
        Map<String, String[]> users = new TreeMap<>();
        for (String node : nodes) {
            String[] words = node.split(" ");
            users.put(words[0], Arrays.copyOfRange(words, 1, words.length));
        }
        return users;
    }

    @Test
    public void sharesGoByWeightsOfUsersSpreadOverTheirNodes() throws Exception {
        Map<String, Ceiling> last = run(6000, users("n0 anna", "n1 anna", "n2 bob"));
        // 80 GiB by 3 to 1, the 3 over two nodes.
        assertThat(last.get("n0").ceilingBytes).containsExactly(30 * GIB);
        assertThat(last.get("n1").ceilingBytes).containsExactly(30 * GIB);
        assertThat(last.get("n2").ceilingBytes).containsExactly(20 * GIB);
        assertThat(last.get("n0").policy).isEqualTo("fair");
    }

    @Test
    public void whatOneCannotTakeGoesToTheOthers() throws Exception {
        Map<String, Ceiling> last = run(6000, users("n0 anna", "n1 bob"));
        // 60 and 20 of 80 is what the weights say, and as much as n0 can take.
        assertThat(last.get("n0").ceilingBytes).containsExactly(60 * GIB);
        assertThat(last.get("n1").ceilingBytes).containsExactly(20 * GIB);
        last = run(1000, users("n0 anna", "n1 bob", "n2"));
        assertThat(last.get("n0").ceilingBytes).containsExactly(48 * GIB);
        assertThat(last.get("n2").ceilingBytes).as("idle").containsExactly(16 * GIB);
    }

    @Test
    public void nothingIsSentInTheFirstLeaseAndRenewalsAreAtHalfOfIt() throws Exception {
        assertThat(run(4900, users("n0 anna", "n1 bob"))).isEmpty();
        assertThat(run(200, users("n0 anna", "n1 bob"))).hasSize(2);
        assertThat(run(2300, users("n0 anna", "n1 bob"))).isEmpty();
        assertThat(run(200, users("n0 anna", "n1 bob"))).hasSize(2);
    }

    @Test
    public void aSilentNodeGetsNothingAndLosesItsShare() throws Exception {
        run(6000, users("n0 anna", "n1 bob", "n2"));
        Map<String, Ceiling> last = run(9000, users("n0 anna", "n1 bob"));
        assertThat(last).doesNotContainKey("n2");
        assertThat(last.get("n0").ceilingBytes).containsExactly(48 * GIB);
        last = run(2000, users("n0 anna", "n1 bob"));
        assertThat(last.get("n0").ceilingBytes).containsExactly(60 * GIB);
        last = run(600_000, users("n0 anna"));
        assertThat(last.get("n0").ceilingBytes).containsExactly(60 * GIB);
    }

    @Test
    public void aRestoreGoesOnAboveAllNumbersThatMayHaveBeenSent() throws Exception {
        run(6000, users("n0 anna", "n1 bob"));
        OperatorSubtaskState state = job.snapshot(1, 1);
        Map<String, Ceiling> lost = run(60_000, users("n0 anna", "n1 bob"));
        open("plane2", state);
        Map<String, Ceiling> last = run(6000, users("n0 anna", "n1 bob"));
        assertThat(last.get("n0").number).isGreaterThan(lost.get("n0").number);
        assertThat(last.get("n0").plane).isEqualTo("plane1");
    }

    @Test
    public void aCheckpointThatHasNamesOfStoresIsReadOn() throws Exception {
        // One ceiling of the node n0 had gone out.
        open("plane2", OperatorSnapshotUtil.readStateHandle(
                getClass().getResource("/site-of-strings.state").getPath()));
        Map<String, Ceiling> last = run(5100, users("n0 anna"));
        assertThat(last.get("n0").number).isGreaterThan(1);
        assertThat(last.get("n0").plane).isEqualTo("plane1");
    }

    @Test
    public void waterFindsItsLevel() {
        assertThat(Water.fill(100, new double[] {1, 1}, new long[2], new long[] {90, 90}))
                .containsExactly(50, 50);
        assertThat(Water.fill(100, new double[] {1, 1}, new long[2], new long[] {20, 90}))
                .containsExactly(20, 80);
        assertThat(Water.fill(100, new double[] {1, 1, 1}, new long[] {70, 0, 0},
                new long[] {90, 90, 90})).containsExactly(70, 15, 15);
        assertThat(Water.fill(100, new double[] {0, 1}, new long[] {5, 0}, new long[] {90, 60}))
                .as("no weight, no more than the min").containsExactly(5, 60);
        assertThat(Water.fill(10, new double[] {1, 1}, new long[] {40, 50}, new long[] {90, 60}))
                .as("mins go first").containsExactly(40, 50);
        assertThat(Water.fill(999, new double[] {1, 3}, new long[2], new long[] {90, 61}))
                .as("enough for all").containsExactly(90, 61);
        assertThat(Water.fill(999, new double[0], new long[0], new long[0])).isEmpty();
    }

    @Test
    public void waterKeepsBoundsSumAndOrder() {
        Random random = new Random(11);
        for (int round = 0; round < 3000; round++) {
            int count = 1 + random.nextInt(12);
            double[] weights = new double[count];
            long[] mins = new long[count];
            long[] maxes = new long[count];
            long least = 0;
            long most = 0;
            for (int i = 0; i < count; i++) {
                weights[i] = random.nextInt(4) / (1.0 + random.nextInt(3));
                maxes[i] = random.nextLong() >>> 20;
                mins[i] = random.nextBoolean() ? 0 : (long) (maxes[i] * random.nextDouble());
                least += mins[i];
                most += weights[i] > 0 ? maxes[i] : mins[i];
            }
            long total = (long) (most * 1.2 * random.nextDouble());
            long[] shares = Water.fill(total, weights, mins, maxes);
            assertThat(shares).isEqualTo(Water.fill(total, weights, mins, maxes));
            long sum = Arrays.stream(shares).sum();
            assertThat(sum).isLessThanOrEqualTo(Math.max(least, total));
            // All of it is given but for the rounding of each.
            assertThat(sum).isGreaterThanOrEqualTo(Math.min(most, Math.max(least, total)) - count
                    - (total >>> 45));
            for (int i = 0; i < count; i++) {
                assertThat(shares[i]).isBetween(mins[i], maxes[i]);
                for (int j = 0; j < count; j++) {
                    boolean free = shares[j] > mins[j] && shares[i] < maxes[i];
                    if (free && weights[i] >= weights[j]) {
                        assertThat(shares[i]).isGreaterThanOrEqualTo(shares[j]);
                    }
                }
            }
        }
    }

    @Test
    public void ofAClusterWithoutNodesNothingStays() throws Exception {
        for (int i = 0; i < 100; i++) {
            Reading reading = of("n0", 1);
            reading.cluster = "forged" + i;
            job.processElement(new StreamRecord<>(reading));
        }
        assertThat(job.numKeyedStateEntries()).isGreaterThanOrEqualTo(100);
        nowMs += NodeFunction.FORGET_MS + 1;
        job.setProcessingTime(nowMs);
        assertThat(job.numKeyedStateEntries()).isEqualTo(0);
        assertThat(job.numProcessingTimeTimers()).isEqualTo(0);
    }
}
