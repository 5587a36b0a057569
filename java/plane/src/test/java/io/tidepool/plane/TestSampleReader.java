package io.tidepool.plane;

import static org.assertj.core.api.Assertions.assertThat;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.Test;

/** Messages of agents, whole and broken. */
public class TestSampleReader {

    private static final byte[] KEY = {'n', '0'};

    private final SampleReader reader = new SampleReader("", 4, 3);

    private List<Integer> kinds(String message) {
        List<Integer> kinds = new ArrayList<>();
        Samples.read(reader, message).forEach(reading -> kinds.add(reading.kind));
        return kinds;
    }

    private String with(String from, String to) {
        String text = Samples.text("n0", "9f3a", 17);
        assertThat(text).contains(from);
        return text.replace(from, to);
    }

    @Test
    public void aSampleIsReadWhole() {
        Reading reading = Samples.read(reader, Samples.text("n0", "9f3a", 17)).get(0);
        assertThat(reading.kind).isEqualTo(Reading.SAMPLE);
        assertThat(reading.key()).isEqualTo("site1\nn0");
        assertThat(reading.start).isEqualTo("9f3a");
        assertThat(reading.number).isEqualTo(17);
        assertThat(reading.atMs).isEqualTo(1795361718344L);
        assertThat(reading.stepMs).isEqualTo(100);
        assertThat(reading.totalBytes).isEqualTo(137438953472L);
        assertThat(reading.availableBytes).isEqualTo(6442450944L);
        assertThat(reading.demandBytes).isEqualTo(77);
        assertThat(reading.rack).isEqualTo("r1");
        StoreFacts store = reading.stores[0];
        assertThat(new long[] {store.minBytes, store.blockBytes, store.heldBytes,
            store.residentBytes, store.capacityBytes, store.maxBytes})
                .containsExactly(1, 2, 3, 5, 6, 9);
        assertThat(reading.jobs[0].name + reading.jobs[0].user + reading.jobs[0].bytes)
                .isEqualTo("123anna4");
    }

    @Test
    public void anArrayHoldsSeveralAndABrokenOneAmongThemIsCountedAlone() {
        String one = Samples.text("n0", "a", 1);
        assertThat(kinds("[" + one + "," + one + "]"))
                .containsExactly(Reading.SAMPLE, Reading.SAMPLE);
        String broken = ",7,{},[[1]],{\"form\":1,\"cluster\":{\"x\":[1]}},";
        assertThat(kinds("[" + one + broken + one + "]"))
                .containsExactly(Reading.SAMPLE, Reading.GARBAGE, Reading.GARBAGE, Reading.GARBAGE,
                        Reading.GARBAGE, Reading.SAMPLE);
        assertThat(kinds("[" + one + ",{\"form\""))
                .containsExactly(Reading.SAMPLE, Reading.GARBAGE);
        assertThat(kinds("[]")).isEmpty();
    }

    @Test
    public void whatIsNotKnownIsPassedOverAndWhatMayBeAbsentMayBeNull() {
        assertThat(kinds(with("\"reason\"", "\"new\":{\"a\":[{}]},\"reason\"")))
                .containsExactly(Reading.SAMPLE);
        Reading reading = Samples.read(reader, with("6442450944", "null").replace("\"r1\"", "null"))
                .get(0);
        assertThat(reading.availableBytes).isEqualTo(Reading.UNKNOWN);
        assertThat(reading.rack).isEmpty();
        assertThat(kinds("{\"form\":1,\"cluster\":\"c\",\"node\":\"n0\",\"start\":\"s\","
                + "\"number\":0,\"at_ms\":0,\"memory_total_bytes\":1}"))
                .containsExactly(Reading.SAMPLE);
    }

    @Test
    public void aSampleThatMissesItsMarkIsGarbage() {
        String[][] breaks = {{"\"form\":1", "\"form\":2"}, {"\"form\":1", "\"from\":1"},
            {"\"number\":17", "\"number\":-1"}, {"\"number\":17", "\"number\":1.5"},
            {"\"number\":17", "\"number\":\"17\""}, {"\"n0\"", "\"\""}, {"\"n0\"", "\"a\\nb\""},
            {"\"n0\"", "\"" + "n".repeat(254) + "\""}, {"\"9f3a\"", "null"},
            {"\"interval_ms\":100", "\"interval_ms\":0"}, {"137438953472", "0"},
            {"\"max_bytes\":9", "\"max_bytes\":-9"}, {"\"name\":\"tidepool\",", ""},
            {"\"capacity_bytes\":6,", ""}, {"\"stores\":[", "\"stores\":[1,"},
            {"6442450944", "-5"}};
        for (String[] one : breaks) {
            // The key goes with the name, which is bad by itself.
            String key = one[0].equals("\"n0\"")
                    ? one[1].replace("\"", "").replace("\\n", "\n") : "n0";
            List<Reading> readings = Samples.read(reader, key, with(one[0], one[1]));
            assertThat(readings).as(one[1]).hasSize(1);
            assertThat(readings.get(0).kind).as(one[1]).isEqualTo(Reading.GARBAGE);
        }
    }

    @Test
    public void numbersBeyondTheLargestCountAsTheLargest() {
        Reading reading = Samples.read(reader, with("\"max_bytes\":9",
                "\"max_bytes\":18446744073709551615")).get(0);
        assertThat(reading.stores[0].maxBytes).isEqualTo(Long.MAX_VALUE);
    }

    @Test
    public void boundsHoldForStoresJobsAndNames() {
        String store = "{\"name\":\"x%d\",\"capacity_bytes\":1,\"min_bytes\":1,\"max_bytes\":1}";
        StringBuilder stores = new StringBuilder();
        for (int i = 0; i < 4; i++) {
            stores.append(String.format(store, i)).append(',');
        }
        assertThat(kinds(with("\"stores\":[", "\"stores\":[" + stores)))
                .containsExactly(Reading.GARBAGE);
        assertThat(kinds(with("\"stores\":[", "\"stores\":["
                + String.format(store, 0) + "," + String.format(store, 0) + ",")))
                .as("two of one name").containsExactly(Reading.GARBAGE);
        String job = "{\"name\":\"j\",\"bytes\":1},";
        String jobs = with("\"jobs\":[", "\"jobs\":[" + job.repeat(5));
        Reading many = Samples.read(reader, jobs).get(0);
        assertThat(many.jobs).hasSize(3);
        assertThat(many.trimmed).isEqualTo(3);
        String name = with("\"123\"", "\"" + "1".repeat(129) + "\"");
        Reading longName = Samples.read(reader, name).get(0);
        assertThat(longName.jobs).isEmpty();
        assertThat(longName.trimmed).isEqualTo(1);
    }

    @Test
    public void onlySamplesOfTheNodeThatTheKeyNamesAreTaken() {
        String one = Samples.text("n0", "a", 1);
        String other = Samples.text("n1", "a", 1);
        for (String key : new String[] {null, "", "n", "n1"}) {
            List<Reading> readings = Samples.read(reader, key, one);
            assertThat(readings).as(key).hasSize(1);
            assertThat(readings.get(0).kind).as(key).isEqualTo(Reading.GARBAGE);
        }
        assertThat(kinds("[" + one + "," + other + "," + one + "]"))
                .containsExactly(Reading.SAMPLE, Reading.GARBAGE, Reading.SAMPLE);
    }

    @Test
    public void anotherClusterIsTold() {
        SampleReader own = new SampleReader("site2", 4, 3);
        assertThat(Samples.read(own, Samples.text("n0", "a", 1)).get(0).kind)
                .isEqualTo(Reading.FOREIGN);
        String ours = Samples.text("n0", "a", 1).replace("site1", "site2");
        assertThat(Samples.read(own, ours).get(0).kind).isEqualTo(Reading.SAMPLE);
    }

    @Test
    public void noMessageIsAnErrorOfTheJob() {
        assertThat(kinds("")).containsExactly(Reading.GARBAGE);
        assertThat(kinds("not json")).containsExactly(Reading.GARBAGE);
        assertThat(kinds("[".repeat(100_000))).containsExactly(Reading.GARBAGE);
        assertThat(kinds("{\"a\":".repeat(100_000))).containsExactly(Reading.GARBAGE);
        assertThat(kinds("[" + " ".repeat(Json.MESSAGE_BYTES) + "]"))
                .containsExactly(Reading.GARBAGE);
        assertThat(kinds(with("17", "9".repeat(5000)))).containsExactly(Reading.GARBAGE);
        List<Reading> none = new ArrayList<>();
        reader.read(KEY, null, 0, none::add);
        assertThat(none).hasSize(1);
        Random random = new Random(3);
        byte[] whole = Samples.text("n0", "9f3a", 17).getBytes(StandardCharsets.UTF_8);
        for (int round = 0; round < 20_000; round++) {
            byte[] broken = whole.clone();
            for (int change = 0; change <= random.nextInt(4); change++) {
                broken[random.nextInt(broken.length)] = (byte) random.nextInt(256);
            }
            List<Reading> readings = new ArrayList<>();
            reader.read(KEY, broken, 0, readings::add);
            assertThat(readings).isNotEmpty();
        }
    }
}
