package io.tidepool.plane;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** Messages and readings for the tests. */
final class Samples {

    static final long GIB = 1L << 30;
    static final long BLOCK = 64L << 20;
    /** When all tests take place, by the job's clock. */
    static final long NOW_MS = 1_795_361_718_344L;

    private Samples() {
    }

    static Options options(String... more) {
        String[] all = new String[more.length + 2];
        all[0] = "--kafka";
        all[1] = "localhost:9092";
        System.arraycopy(more, 0, all, 2, more.length);
        return new Options(all);
    }

    /** A sample of a node of 128 GiB whose store may have 4 to 60 GiB and has 40. */
    static Reading sample(String node, String start, long number, long usedBytes) {
        Reading reading = Reading.of(Reading.SAMPLE, NOW_MS);
        reading.cluster = "site1";
        reading.node = node;
        reading.start = start;
        reading.number = number;
        reading.stepMs = 100;
        reading.atMs = NOW_MS + 100 * number;
        reading.totalBytes = 128 * GIB;
        reading.availableBytes = 128 * GIB - usedBytes;
        reading.demandBytes = usedBytes;
        reading.stores = new StoreFacts[] {
            new StoreFacts("tidepool", 40 * GIB, 4 * GIB, 60 * GIB, BLOCK)};
        return reading;
    }

    static String text(String node, String start, long number) {
        return "{\"form\":1,\"cluster\":\"site1\",\"node\":\"" + node + "\",\"start\":\"" + start
                + "\",\"number\":" + number + ",\"at_ms\":1795361718344,\"interval_ms\":100,"
                + "\"memory_total_bytes\":137438953472,\"available_bytes\":6442450944,"
                + "\"stores\":[{\"name\":\"tidepool\",\"resident_bytes\":5,\"capacity_bytes\":6,"
                + "\"min_bytes\":1,\"max_bytes\":9,\"block_bytes\":2,\"held_bytes\":3}],"
                + "\"demand_bytes\":77,\"reason\":\"steady\",\"level\":\"normal\",\"alarms\":[],"
                + "\"rack\":\"r1\",\"jobs\":[{\"name\":\"123\",\"user\":\"anna\",\"bytes\":4}]}";
    }

    static List<Reading> read(SampleReader reader, String message) {
        return read(reader, "n0", message);
    }

    static List<Reading> read(SampleReader reader, String key, String message) {
        List<Reading> readings = new ArrayList<>();
        reader.read(key == null ? null : key.getBytes(StandardCharsets.UTF_8),
                message.getBytes(StandardCharsets.UTF_8), NOW_MS, readings::add);
        return readings;
    }

    /** One of the six messages, as collectd writes them. */
    static String part(String host, String time, String instance, long bytes) {
        return "[{\"values\":[" + bytes + "],\"dstypes\":[\"gauge\"],\"dsnames\":[\"value\"],"
                + "\"time\":" + time + ",\"interval\":0.100,\"host\":\"" + host + "\","
                + "\"plugin\":\"memory\","
                + "\"plugin_instance\":\"\",\"type\":\"memory\",\"type_instance\":\"" + instance
                + "\"}]";
    }
}
