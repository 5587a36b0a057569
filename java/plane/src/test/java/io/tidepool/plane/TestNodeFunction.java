package io.tidepool.plane;

import static io.tidepool.plane.Samples.BLOCK;
import static io.tidepool.plane.Samples.GIB;
import static io.tidepool.plane.Samples.NOW_MS;
import static io.tidepool.plane.Samples.sample;
import static org.assertj.core.api.Assertions.assertThat;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Consumer;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.runtime.checkpoint.OperatorSubtaskState;
import org.apache.flink.streaming.api.operators.KeyedProcessOperator;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.streaming.util.KeyedOneInputStreamOperatorTestHarness;
import org.apache.flink.streaming.util.OperatorSnapshotUtil;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** Which samples of a node are taken, and when which ceiling answers. */
public class TestNodeFunction {

    private static final long FULL = 128 * GIB;

    private KeyedOneInputStreamOperatorTestHarness<String, Reading, Ceiling> job;
    private long nowMs = NOW_MS;

    @Before
    public void start() throws Exception {
        open("plane1", null);
    }

    @After
    public void stop() throws Exception {
        job.close();
    }

    private void open(String plane, OperatorSubtaskState state, String... options)
            throws Exception {
        if (job != null) {
            job.close();
        }
        job = new KeyedOneInputStreamOperatorTestHarness<>(new KeyedProcessOperator<>(
                new NodeFunction(Samples.options(options), plane)), Reading::key, Types.STRING);
        job.getExecutionConfig().enableObjectReuse();
        job.setup();
        if (state != null) {
            job.initializeState(state);
        }
        job.open();
        job.setProcessingTime(nowMs);
    }

    private List<Ceiling> send(Reading... readings) throws Exception {
        for (Reading reading : readings) {
            job.processElement(new StreamRecord<>(reading));
        }
        List<Ceiling> ceilings = job.extractOutputValues();
        job.getOutput().clear();
        return ceilings;
    }

    private Counts counts() {
        Counts counts = new Counts();
        if (job.getSideOutput(NodeFunction.REPORTS) != null) {
            job.getSideOutput(NodeFunction.REPORTS)
                    .forEach(report -> counts.add(report.getValue().counts));
            job.getSideOutput(NodeFunction.REPORTS).clear();
        }
        return counts;
    }

    private static Reading with(Reading reading, Consumer<Reading> change) {
        change.accept(reading);
        return reading;
    }

    @Test
    public void aSampleIsAnsweredByTheLaw() throws Exception {
        Ceiling ceiling = send(sample("n0", "a", 17, 127 * GIB)).get(0);
        // 40 - 0.5 x 127 x (127 - 121.6) / 121.6 = 37.18 GiB, down to blocks of 64 MiB.
        assertThat(ceiling.ceilingBytes).containsExactly(594 * BLOCK);
        assertThat(ceiling.floorBytes).containsExactly(4 * GIB);
        assertThat(ceiling.plane).isEqualTo("plane1");
        assertThat(ceiling.number).isEqualTo(1);
        assertThat(new String(ceiling.json(), StandardCharsets.UTF_8)).isEqualTo(
                "{\"form\":1,\"cluster\":\"site1\",\"node\":\"n0\",\"plane\":\"plane1\","
                + "\"number\":1,\"sample_start\":\"a\",\"sample_number\":17,\"sample_at_ms\":"
                + (NOW_MS + 1700)
                + ",\"at_ms\":" + NOW_MS + ",\"lease_ms\":5000,\"policy\":\"dynims\",\"stores\":["
                + "{\"name\":\"tidepool\",\"ceiling_bytes\":" + 594 * BLOCK
                + ",\"floor_bytes\":4294967296}]}");
    }

    @Test
    public void thePrintedLawRoundsUp() throws Exception {
        open("plane1", null, "--policy", "dynims-printed");
        Ceiling ceiling = send(sample("n0", "a", 17, 127 * GIB)).get(0);
        assertThat(ceiling.ceilingBytes).containsExactly(595 * BLOCK);
        assertThat(ceiling.policy).isEqualTo("dynims-printed");
    }

    @Test
    public void theLawGoesOnFromItsOwnWordOnceInEachInterval() throws Exception {
        assertThat(send(sample("n0", "a", 1, FULL))).hasSize(1);
        long first = counts().decisions;
        assertThat(first).isEqualTo(1);
        // A quarter of the interval of the law between two samples.
        for (int number = 2; number <= 8; number++) {
            Reading reading = sample("n0", "a", number, FULL);
            reading.stepMs = 25;
            reading.atMs = NOW_MS + 100 + 25 * (number - 1);
            send(reading);
        }
        assertThat(counts().decisions).as("intervals in 175 ms, a little early is early enough")
                .isEqualTo(2);
        for (int number = 9; number <= 16; number++) {
            Reading reading = sample("n0", "a", number, FULL);
            reading.stepMs = 10;
            reading.atMs = NOW_MS + 275 + 100 * (number - 8);
            send(reading);
        }
        assertThat(counts().decisions).as("samples further apart than told").isEqualTo(8);
    }

    @Test
    public void whatChangesNothingIsNotSentUntilHalfOfTheLease() throws Exception {
        long steady = 121 * GIB + 600 * (1L << 20);
        List<Long> answered = new ArrayList<>();
        for (int number = 0; number <= 60; number++) {
            for (Ceiling ceiling : send(sample("n0", "a", number, steady))) {
                answered.add(ceiling.sampleNumber);
            }
        }
        assertThat(answered).containsExactly(0L, 25L, 50L);
    }

    @Test
    public void aNodeThatIsSilentGetsNothing() throws Exception {
        send(sample("n0", "a", 1, FULL));
        nowMs += 60_000;
        job.setProcessingTime(nowMs);
        assertThat(send()).isEmpty();
    }

    @Test
    public void aClockThatStandsStillDoesNotHoldBackTheLease() throws Exception {
        long steady = 121 * GIB + 600 * (1L << 20);
        int answers = 0;
        for (int number = 0; number <= 60; number++) {
            answers += send(with(sample("n0", "a", number, steady), s -> s.atMs = NOW_MS)).size();
        }
        assertThat(answers).isEqualTo(3);
    }

    @Test
    public void repeatedAndReorderedSamplesAreDroppedAndCounted() throws Exception {
        send(sample("n0", "a", 5, FULL));
        counts();
        assertThat(send(sample("n0", "a", 5, 0))).isEmpty();
        assertThat(counts().repeated).isEqualTo(1);
        assertThat(send(sample("n0", "a", 4, 0))).isEmpty();
        assertThat(counts().late).isEqualTo(1);
        assertThat(send(sample("n0", "a", 4, 0))).isEmpty();
        assertThat(counts().repeated).as("the late one again").isEqualTo(1);
        send(sample("n0", "a", 500, FULL));
        counts();
        assertThat(send(sample("n0", "a", 5, 0))).isEmpty();
        assertThat(counts().late).as("too long ago to know").isEqualTo(1);
        assertThat(send(sample("n0", "a", 501, 60 * GIB))).hasSize(1);
    }

    /** A sample that the broker took so long after the start of the test. */
    private static Reading at(long ms, String start, long number) {
        return with(sample("n0", start, number, FULL), s -> s.recordMs = NOW_MS + ms);
    }

    @Test
    public void theStartThatSpeaksKeepsTheNodeAndAnotherFollowsALeaseLater() throws Exception {
        send(at(0, "a", 499), at(0, "a", 500));
        counts();
        assertThat(send(at(4999, "b", 1))).isEmpty();
        assertThat(counts().late).as("it spoke less than a lease ago").isEqualTo(1);
        List<Ceiling> second = send(at(5000, "b", 2));
        assertThat(second).hasSize(1);
        // From the capacity of the sample again, and numbers go on.
        assertThat(second.get(0).ceilingBytes[0]).isEqualTo(36 * GIB + 10 * BLOCK);
        assertThat(second.get(0).number).isEqualTo(3);
        counts();
        assertThat(send(at(5100, "a", 501), at(5100, "c", 900), at(5200, "b", 3))).hasSize(1);
        assertThat(counts().late).isEqualTo(2);
        // What was taken of the old one is not taken again; what it says anew is.
        assertThat(send(at(10_200, "a", 500))).isEmpty();
        assertThat(counts().late).isEqualTo(1);
        assertThat(send(at(10_200, "a", 501), at(10_300, "a", 502), at(10_300, "b", 4))).hasSize(2);
    }

    @Test
    public void oneForgedStartDoesNotSilenceANode() throws Exception {
        send(at(0, "a", 1), at(100, "a", 2));
        // The node speaks: nothing happens. It is silent for a lease: it is back a lease later.
        assertThat(send(at(150, "forged", 9), at(200, "a", 3))).hasSize(1);
        send(at(5200, "forged", 9));
        assertThat(send(at(5300, "a", 54))).isEmpty();
        assertThat(send(at(10_200, "a", 103), at(10_300, "a", 104))).hasSize(2);
    }

    @Test
    public void oldStartsAreRememberedWithinBounds() throws Exception {
        long ms = 0;
        for (int start = 0; start < 100; start++) {
            send(at(ms, "s" + start, 1), at(ms, "s" + start, 2));
            ms += 5000;
        }
        counts();
        assertThat(send(at(ms, "s98", 2), at(ms, "s70", 2))).isEmpty();
        assertThat(counts().late).isEqualTo(2);
        assertThat(send(at(ms, "s60", 2))).hasSize(1);
    }

    @Test
    public void aNumberThatTimeDoesNotAllowIsNotTaken() throws Exception {
        send(at(0, "a", 1), at(100, "a", 2));
        counts();
        assertThat(send(at(200, "a", Long.MAX_VALUE), at(200, "a", 1100))).isEmpty();
        assertThat(counts().late).isEqualTo(2);
        Reading quick = with(at(200, "a", 1100), s -> s.stepMs = 1);
        assertThat(send(quick)).as("with a step of its own").isEmpty();
        assertThat(send(at(300, "a", 3))).hasSize(1);
        // The node was away for an hour.
        assertThat(send(at(3_600_300, "a", 36_003), at(3_600_400, "a", 36_004))).hasSize(2);
    }

    @Test
    public void aForgedNumberThatIsAheadHoldsForALease() throws Exception {
        send(at(0, "a", 1), at(100, "a", 2), at(200, "a", 1002));
        counts();
        assertThat(send(at(200, "a", 3), at(5100, "a", 52))).isEmpty();
        assertThat(counts().late).isEqualTo(2);
        assertThat(send(at(5200, "a", 1))).as("known").isEmpty();
        assertThat(send(at(5200, "a", 53), at(5300, "a", 54))).hasSize(2);
    }

    @Test
    public void forgedNumbersThatStandNearEachOtherHoldForALeaseAsWell() throws Exception {
        send(at(0, "a", 1), at(100, "a", 2));
        // Each allows the next one, and the last is sure.
        send(at(200, "a", 1002), at(200, "a", 2002), at(200, "a", 3002), at(200, "a", 3003));
        counts();
        int answers = 0;
        for (long number = 4; number < 53; number++) {
            answers += send(at(100 * (number - 1), "a", number)).size();
        }
        assertThat(answers).as("until they have come for a lease").isEqualTo(0);
        assertThat(counts().late).isEqualTo(49);
        assertThat(send(at(5300, "a", 54), at(5400, "a", 55))).hasSize(2);
    }

    @Test
    public void aFewOldSamplesAfterASilenceAreNoNode() throws Exception {
        send(at(0, "a", 499), at(0, "a", 500));
        assertThat(send(at(6000, "a", 7), at(10_000, "a", 6), at(11_000, "a", 6))).isEmpty();
        assertThat(send(at(15_500, "a", 8), at(16_000, "a", 501))).hasSize(1);
    }

    @Test
    public void aCheckpointThatHasNamesOfStartsAndStoresIsReadOn() throws Exception {
        open("plane2", OperatorSnapshotUtil.readStateHandle(
                getClass().getResource("/nodes-of-strings.state").getPath()));
        // Five samples of the start "a" were answered, and one of "z" before them.
        assertThat(send(at(0, "a", 5))).isEmpty();
        assertThat(counts().repeated).isEqualTo(1);
        Ceiling next = send(at(100, "a", 6)).get(0);
        assertThat(next.number).isEqualTo(7);
        assertThat(next.plane).isEqualTo("plane1");
        assertThat(send(at(200, "z", 10))).isEmpty();
    }

    @Test
    public void aClockThatIsAnHourOffChangesNothingButACount() throws Exception {
        long hour = 3_600_000;
        Ceiling right = send(sample("n0", "a", 1, FULL)).get(0);
        Ceiling fast = send(with(sample("n1", "a", 1, FULL), s -> s.atMs += hour)).get(0);
        Ceiling slow = send(with(sample("n2", "a", 1, FULL), s -> s.atMs -= hour)).get(0);
        assertThat(fast.ceilingBytes).isEqualTo(right.ceilingBytes);
        assertThat(slow.ceilingBytes).isEqualTo(right.ceilingBytes);
        assertThat(fast.sampleAtMs).isEqualTo(right.sampleAtMs + hour);
        assertThat(counts().skewed).isEqualTo(2);
        // One that is set back while the node runs.
        assertThat(send(with(sample("n1", "a", 2, FULL), s -> s.atMs -= hour))).hasSize(1);
    }

    @Test
    public void afterASilenceOfALeaseTheLawBeginsAtTheCapacityOfTheSample() throws Exception {
        long first = send(sample("n0", "a", 1, FULL)).get(0).ceilingBytes[0];
        long second = send(sample("n0", "a", 2, FULL)).get(0).ceilingBytes[0];
        assertThat(second).isLessThan(first);
        assertThat(send(sample("n0", "a", 60, FULL)).get(0).ceilingBytes[0]).isEqualTo(first);
    }

    @Test
    public void withoutAReadingOfMemoryTheCeilingStays() throws Exception {
        Reading blind = with(sample("n0", "a", 1, 0), s -> s.availableBytes = Reading.UNKNOWN);
        assertThat(send(blind).get(0).ceilingBytes).containsExactly(40 * GIB);
    }

    @Test
    public void ceilingsStayWithinTheBoundsOfTheSample() throws Exception {
        for (int number = 1; number < 40; number++) {
            for (Ceiling ceiling : send(sample("n0", "a", number, number < 20 ? FULL : 60 * GIB))) {
                assertThat(ceiling.ceilingBytes[0]).isBetween(4 * GIB, 60 * GIB);
            }
        }
        Reading narrow = with(sample("n0", "a", 41, 60 * GIB), s -> s.stores[0].maxBytes = 9 * GIB);
        assertThat(send(narrow).get(0).ceilingBytes).containsExactly(9 * GIB);
    }

    @Test
    public void nodesWithoutStoresAndGarbageAreCountedAlone() throws Exception {
        assertThat(send(with(sample("n0", "a", 1, FULL), s -> s.stores = new StoreFacts[0]),
                Reading.of(Reading.GARBAGE, 0), Reading.of(Reading.FOREIGN, 0))).isEmpty();
        Counts counts = counts();
        assertThat(counts.samples).isEqualTo(1);
        assertThat(counts.garbage).isEqualTo(1);
        assertThat(counts.foreign).isEqualTo(1);
    }

    @Test
    public void twoClustersHaveNodesOfTheSameName() throws Exception {
        send(sample("n0", "a", 5, FULL));
        List<Ceiling> other = send(with(sample("n0", "a", 5, FULL), s -> s.cluster = "site2"));
        assertThat(other).hasSize(1);
        assertThat(other.get(0).cluster).isEqualTo("site2");
        assertThat(other.get(0).number).isEqualTo(1);
    }

    @Test
    public void followSendsNothingAndFairHandsSamplesOn() throws Exception {
        open("plane1", null, "--policy", "follow");
        assertThat(send(sample("n0", "a", 1, FULL))).isEmpty();
        assertThat(counts().samples).isEqualTo(1);
        assertThat(job.getSideOutput(NodeFunction.TAKEN)).isNull();
        open("plane1", null, "--policy", "fair");
        assertThat(send(sample("n0", "a", 1, FULL), sample("n0", "a", 1, FULL))).isEmpty();
        assertThat(job.getSideOutput(NodeFunction.TAKEN)).hasSize(1);
    }

    @Test
    public void nodesBeyondTheBoundAreRefusedUntilOthersAreForgotten() throws Exception {
        open("plane1", null, "--max-nodes", "2");
        send(sample("n0", "a", 1, FULL), sample("n0", "a", 2, FULL), sample("n1", "a", 1, FULL));
        assertThat(send(sample("n2", "a", 1, FULL))).isEmpty();
        assertThat(counts().refused).isEqualTo(1);
        assertThat(send(sample("n0", "a", 3, FULL))).as("known ones are served").hasSize(1);
        open("plane2", job.snapshot(1, 1), "--max-nodes", "2");
        assertThat(send(sample("n2", "a", 1, FULL))).as("after a restore as well").isEmpty();
        nowMs += 400_000;
        job.setProcessingTime(nowMs);
        assertThat(send(sample("n1", "a", 2, FULL))).hasSize(1);
        nowMs += NodeFunction.FORGET_MS - 100_000;
        job.setProcessingTime(nowMs);
        assertThat(job.numKeyedStateEntries()).as("n0 is forgotten, n1 is not").isEqualTo(1);
        Ceiling ceiling = send(sample("n2", "a", 2, FULL)).get(0);
        assertThat(ceiling.number).as("no number comes again").isEqualTo(4);
        assertThat(send(sample("n0", "a", 4, FULL))).isEmpty();
    }

    @Test
    public void jobsOfAllNodesTogetherAreBounded() throws Exception {
        open("plane1", null, "--max-all-jobs", "3", "--policy", "fair");
        send(jobs("n0", 1, 2), jobs("n1", 1, 2));
        assertThat(counts().trimmed).isEqualTo(1);
        List<Integer> kept = new ArrayList<>();
        job.getSideOutput(NodeFunction.TAKEN).forEach(it -> kept.add(it.getValue().jobs.length));
        assertThat(kept).containsExactly(2, 1);
        open("plane2", job.snapshot(1, 1), "--max-all-jobs", "3", "--policy", "fair");
        send(jobs("n0", 2, 3), jobs("n1", 2, 1));
        assertThat(counts().trimmed).as("after a restore as well").isEqualTo(1);
        send(jobs("n0", 3, 0), jobs("n1", 3, 3));
        assertThat(counts().trimmed).as("those of n0 have ended").isEqualTo(0);
        nowMs += NodeFunction.FORGET_MS;
        job.setProcessingTime(nowMs);
        send(jobs("n2", 1, 3));
        assertThat(counts().trimmed).as("those of n1 are forgotten").isEqualTo(0);
    }

    private static Reading jobs(String node, long number, int count) {
        return with(sample(node, "a", number, FULL), s -> {
            s.jobs = new JobUse[count];
            Arrays.setAll(s.jobs, i -> new JobUse("j" + i, "anna", 1));
        });
    }

    @Test
    public void longNamesAreNotInTheState() throws Exception {
        List<Integer> sizes = new ArrayList<>();
        for (int length : new int[] {4, 128}) {
            open("plane1", null);
            for (long start = 10; start < 60; start++) {
                String name = "s" + start + "x".repeat(length);
                Reading reading = at(5000 * start, start < 59 ? name : "present", 1);
                reading.stores = new StoreFacts[16];
                Arrays.setAll(reading.stores,
                        i -> new StoreFacts(name + i, GIB, 0, GIB, BLOCK));
                send(reading);
            }
            OperatorSubtaskState state = job.snapshot(1, 1);
            sizes.add((int) state.getManagedKeyedState().iterator().next().getStateSize());
        }
        assertThat(sizes.get(1)).isEqualTo(sizes.get(0));
    }

    @Test
    public void aRestoreGoesOnWithPlaneNumberAndCeiling() throws Exception {
        List<Ceiling> before = new ArrayList<>();
        for (int number = 1; number <= 5; number++) {
            before.addAll(send(sample("n0", "a", number, FULL)));
        }
        OperatorSubtaskState state = job.snapshot(1, 1);
        List<Ceiling> straight = new ArrayList<>();
        for (int number = 6; number <= 60; number++) {
            straight.addAll(send(sample("n0", "a", number, 122 * GIB)));
        }
        nowMs += 30_000;
        open("plane2", state);
        assertThat(send(sample("n0", "a", 5, 0), sample("n0", "a", 4, 0))).isEmpty();
        assertThat(counts().repeated).isEqualTo(2);
        List<Ceiling> again = new ArrayList<>();
        for (int number = 6; number <= 60; number++) {
            again.addAll(send(sample("n0", "a", number, 122 * GIB)));
        }
        assertThat(before).hasSize(5);
        assertThat(straight).isNotEmpty();
        assertThat(again).hasSameSizeAs(straight);
        for (int i = 0; i < again.size(); i++) {
            assertThat(again.get(i)).isEqualToIgnoringGivenFields(straight.get(i), "atMs");
            assertThat(again.get(i).number).isEqualTo(6 + i);
            assertThat(again.get(i).plane).isEqualTo("plane1");
        }
    }
}
