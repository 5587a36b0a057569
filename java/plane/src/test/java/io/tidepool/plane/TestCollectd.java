package io.tidepool.plane;

import static io.tidepool.plane.Samples.NOW_MS;
import static io.tidepool.plane.Samples.part;
import static org.assertj.core.api.Assertions.assertThat;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.operators.KeyedProcessOperator;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.streaming.util.KeyedOneInputStreamOperatorTestHarness;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** Nodes that stock collectd tells of. */
public class TestCollectd {

    private static final List<String> PARTS =
            List.of("used", "buffered", "cached", "free", "slab_unrecl", "slab_recl");
    private static final long MIB = 1L << 20;
    private static final Pattern HOST = Pattern.compile("\"host\":\"([^\"]*)\"");

    private KeyedOneInputStreamOperatorTestHarness<String, Reading, Ceiling> job;
    private final CollectdReader reader = new CollectdReader("site1");
    /** The broker's time. */
    private long recordMs = NOW_MS;
    private final List<Report> reports = new ArrayList<>();

    @Before
    public void start() throws Exception {
        Options options = Samples.options("--collectd-topic", "collectd", "--min-bytes", "0",
                "--max-bytes", Long.toString(600 * MIB), "--block-bytes", Long.toString(MIB));
        job = new KeyedOneInputStreamOperatorTestHarness<>(new KeyedProcessOperator<>(
                new NodeFunction(options, "plane1")), Reading::key, Types.STRING);
        job.open();
        job.setProcessingTime(NOW_MS);
    }

    @After
    public void stop() throws Exception {
        job.close();
    }

    /** Reads a message whose key is its host. */
    private List<Reading> read(String message) {
        Matcher host = HOST.matcher(message);
        return read(host.find() ? host.group(1) : "n7", message);
    }

    private List<Reading> read(String key, String message) {
        List<Reading> readings = new ArrayList<>();
        reader.read(key == null ? null : key.getBytes(StandardCharsets.UTF_8),
                message.getBytes(StandardCharsets.UTF_8), recordMs, readings::add);
        return readings;
    }

    private List<Ceiling> send(String... messages) throws Exception {
        for (String message : messages) {
            for (Reading reading : read(message)) {
                job.processElement(new StreamRecord<>(reading));
            }
        }
        List<Ceiling> ceilings = job.extractOutputValues();
        job.getOutput().clear();
        return ceilings;
    }

    /** A reading of a node of 1,000 MiB without the last {@code missing} parts. */
    private List<Ceiling> reading(String time, long usedMib, int missing) throws Exception {
        long[] mib = {usedMib, 10, 100, 1000 - usedMib - 140, 20, 10};
        List<Ceiling> ceilings = new ArrayList<>();
        for (int i = 0; i < mib.length - missing; i++) {
            ceilings.addAll(send(part("n7", time, PARTS.get(i), mib[i] * MIB)));
        }
        return ceilings;
    }

    private Counts counts() {
        reports.clear();
        Counts counts = new Counts();
        if (job.getSideOutput(NodeFunction.REPORTS) != null) {
            job.getSideOutput(NodeFunction.REPORTS).forEach(report -> {
                counts.add(report.getValue().counts);
                reports.add(report.getValue());
            });
            job.getSideOutput(NodeFunction.REPORTS).clear();
        }
        return counts;
    }

    @Test
    public void oneMessageIsReadAsCaptured() {
        Reading part = read("[{\"values\":[780402688],\"dstypes\":[\"gauge\"],"
                + "\"dsnames\":[\"value\"],\"time\":1795361718.344,\"interval\":0.100,"
                + "\"host\":\"node7\",\"plugin\":\"memory\",\"plugin_instance\":\"\","
                + "\"type\":\"memory\",\"type_instance\":\"used\"}]").get(0);
        assertThat(part.kind).isEqualTo(Reading.PART);
        assertThat(part.key()).isEqualTo("site1\nnode7");
        assertThat(part.atMs).isEqualTo(1795361718344L);
        assertThat(part.part).isEqualTo(0);
        assertThat(part.partBytes).isEqualTo(780402688);
    }

    @Test
    public void othersAreNotReadAndBrokenOnesAreCounted() {
        String whole = part("n7", "1795361718.344", "used", 5);
        assertThat(read(whole.replace("\"plugin\":\"memory\"", "\"plugin\":\"cpu\""))).isEmpty();
        assertThat(read(whole.replace("\"plugin\":\"memory\"", "\"plugin\":\"sensors\"")
                .replace("[5]", "[-5]"))).isEmpty();
        assertThat(read(whole.replace("\"type\":\"memory\"", "\"type\":\"percent\""))).isEmpty();
        assertThat(read(whole.replace("\"used\"", "\"inactive\""))).isEmpty();
        for (String broken : List.of("", "{}", "[5]", "[{}]", whole.replace("[5]", "[null]"),
                whole.replace("[5]", "[-5]"), whole.replace("\"n7\"", "null"),
                whole.replace("1795361718.344", "\"now\""), whole.substring(0, 60))) {
            List<Reading> readings = read(broken);
            assertThat(readings).as(broken).hasSize(1);
            assertThat(readings.get(0).kind).as(broken).isEqualTo(Reading.GARBAGE);
        }
    }

    @Test
    public void onlyValuesOfTheHostThatTheKeyNamesAreTaken() {
        String one = part("n7", "1795361718.344", "used", 5);
        assertThat(read("n7", one).get(0).kind).isEqualTo(Reading.PART);
        for (String key : new String[] {null, "", "n8"}) {
            assertThat(read(key, one).get(0).kind).as(key).isEqualTo(Reading.GARBAGE);
        }
        assertThat(read("n8", one.replace("\"plugin\":\"memory\"", "\"plugin\":\"cpu\"")))
                .as("of another plug-in").isEmpty();
    }

    @Test
    public void theSixthMessageMakesASampleAndTheStoreStartsAtItsMax() throws Exception {
        assertThat(reading("1795361718.000", 830, 1)).isEmpty();
        List<Ceiling> ceilings = send(part("n7", "1795361718.000", "slab_recl", 10 * MIB));
        assertThat(ceilings).hasSize(1);
        Ceiling ceiling = ceilings.get(0);
        counts();
        Report report = reports.get(0);
        assertThat(report.totalBytes).isEqualTo(1000 * MIB);
        assertThat(ceiling.sampleAtMs).isEqualTo(1795361718000L);
        assertThat(ceiling.stores).containsExactly("tidepool");
    }

    @Test
    public void theLawIsGivenWhatCannotBeDropped() throws Exception {
        // Used 830 + slab 20 of 1,000: 100 below the goal of 950.
        Ceiling first = reading("1795361718.000", 830, 0).get(0);
        assertThat(first.ceilingBytes).as("at its max already").containsExactly(600 * MIB);
        counts();
        assertThat(reports.get(0).availableBytes).isEqualTo(150 * MIB);
        assertThat(reports.get(0).demandBytes).isEqualTo(850 * MIB);
        // 600 - 0.5 x 880 x (880 - 950) / 950 is above the max; then 860 + 20 + a job of 110.
        assertThat(reading("1795361718.100", 860, 0)).isEmpty();
        job.processElement(new StreamRecord<>(full("1795361718.200", 990)));
        List<Ceiling> ceilings = job.extractOutputValues();
        // 600 - 0.5 x 990 x 40 / 950 = 579.2.
        assertThat(ceilings.get(0).ceilingBytes).containsExactly(579 * MIB);
    }

    /** The last part of a reading in which 10 MiB are free and nothing else is available. */
    private Reading full(String time, long usedMib) throws Exception {
        long[] mib = {usedMib, 0, 0, 1000 - usedMib, 0, 0};
        for (int i = 0; i < mib.length - 1; i++) {
            send(part("n7", time, PARTS.get(i), mib[i] * MIB));
        }
        return read(part("n7", time, "slab_recl", 0)).get(0);
    }

    @Test
    public void aMissingPartFollowsFromTheMemoryOfTheNode() throws Exception {
        reading("1795361718.000", 830, 0);
        counts();
        assertThat(reading("1795361718.100", 700, 1)).isEmpty();
        assertThat(counts().samples).isEqualTo(0);
        send(part("n7", "1795361718.200", "used", 830 * MIB));
        assertThat(counts().samples).as("a newer time ends the reading").isEqualTo(1);
        assertThat(reports.get(0).totalBytes).isEqualTo(1000 * MIB);
        assertThat(reports.get(0).demandBytes).isEqualTo(720 * MIB);
    }

    @Test
    public void withMoreMissingOrBeforeAFullReadingItIsGivenUp() throws Exception {
        reading("1795361718.000", 830, 1);
        send(part("n7", "1795361718.100", "used", 830 * MIB));
        Counts first = counts();
        assertThat(first.incomplete).isEqualTo(1);
        assertThat(first.samples).isEqualTo(0);
        reading("1795361718.200", 830, 0);
        reading("1795361718.300", 830, 2);
        send(part("n7", "1795361718.400", "used", 830 * MIB));
        Counts second = counts();
        assertThat(second.samples).isEqualTo(1);
        assertThat(second.incomplete).isEqualTo(2);
    }

    @Test
    public void repeatedAndLateMessagesAreCounted() throws Exception {
        reading("1795361718.100", 830, 0);
        reading("1795361718.200", 830, 3);
        counts();
        send(part("n7", "1795361718.200", "used", 1), part("n7", "1795361718.100", "used", 1),
                part("n7", "1795361718.000", "used", 1));
        Counts counts = counts();
        assertThat(counts.repeated).isEqualTo(1);
        assertThat(counts.late).isEqualTo(2);
    }

    @Test
    public void aClockThatIsSetBackAnHourDoesNotStopTheNode() throws Exception {
        reading("1795361718.000", 830, 0);
        recordMs += 4000;
        reading("1795358122.000", 990 - 140, 0);
        assertThat(counts().late).as("one that may be forged").isEqualTo(6);
        recordMs += 1000;
        reading("1795358123.000", 990 - 140, 0);
        reading("1795358123.100", 990 - 140, 0);
        Counts counts = counts();
        assertThat(counts.samples).isEqualTo(2);
        assertThat(counts.late + counts.repeated + counts.incomplete).isEqualTo(0);
        assertThat(counts.decisions).isEqualTo(2);
        assertThat(counts.skewed).isEqualTo(2);
    }

    @Test
    public void oneReadingThatIsAheadDoesNotSilenceTheNode() throws Exception {
        reading("1795361718.000", 830, 0);
        recordMs += 100;
        send(part("n7", "1795361768.000", "used", 1));
        assertThat(counts().late).as("while the node speaks").isEqualTo(1);
        reading("1795361718.100", 830, 0);
        assertThat(counts().samples).isEqualTo(1);
        // After ten seconds without a reading it could be one.
        recordMs += 10_000;
        send(part("n7", "1795361768.000", "used", 1));
        recordMs += 4900;
        reading("1795361733.000", 830, 0);
        assertThat(counts().samples).isEqualTo(0);
        recordMs += 100;
        reading("1795361733.100", 830, 0);
        reading("1795361733.200", 830, 0);
        assertThat(counts().samples).isEqualTo(2);
    }

    @Test
    public void readingsThatAreAheadOfEachOtherDoNotSilenceTheNode() throws Exception {
        reading("1795361718.000", 830, 0);
        recordMs += 100;
        for (int ahead = 1; ahead <= 11; ahead++) {
            send(part("n7", Long.toString(1795361718 + ahead * 4) + ".000", "used", 1));
        }
        for (int second = 19; second < 24; second++) {
            reading("17953617" + second + ".000", 830, 0);
            recordMs += 1000;
        }
        assertThat(counts().samples).isEqualTo(1);
        reading("1795361724.000", 830, 0);
        reading("1795361725.000", 830, 0);
        assertThat(counts().samples).isEqualTo(2);
    }

    @Test
    public void collectdFollowsAnAgentOnceThatIsSilent() throws Exception {
        Reading agents = Samples.sample("n7", "a", 1, 0);
        job.processElement(new StreamRecord<>(agents));
        reading("1795361718.000", 830, 0);
        Counts counts = counts();
        assertThat(counts.samples).isEqualTo(1);
        assertThat(counts.late).isEqualTo(6);
        recordMs += 5000;
        reading("1795361723.000", 830, 0);
        reading("1795361723.100", 830, 0);
        assertThat(counts().samples).isEqualTo(2);
    }
}
